# SPDX-License-Identifier: Apache-2.0
"""Tests colour and geometric operations: their values are torchvision's, and their choice depends only on seed, epoch
and position.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import penstock
from penstock import errors

SIDE = 40


def picture(seed=1, side=SIDE):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:side, 0:side] / side
    waves = np.stack([np.sin(6 * x + 3 * y), np.cos(5 * x * y), np.sin(9 * (x - 0.5) ** 2)], -1)
    pixels = 120 + 70 * waves + rng.normal(0, 12, (side, side, 3))
    pixels[5:15, 20:30] = (250, 20, 60)
    pixels[25:30, 5:12] = 77  # grey: no hue
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(12):
        Image.fromarray(picture(number)).save(folder / f"{number:02}.png")
    return folder


def plain():
    return penstock.image(SIDE, crop="none")


def read(folder, spec, *, epoch=0, seed=None, **fields):
    dataset = penstock.open(folder).fields(image=spec, **fields)
    dataset = dataset if seed is None else dataset.shuffle(seed=seed)
    loader = penstock.Loader(dataset, batch_size=12, rank=0, world=1)
    loader.set_epoch(epoch)
    (batch,) = loader
    return batch["image"]


CALLS = [
    ("brightness", 1.4, "adjust_brightness", (1.4,)),
    ("brightness", 0.3, "adjust_brightness", (0.3,)),
    ("contrast", 1.9, "adjust_contrast", (1.9,)),
    ("contrast", 0.2, "adjust_contrast", (0.2,)),
    ("saturation", 1.7, "adjust_saturation", (1.7,)),
    ("saturation", 0.0, "adjust_saturation", (0.0,)),
    ("sharpness", 1.9, "adjust_sharpness", (1.9,)),
    ("sharpness", 0.1, "adjust_sharpness", (0.1,)),
    ("hue", 0.1, "adjust_hue", (0.1,)),
    ("hue", -0.45, "adjust_hue", (-0.45,)),
    ("posterize", 3, "posterize", (3,)),
    ("posterize", 0, "posterize", (0,)),
    ("solarize", 128, "solarize", (128,)),
    ("solarize", 0, "solarize", (0,)),
    ("autocontrast", 0, "autocontrast", ()),
    ("equalize", 0, "equalize", ()),
    ("invert", 0, "invert", ()),
]


@pytest.mark.parametrize(("operation", "value", "function", "arguments"), CALLS)
def test_color_operation_has_torchvision_s_values(folder, operation, value, function, arguments):
    import torch
    from torchvision.transforms.v2 import functional

    have = read(folder, plain().augment(operation, value)).astype(int)
    for number in range(12):
        given = torch.from_numpy(picture(number)).permute(2, 0, 1)
        want = getattr(functional, function)(given, *arguments).permute(1, 2, 0).numpy()
        difference = np.abs(have[number] - want)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize(
    ("operation", "value"),
    [("rotate", 25.0), ("rotate", -110.0), ("shear_x", 0.31), ("shear_y", -0.23), ("translate_x", 0.3)],
)
def test_geometric_operation_has_torchvision_s_values(folder, operation, value):
    import math

    import torch
    from torchvision.transforms.v2 import functional

    have = read(folder, plain().augment(operation, value, fill=9))
    given = torch.from_numpy(picture(3)).permute(2, 0, 1)
    none = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], "fill": [9.0]}
    shear = math.degrees(math.atan(value))
    calls = {
        "rotate": lambda: functional.rotate(given, value, fill=[9.0]),
        "shear_x": lambda: functional.affine(given, **{**none, "shear": [shear, 0.0], "center": [0, 0]}),
        "shear_y": lambda: functional.affine(given, **{**none, "shear": [0.0, shear], "center": [0, 0]}),
        "translate_x": lambda: functional.affine(given, **{**none, "translate": [int(value * SIDE), 0]}),
    }
    want = calls[operation]().permute(1, 2, 0).numpy()
    assert (have[3] == want).all(-1).mean() > 0.99  # rounding of coordinates in float32 or float64


def test_grayscale_is_torchvision_s(folder):
    import torch
    from torchvision.transforms.v2 import functional

    have = read(folder, plain().augment("grayscale"))
    want = functional.rgb_to_grayscale(torch.from_numpy(picture(0)).permute(2, 0, 1), 3).permute(1, 2, 0).numpy()
    assert np.abs(have[0].astype(int) - want).max() <= 1


POLICIES = {
    "jitter": lambda spec: spec.jitter(0.4, 0.4, 0.4, 0.1),
    "randaugment": lambda spec: spec.randaugment(3, 12),
    "trivialaugment": lambda spec: spec.trivialaugment(),
    "half": lambda spec: spec.augment("invert", p=0.5),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_augmentation_depends_on_seed_and_epoch_only(folder, policy):
    spec = POLICIES[policy](penstock.image(24, crop="random", flip=True))
    first = read(folder, spec, seed=1)
    assert np.array_equal(first, read(folder, spec, seed=1))
    assert not np.array_equal(first, read(folder, spec, seed=1, epoch=1))
    dataset = penstock.open(folder).fields(image=spec).shuffle(seed=1)
    halves = [next(iter(penstock.Loader(dataset, batch_size=6, rank=rank, world=2))) for rank in (0, 1)]
    assert np.array_equal(first, np.concatenate([half["image"] for half in halves]))


def test_augmentation_does_not_move_the_crop(folder):
    base = penstock.image(24, crop="random", flip=True)
    assert np.array_equal(read(folder, base, seed=1), 255 - read(folder, base.augment("invert"), seed=1))


def test_augmentation_with_probability_changes_that_share_of_samples(folder):
    changed = 0
    for epoch in range(10):
        images = read(folder, plain().augment("invert", p=0.3), seed=1, epoch=epoch)
        originals = read(folder, plain(), seed=1, epoch=epoch)
        changed += (images != originals).any((1, 2, 3)).sum()
    assert 15 <= changed <= 60  # of 120


def test_augmentation_comes_before_normalisation(folder):
    spec = penstock.image(SIDE, crop="none", dtype="float32", layout="CHW", mean=[0.5] * 3, std=[0.25] * 3)
    have = read(folder, spec.augment("posterize", 2))
    want = ((picture(0) & 0xC0) / 255 - 0.5) / 0.25
    assert np.allclose(have[0], want.transpose(2, 0, 1), atol=1e-5)


def test_rotation_moves_mask_boxes_and_keypoints_too(tmp_path):
    import tarfile

    labels = np.zeros((60, 80), np.uint8)
    labels[20:30, 30:50] = 200
    files = {"img.png": np.repeat(labels[..., None], 3, 2), "mask.png": labels}
    arrays = {"box.npy": np.array([[30.0, 20, 50, 30]]), "kp.npy": np.array([[40.0, 25]])}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as out:
        for name, values in {**files, **arrays}.items():
            data = io.BytesIO()
            Image.fromarray(values).save(data, "PNG") if name in files else np.save(data, values)
            member = tarfile.TarInfo(f"0.{name}")
            member.size = len(data.getvalue())
            data.seek(0)
            out.addfile(member, data)
    for operation, value in [("rotate", 30.0), ("shear_x", 0.25), ("translate_y", 0.2)]:
        spec = penstock.image(60, 80, crop="none", flip=1.0).of("img.png").augment(operation, value)
        fields = {
            "image": spec,
            "mask": penstock.mask(fill=255).of("mask.png").like("image"),
            "box": penstock.boxes().of("box.npy").like("image"),
            "point": penstock.keypoints().of("kp.npy").like("image"),
        }
        dataset = penstock.open(tmp_path / "a.tar").fields(**fields)
        (batch,) = penstock.Loader(dataset, batch_size=1, rank=0, world=1)
        mask = batch["mask"][0]
        assert (mask == 255).any()
        assert np.array_equal(mask == 200, batch["image"][0, ..., 0] == 200)
        y, x = np.nonzero(mask == 200)
        assert np.abs(batch["box"].values[0] - [x.min(), y.min(), x.max() + 1, y.max() + 1]).max() <= 1.5
        assert np.abs(batch["point"].values[0] - [x.mean() + 0.5, y.mean() + 0.5]).max() <= 0.6


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (lambda: plain().augment("blur"), "`blur` is not one of brightness"),
        (lambda: plain().augment("brightness"), "image: brightness needs a value"),
        (lambda: plain().augment("hue", 0.6), "hue must be a range inside -0.5..0.5"),
        (lambda: plain().augment("brightness", float("nan")), "brightness must have finite values"),
        (lambda: plain().augment("posterize", (5, 3)), "posterize must be a range"),
        (lambda: plain().augment("invert", p=1.5), "p must be a probability"),
        (lambda: plain().randaugment(2, 31), "magnitude must be below 31"),
        (lambda: plain().randaugment(-1), "num_ops must be at least 0"),
        (lambda: penstock.image(8, channels=1).augment("invert"), "needs 3 channels"),
        (lambda: plain().augment("rotate", 1, fill=256), "fill must be 0 to 255"),
    ],
)
def test_augmentation_with_wrong_arguments_is_refused(folder, spec, text):
    with pytest.raises(errors.ConfigError, match=text):
        read(folder, spec())
