# SPDX-License-Identifier: Apache-2.0
"""Tests grey, RGBA and 16-bit samples against Pillow, for each kind of stored image."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from PIL import Image

import penstock
from penstock import errors

SIDE = 32


def colours(channels=3, seed=1, dtype="uint8"):
    values = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, channels)).astype(dtype)
    return values[..., 0] if channels == 1 else values


def decoded(folder, image, name="a.png", spec=None, **arguments):
    data = io.BytesIO()
    image.save(data, {"png": "PNG", "jpg": "JPEG", "ebp": "WEBP", "iff": "TIFF"}[name[-3:]], **arguments)
    (folder / name).write_bytes(data.getvalue())
    dataset = penstock.open(f"{folder}/{name}", format=penstock.formats.images())
    (batch,) = penstock.Loader(dataset.fields(image=spec), batch_size=1, rank=0, world=1)
    data.seek(0)
    return batch["image"][0], Image.open(data)


def palette(with_alpha):
    image = Image.fromarray(colours(1) % 8).convert("P")
    image.putpalette(list(np.random.default_rng(2).integers(0, 256, 24)))
    if with_alpha:
        image.info["transparency"] = bytes(range(0, 256, 32))
    return image


IMAGES = {
    "grey": lambda: Image.fromarray(colours(1)),
    "rgb": lambda: Image.fromarray(colours()),
    "rgba": lambda: Image.fromarray(colours(4)),
    "grey_alpha": lambda: Image.fromarray(colours(2)),
    "palette": lambda: palette(with_alpha=False),
    "palette_alpha": lambda: palette(with_alpha=True),
    "bits": lambda: Image.fromarray(colours(1) > 128),
}


@pytest.mark.parametrize("stored", IMAGES)
@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_png_converts_to_channels_as_pillow_does(tmp_path, stored, channels, mode):
    image = IMAGES[stored]()
    arguments = {"transparency": image.info["transparency"]} if stored == "palette_alpha" else {}
    have, kept = decoded(tmp_path, image, spec=penstock.image(SIDE, crop="none", channels=channels), **arguments)
    want = np.asarray(kept.convert("RGBA").convert(mode))
    assert have.shape == (SIDE, SIDE, channels)
    assert np.abs(have.astype(int) - want.reshape(have.shape)).max() <= (mode == "L")


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (4, "RGBA")])
def test_jpeg_converts_to_channels_as_pillow_does(tmp_path, channels, mode):
    smooth = Image.fromarray(colours()).resize((64, 64), Image.Resampling.BICUBIC)
    for image in (smooth, smooth.convert("L"), smooth.convert("CMYK")):
        spec = penstock.image(64, crop="none", channels=channels)
        have, kept = decoded(tmp_path, image, "a.jpg", spec, quality=95)
        want = np.asarray(kept.convert("RGB").convert(mode)).reshape(have.shape)
        assert np.abs(have.astype(int) - want).max() <= (3 if channels == 1 else 0)


@pytest.mark.filterwarnings("ignore:The image decoding")
def test_jpeg_grey_is_torchvision_s(tmp_path):
    import torchvision

    smooth = Image.fromarray(colours()).resize((64, 64), Image.Resampling.BICUBIC)
    have, _ = decoded(tmp_path, smooth, "a.jpg", penstock.image(64, crop="none", channels=1), quality=90)
    want = torchvision.io.decode_image(str(tmp_path / "a.jpg"), torchvision.io.ImageReadMode.GRAY)
    assert np.array_equal(have[..., 0], want[0].numpy())


def test_alpha_weighs_the_colours_of_a_resize_as_in_pillow(tmp_path):
    spec = penstock.image(12, crop="none", channels=4)
    have, kept = decoded(tmp_path, Image.fromarray(colours(4) // 2 + 127), spec=spec)
    want = np.asarray(kept.resize((12, 12), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(have - want).max() <= 4  # colours are divided by alpha, so rounding errors grow
    assert np.abs(have - want).mean() <= 0.7


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_png_of_16_bits_keeps_them_only_in_uint16(tmp_path, layout, flip):
    values = np.random.default_rng(3).integers(0, 65536, (SIDE, SIDE)).astype(np.uint16)
    given = {"crop": "none", "channels": 1, "flip": flip, "layout": layout}
    have, _ = decoded(tmp_path, Image.fromarray(values), spec=penstock.image(SIDE, dtype="uint16", **given))
    want = values[:, ::-1] if flip else values
    assert have.dtype == np.uint16
    assert np.array_equal(have.reshape(SIDE, SIDE), want)
    narrow, _ = decoded(tmp_path, Image.fromarray(values), spec=penstock.image(SIDE, **given))
    assert np.array_equal(narrow.reshape(SIDE, SIDE), want >> 8)


def test_png_of_8_bits_is_scaled_to_16(tmp_path):
    image = Image.fromarray(colours())
    have, _ = decoded(tmp_path, image, spec=penstock.image(SIDE, crop="none", dtype="uint16"))
    assert np.array_equal(have, np.asarray(image).astype(np.uint16) * 257)
    small, _ = decoded(tmp_path, image, spec=penstock.image(12, crop="none", dtype="uint16"))
    want = np.asarray(image.resize((12, 12), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(small / 257 - want).max() <= 1


@pytest.mark.parametrize("channels", [1, 4])
def test_float_samples_normalise_the_colours_only(tmp_path, channels):
    mean, std = ([0.4], [0.2]) if channels == 1 else ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    image = Image.fromarray(colours(channels))
    spec = penstock.image(SIDE, crop="none", dtype="float32", channels=channels, mean=mean, std=std)
    have, _ = decoded(tmp_path, image, spec=spec)
    scaled = np.asarray(image).reshape(SIDE, SIDE, channels) / 255
    parts = channels if channels == 1 else 3
    assert np.allclose(have[..., :parts], (scaled[..., :parts] - mean) / std, atol=1e-5)
    assert np.allclose(have[..., parts:], scaled[..., parts:], atol=1e-6)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 300), (300, 1)])
def test_image_of_one_pixel_or_line_fills_the_sample(tmp_path, width, height):
    values = np.full((height, width, 3), 77, np.uint8)
    for crop in ("none", "center", "random"):
        have, _ = decoded(tmp_path, Image.fromarray(values), spec=penstock.image(8, crop=crop))
        assert (have == 77).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"channels": 2}, "channels must be 1"),
        ({"dtype": "int16"}, "dtype must be uint8, uint16 or float32"),
        ({"channels": 1, "mean": [0.1, 0.2, 0.3]}, "mean must have 1 values"),
    ],
)
def test_channels_that_do_not_exist_are_refused(tmp_path, arguments, text):
    with pytest.raises(errors.ConfigError, match=text):
        decoded(tmp_path, Image.fromarray(colours()), spec=penstock.image(8, **arguments))


@pytest.mark.parametrize("stored", ["rgb", "rgba"])
@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_webp_without_loss_has_pillow_s_values(tmp_path, stored, channels, mode):
    spec = penstock.image(SIDE, crop="none", channels=channels)
    have, kept = decoded(tmp_path, IMAGES[stored](), "a.webp", spec, lossless=True, exact=True)
    want = np.asarray(kept.convert(mode)).reshape(have.shape)
    assert np.abs(have.astype(int) - want).max() <= (mode == "L")


@pytest.mark.parametrize("alpha", [False, True])
def test_webp_with_loss_is_close_to_pillow_s(tmp_path, alpha):
    smooth = Image.fromarray(colours(4 if alpha else 3)).resize((90, 70), Image.Resampling.BICUBIC)
    have, kept = decoded(tmp_path, smooth, "a.webp", penstock.image(70, 90, crop="none"), quality=80)
    assert np.abs(have.astype(int) - np.asarray(kept.convert("RGB"))).max() <= 2


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
@pytest.mark.parametrize("stored", ["grey", "rgb", "rgba", "bits"])
def test_tiff_has_pillow_s_values(tmp_path, stored, compression):
    spec = penstock.image(SIDE, crop="none")
    have, kept = decoded(tmp_path, IMAGES[stored](), "a.tiff", spec, compression=compression)
    assert np.array_equal(have, np.asarray(kept.convert("RGB")))


def test_tiff_of_16_bits_keeps_them(tmp_path):
    values = np.random.default_rng(3).integers(0, 65536, (SIDE, SIDE)).astype(np.uint16)
    spec = penstock.image(SIDE, crop="none", channels=1, dtype="uint16")
    have, _ = decoded(tmp_path, Image.fromarray(values), "a.tiff", spec)
    assert np.array_equal(have[..., 0], values)


def test_tiff_that_is_not_supported_is_named(tmp_path):
    for image in (Image.fromarray(colours(1).astype(np.float32)), palette(with_alpha=False)):
        with pytest.raises(errors.Unsupported, match="TIFF"):
            decoded(tmp_path, image, "a.tiff", penstock.image(8))


@pytest.mark.parametrize("form", ["WEBP", "TIFF", "PNG"])
def test_damaged_image_never_ends_the_process(tmp_path, form):
    rng = np.random.default_rng(4)
    whole = []
    for stored in ("rgb", "rgba", "grey"):
        out = io.BytesIO()
        given = {"TIFF": {"compression": "tiff_lzw"}, "WEBP": {"lossless": stored == "rgb"}, "PNG": {}}[form]
        IMAGES[stored]().save(out, form, **given)
        whole.append(out.getvalue())
    for number in range(150):
        data = bytearray(whole[number % 3])
        if number % 5 == 0:
            data = data[: rng.integers(1, len(data))]
        for at in rng.integers(0, min(len(data), 400), rng.integers(1, 6)):
            data[at] = rng.integers(0, 256)
        (tmp_path / f"{number:03}.png").write_bytes(data)
    fields = {
        "image": penstock.image(16, crop="random", max_pixels=1 << 20),
        "mask": penstock.mask(dtype="int64", max_pixels=1 << 20).of("image").like("image"),
    }
    for names in (["image"], ["image", "mask"]):
        dataset = penstock.open(tmp_path, format=penstock.formats.images())
        samples = penstock.torch.MapDataset(dataset.fields(**{name: fields[name] for name in names}))
        read = 0
        for number in range(150):
            with contextlib.suppress(errors.Corrupt, errors.Mismatch, errors.Unsupported):
                read += samples[number] is not None
        assert read < 150


def test_unknown_crop_is_an_error_at_once():
    with pytest.raises(errors.ConfigError, match="crop 'letterbox' is not one of random, center, pad, none"):
        penstock.image(16, crop="letterbox")
