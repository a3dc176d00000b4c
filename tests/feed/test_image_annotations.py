# SPDX-License-Identifier: Apache-2.0
"""Tests masks, boxes and keypoints: they get the geometry of their image, as torchvision and Pillow compute it."""

from __future__ import annotations

import io
import itertools
import struct
import tarfile
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

import penstock
from penstock import errors
from penstock.feed import lengths

from . import tfrecords

SIDE = 32


def encoded(pixels, form="PNG", **arguments):
    out = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(out, form, **arguments)
    return out.getvalue()


def npy(values):
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def write(folder, samples):
    """Writes one tar of samples, each a mapping from extension to bytes."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "a.tar", "w", format=tarfile.USTAR_FORMAT) as out:
        for number, sample in enumerate(samples):
            for extension, data in sample.items():
                member = tarfile.TarInfo(f"{number:04}.{extension}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    return penstock.open(folder)


def batches(dataset, **arguments):
    given = {"batch_size": 64, "rank": 0, "world": 1, **arguments}
    return list(penstock.Loader(dataset, **given))


def rows(ragged):
    """Items of each sample of a ragged field."""
    return np.split(ragged.values, ragged.offsets[1:-1])


def grid(width, height):
    """An image whose red and green are the column and the row of a pixel, and a mask of both in 16 bits."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x, y, 0 * x], -1).astype(np.uint8), (y * 256 + x).astype(np.uint16)


RANDOM = penstock.image(SIDE, crop="random", flip=True).of("img.png")


def padded(image, size, fill, how=Image.Resampling.BILINEAR):
    """The image as large as it fits into `size`, in the middle of a picture of the value `fill`."""
    scale = min(size[0] / image.width, size[1] / image.height)
    fitted = [max(1, round(side * scale)) for side in image.size]
    out = Image.new(image.mode, size, fill)
    out.paste(image.resize(fitted, how), [(whole - part) // 2 for whole, part in zip(size, fitted, strict=True)])
    return out


@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("size", [(200, 120), (40, 121), (62, 61), (9, 900)])
def test_padded_image_mask_and_boxes_keep_their_proportions(tmp_path, size, flip):
    image, mask = grid(*size)
    box = np.array([[0, 0, *size], [1, 2, size[0] // 2, size[1] // 2]], np.float32)
    sample = {"img.png": encoded(image), "mask.png": encoded(mask), "box.npy": npy(box)}
    (batch,) = batches(
        write(tmp_path / "d", [sample]).fields(
            image=penstock.image(48, 64, crop="pad", fill=114, flip=flip, exact=True).of("img.png"),
            mask=penstock.mask(dtype="int32", fill=-1).of("mask.png").like("image"),
            boxes=penstock.boxes(min_area=0).of("box.npy").like("image"),
        )
    )
    want = np.asarray(padded(Image.fromarray(image), (64, 48), (114, 114, 114)))
    labels = np.asarray(padded(Image.fromarray(mask.astype(np.int32)), (64, 48), -1, Image.Resampling.NEAREST))
    mirror = np.s_[:, ::-1] if flip else np.s_[:]
    assert np.abs(batch["image"][0].astype(int) - want[mirror]).max() <= 2
    assert np.array_equal(batch["mask"][0], labels[mirror])
    (rectangles,) = rows(batch["boxes"])
    inside = np.argwhere(labels[mirror] >= 0)
    top, left = inside.min(0)
    bottom, right = inside.max(0) + 1
    assert rectangles[0].tolist() == [left, top, right, bottom]
    x, y = (right - left) / size[0], (bottom - top) / size[1]
    low, high = (
        (left + x * box[1, 0], left + x * box[1, 2]) if not flip else (right - x * box[1, 2], right - x * box[1, 0])
    )
    assert np.allclose(rectangles[1], [low, top + y * box[1, 1], high, top + y * box[1, 3]], atol=1e-4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_padded_image_with_an_orientation_is_turned_before_it_is_placed(tmp_path, orientation):
    stored = Image.fromarray(grid(90, 31)[0])
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, "JPEG", quality=98, subsampling=0, exif=exif)
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    field = penstock.image(48, 65, crop="pad", fill=7, orient=True, exact=True).of("img.jpg")
    (batch,) = batches(write(tmp_path / "d", [{"img.jpg": data}]).fields(image=field))
    want = np.asarray(padded(shown, (65, 48), (7, 7, 7))).astype(int)
    assert np.abs(batch["image"][0] - want).max() <= 2


@pytest.mark.parametrize(
    ("mode", "channels", "dtype"),
    [("RGBA", 4, "uint8"), ("RGB", 4, "uint16"), ("L", 1, "uint16"), ("RGB", 3, "float32")],
)
def test_padding_has_the_fill_in_every_type_and_alpha_is_opaque(tmp_path, mode, channels, dtype):
    picture = Image.new(mode, (20, 10))
    field = penstock.image(16, crop="pad", fill=51, channels=channels, dtype=dtype, layout="CHW").of("img.png")
    (batch,) = batches(write(tmp_path / "d", [{"img.png": encoded(picture)}]).fields(image=field))
    unit = {"uint8": 1, "uint16": 257, "float32": 1 / 255}[dtype]
    colours, alpha = batch["image"][0][:3], batch["image"][0][3:]
    for rim in (np.s_[:, :4], np.s_[:, -4:]):
        assert np.allclose(colours[rim], 51 * unit)
        assert np.all(alpha[rim] == 255 * unit)
    assert np.all(colours[:, 4:-4] == 0)


def test_fill_without_padding_is_an_error():
    with pytest.raises(errors.ConfigError, match='fill: needs crop="pad"'):
        penstock.image(16, fill=3)
    with pytest.raises(errors.ConfigError, match="fill must be 0 to 255"):
        penstock.image(16, crop="pad", fill=256)


def test_mask_and_image_come_from_the_same_pixels_in_every_crop(tmp_path):
    image, mask = grid(200, 120)
    dataset = write(tmp_path / "d", [{"img.png": encoded(image), "mask.png": encoded(mask)}] * 16)
    for crop, flip in itertools.product(["random", "center", "pad", "none"], [0.0, 1.0]):
        spec = penstock.image(SIDE, crop=crop, flip=flip).of("img.png")
        fields = {"image": spec, "mask": penstock.mask(dtype="uint16").of("mask.png").like("image")}
        (batch,) = batches(dataset.fields(**fields).shuffle(seed=3))
        column, row = batch["mask"] % 256, batch["mask"] // 256
        # Bilinear values are averages around the pixel's centre; labels are the nearest column and row.
        inner = np.s_[:, 2:-2, 2:-2]
        assert np.abs(batch["image"][..., 0].astype(int) - column)[inner].max() <= 4
        assert np.abs(batch["image"][..., 1].astype(int) - row)[inner].max() <= 3
        slope = np.diff(column.astype(int), axis=2).mean()
        assert (slope < 0) == (flip == 1.0)


def test_mask_is_pillow_s_nearest_neighbour(tmp_path):
    labels = np.random.default_rng(1).integers(0, 256, (75, 90), np.uint8)
    palette = Image.fromarray(labels).convert("P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    sample = {"img.png": encoded(np.zeros((75, 90, 3), np.uint8)), "mask.png": encoded(labels)}
    sample["pal.png"] = encoded(palette)
    fields = {name: penstock.mask().of(f"{name}.png").like("image") for name in ("mask", "pal")}
    dataset = write(tmp_path / "d", [sample])
    (batch,) = batches(dataset.fields(image=penstock.image(24, 32, crop="none").of("img.png"), **fields))
    want = np.asarray(Image.fromarray(labels).resize((32, 24), Image.Resampling.NEAREST))
    assert (batch["mask"][0] == want).mean() > 0.97  # Pillow accumulates its coordinates, so ties may differ
    assert np.array_equal(batch["mask"], batch["pal"])


def stored_bits(bits):
    """A grey PNG of `bits` per pixel, which Pillow cannot write for 2 and 4."""
    labels = np.arange(64).reshape(8, 8) % (1 << bits)
    rows = b"".join(
        b"\0" + bytes(int("".join(f"{v:0{bits}b}" for v in row)[at : at + 8], 2) for at in range(0, 8 * bits, 8))
        for row in labels
    )

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 8, 8, bits, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body, labels


@pytest.mark.parametrize(
    ("bits", "dtype"), [(1, "uint8"), (2, "int64"), (4, "uint8"), (8, "int64"), (16, "uint16"), (16, "int32")]
)
def test_mask_of_any_depth_keeps_its_labels(tmp_path, bits, dtype):
    if bits < 8:
        data, labels = stored_bits(bits)
    else:
        labels = (np.arange(64).reshape(8, 8) * (1021 if bits == 16 else 3)).astype(f"uint{bits}")
        data = encoded(labels)
    blank = encoded(np.zeros((8, 8, 3), np.uint8))
    dataset = write(tmp_path / "d", [{"img.png": blank, "mask.png": data, "mask.npy": npy(labels)}])
    spec = penstock.image(8, crop="none").of("img.png")
    for part in ("mask.png", "mask.npy"):
        (batch,) = batches(dataset.fields(image=spec, mask=penstock.mask(dtype=dtype).of(part).like("image")))
        assert batch["mask"].dtype == dtype
        assert np.array_equal(batch["mask"][0], labels)


HUGE = encoded(np.zeros((8, 8), np.uint8))
HUGE = HUGE[:16] + struct.pack(">II", 60_000, 60_000) + HUGE[24:]


@pytest.mark.parametrize(
    ("part", "data", "dtype", "text"),
    [
        ("png", encoded(np.zeros((9, 8), np.uint8)), "uint8", "mask of 8 x 9 pixels, but the image `image` has 8 x 8"),
        ("png", encoded(np.full((8, 8), 300, np.uint16)), "uint8", "label 300, which is not a valid uint8"),
        ("png", encoded(np.zeros((8, 8, 3), np.uint8)), "uint8", "mask with the colours of a PNG"),
        ("jpg", encoded(np.zeros((8, 8, 3), np.uint8), "JPEG"), "uint8", "mask with the colours of a JPEG"),
        ("png", encoded(np.zeros((8, 8), np.uint8))[:60], "uint8", "damaged PNG"),
        ("png", b"", "uint8", r"has no image \(0 bytes or a null\)"),
        ("png", HUGE, "uint8", "is an image of 60,000 x 60,000 pixels"),
        ("npy", npy(np.zeros((2, 8, 8), np.uint8)), "uint8", r"a mask needs the shape \[height, width\]"),
        ("npy", npy(np.zeros((8, 8), np.float32)), "uint8", "float32 cannot be converted"),
    ],
)
def test_mask_that_is_wrong_gets_one_clear_error(tmp_path, part, data, dtype, text):
    blank = encoded(np.zeros((8, 8, 3), np.uint8))
    dataset = write(tmp_path / "d", [{"img.png": blank, f"mask.{part}": data}])
    dataset = dataset.fields(
        image=penstock.image(8).of("img.png"), mask=penstock.mask(dtype=dtype).of(f"mask.{part}").like("image")
    )
    with pytest.raises((errors.Mismatch, errors.Corrupt), match=text):
        batches(dataset)


def test_mask_that_a_sample_lacks_has_the_default_label(tmp_path):
    blank, labels = encoded(np.zeros((8, 8, 3), np.uint8)), encoded(np.full((8, 8), 3, np.uint8))
    dataset = write(tmp_path / "d", [{"img.png": blank, "mask.png": labels}, {"img.png": blank}])
    spec = penstock.mask(default=255, mask="has_mask").of("mask.png").like("image")
    (batch,) = batches(dataset.fields(image=penstock.image(8).of("img.png"), mask=spec))
    assert (batch["mask"][0] == 3).all()
    assert (batch["mask"][1] == 255).all()
    assert batch["has_mask"].tolist() == [True, False]
    assert penstock.mask(mask="has_mask").default == 0
    for default in (256, "x"):
        with pytest.raises(errors.ConfigError, match="default"):
            penstock.mask(default=default)


def test_mask_follows_an_image_that_is_rotated_by_exif(tmp_path):
    image, mask = grid(60, 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(image).transpose(Image.Transpose.ROTATE_90)
    data = encoded(turned, "JPEG", exif=exif, quality=95, subsampling=0)
    dataset = write(tmp_path / "d", [{"img.jpg": data, "mask.png": encoded(mask)}])
    spec = penstock.image(20, 30, crop="none", orient=True).of("img.jpg")
    (batch,) = batches(dataset.fields(image=spec, mask=penstock.mask(dtype="uint16").of("mask.png").like("image")))
    assert np.abs(batch["image"][0, :, :, 0].astype(int) - batch["mask"][0] % 256).max() <= 6


BOXES = np.array([[10, 20, 60, 80], [0, 0, 199, 119], [150, 100, 230, 150], [5, 5, 5, 9], [90.5, 30.25, 120, 70]])


def as_format(boxes, form):
    x0, y0, x1, y1 = np.asarray(boxes, float).T
    columns = {
        "xyxy": (x0, y0, x1, y1),
        "xywh": (x0, y0, x1 - x0, y1 - y0),
        "cxcywh": ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0),
    }
    return np.stack(columns[form], -1)


def box_dataset(folder, boxes, labels=None, count=8):
    image, mask = grid(200, 120)
    sample = {"img.png": encoded(image), "mask.png": encoded(mask), "box.npy": npy(boxes)}
    sample["id.npy"] = npy(np.arange(len(boxes)) if labels is None else labels)
    return write(folder, [sample] * count)


def fractions(boxes):
    return np.asarray(boxes) / [200, 120, 200, 120]


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_boxes_in_random_crops_enclose_the_same_pixels(tmp_path, form):
    inside = np.clip(BOXES, 0, [200, 120, 200, 120])
    dataset = box_dataset(tmp_path / "d", as_format(inside, form).astype(np.float32), count=16)
    fields = {
        "image": RANDOM,
        "mask": penstock.mask(dtype="uint16").of("mask.png").like("image"),
        "boxes": penstock.boxes(format=form).of("box.npy").like("image"),
        "labels": penstock.ragged("int64").of("id.npy").like("boxes"),
    }
    (batch,) = batches(dataset.fields(**fields).shuffle(seed=9))
    seen = 0
    for row in range(16):
        mask, found, labels = batch["mask"][row], rows(batch["boxes"])[row], rows(batch["labels"])[row]
        assert len(found) == len(labels)
        assert 3 not in labels  # a box without area
        column, line = mask % 256, mask // 256
        for number, box in zip(labels, found, strict=True):
            if form == "xywh":
                box = [*box[:2], *(box[:2] + box[2:])]
            elif form == "cxcywh":
                box = [*(box[:2] - box[2:] / 2), *(box[:2] + box[2:] / 2)]
            x0, y0, x1, y1 = inside[number]
            y, x = np.nonzero((column + 0.5 > x0) & (column + 0.5 < x1) & (line + 0.5 > y0) & (line + 0.5 < y1))
            if len(x):
                assert np.abs(np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) - box).max() <= 1.5
                seen += 1
    assert seen > 30


def test_boxes_are_batched_by_their_stored_number(tmp_path):
    blank, numbers = encoded(np.zeros((50, 50, 3), np.uint8)), [1, 4, 2, 5, 3]
    boxes = [np.array([[1, 2, 20, 30 + at] for at in range(number)]) for number in numbers]
    samples = [{"img.png": blank, "box.npy": npy(found), "id.npy": npy(np.arange(len(found)))} for found in boxes]
    dataset = write(tmp_path / "d", samples).fields(
        image=penstock.image(32).of("img.png"),
        boxes=penstock.boxes().of("box.npy").like("image").padded("bucket"),
        split=penstock.boxes().of("id.npy,id.npy,id.npy,id.npy").like("image"),
        labels=penstock.ragged("int64").of("id.npy").like("boxes"),
        points=penstock.keypoints(2).of("box.npy").like("boxes"),
    )
    for name in ("boxes", "split", "labels", "points"):
        assert lengths.of(dataset, name)[0].tolist() == numbers
    found = batches(dataset, batch_size=None, batch_by=penstock.buckets("boxes", [2, 5], [2, 2]))
    assert sorted(batch["boxes"].shape for batch in found) == [(1, 5, 4), (2, 2, 4), (2, 5, 4)]


def test_boxes_are_padded_after_the_crop(tmp_path):
    dataset = box_dataset(tmp_path / "d", BOXES, count=16)
    boxes, labels = penstock.boxes().of("box.npy"), penstock.ragged("int64").of("id.npy")
    points = penstock.keypoints(2).of("box.npy").like("boxes")
    ragged = {"boxes": boxes.like("image"), "labels": labels.like("boxes"), "points": points}
    padded = {
        "boxes": boxes.padded(9, mask="is_box", value=-1).like("image"),
        "labels": labels.like("boxes").padded(9, value=-1),
        "points": points.padded(9, value=-1),
    }
    (want,) = batches(dataset.fields(image=RANDOM, **ragged).shuffle(seed=9))
    (found,) = batches(dataset.fields(image=RANDOM, **padded).shuffle(seed=9))
    counts = np.diff(want["boxes"].offsets)
    assert len(set(counts)) > 1
    assert np.array_equal(found["is_box"], np.arange(9) < counts[:, None])
    for name in ragged:
        assert np.array_equal(found[name][found["is_box"]], want[name].values)
        assert (found[name][~found["is_box"]] == -1).all()
    few = {name: spec.padded(1, truncate=True) for name, spec in ragged.items()}
    (cut,) = batches(dataset.fields(image=RANDOM, **few).shuffle(seed=9))
    assert np.array_equal(cut["labels"][counts > 0, 0], want["labels"].values[want["labels"].offsets[:-1][counts > 0]])


def test_boxes_center_crop_is_torchvision_s(tmp_path):
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    dataset = box_dataset(tmp_path / "d", BOXES, count=1)
    spec = penstock.image(48, crop="center", resize=60, flip=1.0).of("img.png")
    fields = {"image": spec, "boxes": penstock.boxes(min_area=0).of("box.npy").like("image")}
    (batch,) = batches(dataset.fields(**fields))
    steps = v2.Compose([v2.Resize(60), v2.CenterCrop(48), v2.RandomHorizontalFlip(1.0)])
    boxes = tv_tensors.BoundingBoxes(torch.tensor(BOXES), format="XYXY", canvas_size=(120, 200))
    want = v2.ClampBoundingBoxes()(steps(boxes)).numpy()
    want = want[(want[:, 2] > want[:, 0]) & (want[:, 3] > want[:, 1])]
    assert np.abs(batch["boxes"].values - want).max() < 1e-3


def test_boxes_normalized_stay_normalized_and_may_be_kept(tmp_path):
    dataset = box_dataset(tmp_path / "d", fractions(BOXES))
    spec = penstock.boxes(normalized=True, remove=False).of("box.npy").like("image")
    (batch,) = batches(dataset.fields(image=RANDOM, boxes=spec).shuffle(seed=4))
    pixels = penstock.boxes(remove=False).of("box.npy").like("image")
    (other,) = batches(box_dataset(tmp_path / "e", BOXES).fields(image=RANDOM, boxes=pixels).shuffle(seed=4))
    assert batch["boxes"].values.shape == (8 * len(BOXES), 4)
    assert batch["boxes"].values.min() >= 0
    assert batch["boxes"].values.max() <= 1
    assert np.allclose(batch["boxes"].values * SIDE, other["boxes"].values, atol=1e-3)


def test_boxes_below_the_minimums_are_removed(tmp_path):
    boxes = np.array([[0, 0, 20, 12], [190, 0, 210, 120], [0, 0, 4, 4]], np.int64)
    dataset = box_dataset(tmp_path / "d", boxes, count=1)
    spec = penstock.image(60, 100, crop="none").of("img.png")

    def kept(**arguments):
        fields = {"boxes": penstock.boxes(**arguments).of("box.npy").like("image")}
        fields["labels"] = penstock.ragged("int64").of("id.npy").like("boxes")
        (batch,) = batches(dataset.fields(image=spec, **fields))
        return batch["labels"].values.tolist()

    assert kept() == [0, 1, 2]
    assert kept(min_area=4.1) == [0, 1]
    assert kept(min_visibility=0.6) == [0, 2]
    assert kept(min_area=1e6) == []


@pytest.mark.parametrize(
    ("boxes", "labels", "text"),
    [
        ([[0, 0, np.nan, 5]], None, "not finite: box 0"),
        ([[0, 0, 5, 5], [9, 0, 5, 5]], None, "negative width or height: box 1"),
        ([0.0, 1, 2], None, "has 3 numbers, but a box has 4"),
        ([[0, 0, 5, 5]], [1, 2], "`labels` has 2 items, but `boxes` has 1"),
    ],
)
def test_boxes_that_are_wrong_get_one_clear_error(tmp_path, boxes, labels, text):
    dataset = box_dataset(tmp_path / "d", np.array(boxes, np.float32), np.array(labels or [0] * len(boxes)), 1)
    fields = {"boxes": penstock.boxes().of("box.npy").like("image")}
    fields["labels"] = penstock.ragged("int64").of("id.npy").like("boxes")
    with pytest.raises(errors.Mismatch, match=text):
        batches(dataset.fields(image=RANDOM, **fields))


def test_boxes_of_four_features_as_tensorflow_writes_them(tmp_path):
    image, _ = grid(200, 120)
    names = [f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    records = b""
    for boxes in (BOXES[:2], BOXES[:0]):
        columns = {name: column.tolist() for name, column in zip(names, fractions(boxes).T, strict=True)}
        features = {"image/encoded": [encoded(image)], "image/object/bbox/label": list(range(len(boxes)))}
        records += tfrecords.frame(tfrecords.example(**features, **columns))
    (tmp_path / "a.tfrecord").write_bytes(records)
    dataset = penstock.open(tmp_path / "a.tfrecord").fields(
        image=penstock.image(120, 200, crop="none").of("image/encoded"),
        boxes=penstock.boxes(normalized=True).of(",".join(names)).like("image"),
        labels=penstock.ragged("int64").of("image/object/bbox/label").like("boxes"),
    )
    (batch,) = batches(dataset)
    assert np.allclose(batch["boxes"].values, fractions(BOXES[:2]), atol=1e-6)
    assert batch["labels"].offsets.tolist() == [0, 2, 2]


def test_keypoints_follow_the_image_and_their_boxes(tmp_path):
    points = np.array([[[15.5, 30.5, 2], [40.5, 60.5, 1], [0, 0, 0]], [[199, 119, 2], [100.5, 60.5, 2], [160, 110, 2]]])
    image, mask = grid(200, 120)
    boxes = np.array([[10, 20, 60, 80], [90, 50, 200, 120]])
    sample = {"img.png": encoded(image), "mask.png": encoded(mask), "kp.npy": npy(points), "box.npy": npy(boxes)}
    dataset = write(tmp_path / "d", [sample] * 16).fields(
        image=penstock.image(SIDE, crop="random", area=(0.6, 1.0), flip=True).of("img.png"),
        mask=penstock.mask(dtype="uint16").of("mask.png").like("image"),
        boxes=penstock.boxes(min_area=4).of("box.npy").like("image"),
        points=penstock.keypoints(3, visibility=True).of("kp.npy").like("image"),
        person=penstock.keypoints(3, visibility=True, flip_order=(1, 0, 2)).of("kp.npy").like("boxes"),
    )
    (batch,) = batches(dataset.shuffle(seed=2))
    seen, flips = 0, 0
    found, persons, kept = rows(batch["points"]), rows(batch["person"]), rows(batch["boxes"])
    for row in range(16):
        assert len(found[row]) == 2
        assert len(persons[row]) == len(kept[row])
        slope = int(batch["mask"][row][0, -1] % 256) - int(batch["mask"][row][0, 0] % 256)
        for at, (x, y, visible) in enumerate(points[0, :2]):
            near = found[row][0][at]
            if near[2]:
                label = batch["mask"][row][min(int(near[1]), SIDE - 1), min(int(near[0]), SIDE - 1)]
                assert abs(label % 256 + 0.5 - x) < 8
                assert abs(label // 256 + 0.5 - y) < 6
                assert near[2] == visible
                seen += 1
        assert np.array_equal(found[row][0][2], [0, 0, 0])
        if len(persons[row]) == 2:
            order = [1, 0, 2] if slope < 0 else [0, 1, 2]
            flips += slope < 0
            assert np.array_equal(persons[row], found[row][:, order])
    assert seen > 8
    assert flips


def test_annotation_states_do_not_depend_on_the_world(tmp_path):
    dataset = box_dataset(tmp_path / "d", BOXES, count=12)
    fields = {
        "image": RANDOM,
        "boxes": penstock.boxes().of("box.npy").like("image"),
        "seed": penstock.tensor("int64", ()).of("__seed__"),
    }
    dataset = dataset.fields(**fields).shuffle(seed=5)
    whole = batches(dataset, batch_size=4)
    halves = [batches(dataset, batch_size=2, rank=rank, world=2) for rank in (0, 1)]
    for number, batch in enumerate(whole):
        for name in ("image", "seed"):
            assert np.array_equal(batch[name], np.concatenate([half[number][name] for half in halves]))
        values = np.concatenate([half[number]["boxes"].values for half in halves])
        assert np.array_equal(batch["boxes"].values, values)
    seeds = np.concatenate([batch["seed"] for batch in whole])
    assert len(set(seeds.tolist())) == 12
    assert seeds.min() >= 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mask": penstock.mask()}, "mask follows no field, but must follow an image"),
        ({"boxes": penstock.boxes().like("picture")}, "boxes follows 'picture', but must follow an image"),
        ({"labels": penstock.ragged("int64").like("image")}, "labels follows 'image', but must follow boxes"),
    ],
)
def test_annotation_that_follows_nothing_is_refused(tmp_path, fields, text):
    dataset = box_dataset(tmp_path / "d", BOXES, count=1)
    with pytest.raises(errors.ConfigError, match=text):
        dataset.fields(image=RANDOM, **fields)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: penstock.boxes(format="yxyx"), "not one of xyxy"),
        (lambda: penstock.boxes(min_area=float("nan")), "is out of range"),
        (lambda: penstock.keypoints(3, flip_order=(0, 0, 1)), "each number from 0 to 2 exactly once"),
    ],
)
def test_annotation_with_wrong_arguments_is_refused(make, text):
    with pytest.raises(errors.ConfigError, match=text):
        make()


@pytest.mark.parametrize(("dtype", "fill"), [("float32", 0), ("uint8", 256), ("int8", -129)])
def test_mask_with_wrong_arguments_is_refused(tmp_path, dtype, fill):
    dataset = box_dataset(tmp_path / "d", BOXES, count=1)
    spec = penstock.mask(dtype=dtype, fill=fill).of("mask.png").like("image")
    with pytest.raises(errors.ConfigError, match="mask"):
        batches(dataset.fields(image=RANDOM, mask=spec))


def test_unsupported_image_is_named_with_its_record(tmp_path):
    image = encoded(grid(9, 9)[0])
    dataset = write(tmp_path / "d", [{"img": image}, {"img": b"GIF89a" + bytes(20)}])
    with pytest.raises(errors.Unsupported, match=r"GIF \(.*a\.tar record 1\)"):
        batches(dataset.fields(image=penstock.image(8).of("img")))
