# SPDX-License-Identifier: Apache-2.0
"""Tests JPEG decoding against Pillow: files with stray bytes, and the deviation when a reduced scale is decoded."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageFile

import penstock


def picture(side, seed):
    """Noise with the spectrum of photographs (1/f) and sharp-edged squares; mostly grey."""
    rng = np.random.default_rng(seed)
    waves = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    waves[0, 0] = 1
    noise = np.real(np.fft.ifft2(np.fft.fft2(rng.normal(size=(4, side, side))) / waves))
    noise /= noise.std()
    pixels = 127 + 45 * noise[:1] + 10 * noise[1:]
    for _ in range(12):
        x, y, width = rng.integers(0, side * 3 // 4), rng.integers(0, side * 3 // 4), rng.integers(8, side // 4)
        pixels[:, y : y + width, x : x + width] = rng.integers(0, 255, (3, 1, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def jpeg(side=512, seed=1, **arguments):
    out = io.BytesIO()
    picture(side, seed).save(out, "JPEG", quality=90, **arguments)
    return out.getvalue()


def decoded(folder, content, spec):
    (folder / "a.jpg").write_bytes(content)
    (batch,) = penstock.Loader(penstock.open(folder).fields(image=spec), batch_size=1, rank=0, world=1)
    return batch["image"][0]


def apart(found, want):
    difference = np.abs(found.astype(int) - np.asarray(want).astype(int))
    return difference.mean(), difference.max()


def resized(content, side):
    return Image.open(io.BytesIO(content)).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)


@pytest.mark.parametrize("side", [448, 256, 200, 128, 64, 32])
def test_image_that_is_exact_is_pillow_s_at_every_size(tmp_path, side):
    # Regression: decoding at a reduced scale could not be turned off.
    content = jpeg()
    mean, most = apart(
        decoded(tmp_path, content, penstock.image(side, crop="none", exact=True)), resized(content, side)
    )
    assert most <= 2
    assert mean < 0.5


def test_image_at_a_reduced_scale_stays_within_the_documented_difference(tmp_path):
    # docs/guides/formats.md states these limits.
    for seed in range(4):
        content = jpeg(seed=seed)
        for side, mean_limit, max_limit in [(300, 0.5, 2), (256, 5, 70), (128, 5, 70), (64, 5, 70)]:
            found = decoded(tmp_path, content, penstock.image(side, crop="none"))
            mean, most = apart(found, resized(content, side))
            assert mean <= mean_limit
            assert most <= max_limit


def stray(content, marker, junk):
    at = content.index(marker)
    return content[:at] + junk + content[at:]


def cut_app14(content):
    """An Adobe segment whose header states too few bytes, so the rest is stray bytes between markers."""
    return stray(content, b"\xff\xdb", b"\xff\xee\x00\x09Adobe\x00\x64\x00\x00\x00\x00\x00")


@pytest.mark.parametrize(
    "odd",
    [
        lambda content: stray(content, b"\xff\xdb", b"junk"),
        lambda content: stray(content, b"\xff\xc0", bytes(3000)),
        lambda content: stray(content, b"\xff\xc4", b"\x01\xff\x00\xff\xff"),
        lambda content: stray(content, b"\xff\xda", b"\n"),
        cut_app14,
    ],
)
def test_jpeg_with_stray_bytes_between_markers_is_read_as_pillow_reads_it(tmp_path, odd):
    # Regression: the error was "no marker at byte 81", but libjpeg skips bytes that are not a marker.
    content = odd(jpeg(side=48))
    want = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert np.array_equal(decoded(tmp_path, content, penstock.image(48, crop="none")), want)
