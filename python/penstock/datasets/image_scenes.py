# SPDX-License-Identifier: Apache-2.0
"""Pixels of generated images: a 1/f background with objects of one class, encoded as JPEG with a given file size.

A process builds the background fields, textures and masks once. An image then needs only a few crops and masked copies,
so that most of the time is spent on encoding. Pixels are drawn in Y, Cb and Cr, which avoids the conversion from RGB.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from penstock.datasets.image_classes import HUES, MAX_CLASSES, SHAPES, TEXTURES, ImageClass

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Library", "Picture", "library"]

_PERIOD = 512  # side of the periodic fields; a power of two for the FFT
_UNIT = 64  # value of one standard deviation in the integer fields
_FIELDS = 4
_ROTATIONS = 5
_MASK = 192
MAX_ENLARGEMENT = 1.6
"""Largest side of an image, relative to the larger side of the nominal size."""

# Contrasts of the background in grey levels. At equal quality, a higher contrast gives a larger file, as more detail
# does in photographs.
_CONTRASTS = (16, 26, 37, 49, 62)
_QUALITIES = (30, 50, 65, 75, 83, 89, 93, 96, 98)
_MIN_QUALITY, _MAX_QUALITY = 25, 99
_CALIBRATION_SCENES = 3
_SIZE_TOLERANCE = 0.08  # of the logarithm of the size; after a larger error, the image is encoded again, in about 1 ms
_HEADER_BYTES = 600  # quantization and Huffman tables, which do not depend on the pixels

# (short side relative to the nominal short side, probability). For a nominal size of 500 x 400, the results are common
# sizes of ImageNet: 500 x 375, 500 x 400, 500 x 333, 500 x 500 and 500 x 281.
_ASPECTS = ((0.9375, 0.55), (1.0, 0.20), (0.8325, 0.15), (1.25, 0.06), (0.7025, 0.04))
_PORTRAIT = 0.25
_EXIF = 0.20
_FULL_CHROMA = 0.10  # 4:4:4 instead of 4:2:0
_GREY = 0.02  # about as frequent as in ImageNet
_CMYK = 0.002  # more frequent than in ImageNet (22 of 1.28 million), so that small datasets contain some
# If the file size differs from the median by at most this factor, the image has the nominal long side, like most
# photographs in ImageNet. Larger files have more pixels, and smaller files have fewer pixels.
_NOMINAL_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded image. `boxes` are (xmin, ymin, xmax, ymax) of the objects, relative to the sides."""

    jpeg: bytes
    width: int
    height: int
    mode: str
    boxes: tuple[tuple[float, float, float, float], ...]


@lru_cache(maxsize=2)
def library(width: int, height: int) -> Library:
    """Return the library of this process for a nominal size. It is built once, in about 0.3 s."""
    return Library(width, height)


class Library:
    """Library of fields, textures, masks and the table of file sizes for images of about `width` x `height` pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._longest = math.ceil(MAX_ENLARGEMENT * 1.25 * max(width, height))
        rng = np.random.default_rng(0)  # the library is the same for every seed of a dataset
        repeats = -(-(self._longest + _PERIOD) // _PERIOD)
        self._fields = [np.tile(_field(rng, slope), (repeats, repeats)) for slope in np.linspace(0.85, 1.1, _FIELDS)]
        self._textures = [
            np.tile(_stripes(rng, i, max(width, height)), (repeats, repeats)) for i in range(len(TEXTURES))
        ]
        self._masks = [[_mask(shape, turn) for turn in range(_ROTATIONS)] for shape in range(len(SHAPES))]
        self._exifs = [_exif(i) for i in range(8)]
        self._quality_axis = np.array(_QUALITIES, np.float64)
        self._log_bits, self._kinds, self._backgrounds = self._calibrate()

    def picture(self, rng: np.random.Generator, of: ImageClass, *, median_bytes: float, sigma: float) -> Picture:
        """Draw and encode one image.

        Args:
            rng: Random generator for all choices. The same state gives the same bytes.
            of: Class of the objects.
            median_bytes, sigma: Median of the file size, and standard deviation of its logarithm.
        """
        ratio = math.exp(sigma * float(np.clip(rng.standard_normal(), -3.5, 3.5)))
        u = rng.random(8)
        width, height = self._draw_size(ratio, u[0], u[1])
        mode = "CMYK" if u[2] < _CMYK else "L" if u[2] < _CMYK + _GREY else "YCbCr"
        full_chroma = mode == "YCbCr" and u[3] < _FULL_CHROMA
        exif = self._exifs[int(u[4] / _EXIF * len(self._exifs))] if u[4] < _EXIF else b""
        size_bytes = median_bytes * ratio
        kind = mode if mode != "YCbCr" else "444" if full_chroma else "420"
        log_bits = math.log(max(size_bytes - _HEADER_BYTES - len(exif), 64.0) * 8 / (width * height))
        background = int(_FIELDS * u[6])
        log_bits -= self._kinds[kind] + self._backgrounds[background]
        # The wanted quality varies, as it does among cameras and web sites. Use the contrast with which the quality for
        # the file size is closest to the wanted quality.
        quality_wanted = 80 + 19 * u[5]
        qualities = [float(np.interp(log_bits, bits, self._quality_axis)) for bits in self._log_bits]
        level = min(range(len(_CONTRASTS)), key=lambda i: abs(qualities[i] - quality_wanted))
        pixels, boxes = self._compose(rng, of, width, height, _CONTRASTS[level], background)
        image = _as_mode(pixels, mode)
        quality = round(qualities[level])
        jpeg = b""
        for _ in range(3):
            jpeg = _encode(image, quality, full_chroma=full_chroma, exif=exif)
            missing = math.log(max(size_bytes, 1.0) / len(jpeg))
            if abs(missing) <= _SIZE_TOLERANCE:
                break
            here = float(np.interp(quality, self._quality_axis, self._log_bits[level]))
            better = round(float(np.interp(here + missing, self._log_bits[level], self._quality_axis)))
            if better == quality:
                better = quality + (1 if missing > 0 else -1)
                if abs(missing) < 0.1 or not _MIN_QUALITY <= better <= _MAX_QUALITY:
                    break
            quality = better
        return Picture(jpeg, width, height, "RGB" if mode == "YCbCr" else mode, boxes)

    def _draw_size(self, ratio: float, aspect: float, portrait: float) -> tuple[int, int]:
        short = _ASPECTS[-1][0]
        for factor, probability in _ASPECTS:
            if aspect < probability:
                short = factor
                break
            aspect -= probability
        scale = 1.0 if 1 / _NOMINAL_RATIO < ratio < _NOMINAL_RATIO else math.sqrt(ratio)
        scale = min(max(scale, 0.4), MAX_ENLARGEMENT)
        width, height = max(16, round(self.width * scale)), max(16, round(self.height * scale * short))
        return (height, width) if portrait < _PORTRAIT else (width, height)

    def _compose(
        self, rng: np.random.Generator, of: ImageClass, width: int, height: int, contrast: int, background: int
    ) -> tuple[NDArray[np.uint8], tuple[tuple[float, float, float, float], ...]]:
        """Return pixels uint8 [height, width, 3] in Y, Cb, Cr, and the boxes of the objects of the class."""
        x = rng.integers(0, _PERIOD, 8).tolist()
        u = rng.random(6)
        field = self._fields[background]
        luma = field[x[1] : x[1] + height, x[2] : x[2] + width] * np.int16(contrast)
        luma >>= 6
        luma += np.int16(90 + 75 * u[0])
        tint = self._fields[x[3] % _FIELDS]
        chroma = []
        for i in (0, 1):
            plane = tint[x[4 + 2 * i] : x[4 + 2 * i] + height, x[5 + 2 * i] : x[5 + 2 * i] + width] >> 3
            plane += np.int16(128 + 36 * (u[1 + i] - 0.5))
            chroma.append(plane)
        planes = (luma, *chroma)
        side = min(width, height)
        # Draw a smaller object of another class, so that a model must find the larger object.
        if u[3] < 0.5:
            other = ImageClass(int(u[4] * MAX_CLASSES))
            self._draw_object(rng, planes, other, side * (0.1 + 0.12 * float(u[5])), contrast)
        boxes = [
            self._draw_object(rng, planes, of, side * float(rng.uniform(0.42, 0.8)), contrast)
            for _ in range(1 if u[5] < 0.8 else 2)
        ]
        pixels = np.empty((height, width, 3), np.uint8)
        for i, plane in enumerate(planes):
            np.clip(plane, 0, 255, out=plane)
            pixels[:, :, i] = plane
        return pixels, tuple(boxes)

    def _draw_object(
        self,
        rng: np.random.Generator,
        planes: tuple[NDArray[np.int16], ...],
        of: ImageClass,
        side: float,
        contrast: int,
    ) -> tuple[float, float, float, float]:
        height, width = planes[0].shape
        d = min(max(8, round(side)), height, width)
        u = rng.random(6)
        top, left = int(u[0] * (height - d + 1)), int(u[1] * (width - d + 1))
        mask = np.asarray(self._masks[of.shape][int(u[2] * _ROTATIONS)].resize((d, d), Image.Resampling.NEAREST)) > 0
        box = np.s_[top : top + d, left : left + d]
        y, x = rng.integers(0, _PERIOD, 2).tolist()
        inside = self._textures[of.texture][y : y + d, x : x + d] + (
            self._fields[of.number % _FIELDS][y : y + d, x : x + d] * np.int16(contrast // 2) >> 6
        )
        inside += np.int16(95 + 70 * u[3])
        np.copyto(planes[0][box], inside, where=mask)
        angle = 2 * math.pi * (of.hue + 0.5 * (float(u[4]) - 0.5)) / len(HUES)
        radius = 32 + 24 * float(u[5])
        for plane, part in zip(planes[1:], (math.cos(angle), math.sin(angle)), strict=True):
            here = plane[box]
            # Keep half of the background's variation; it looks like reflections on the object.
            np.copyto(here, ((here - np.int16(128)) >> 1) + np.int16(128 + radius * part), where=mask)
        return left / width, top / height, (left + d) / width, (top + d) / height

    def _calibrate(self) -> tuple[list[NDArray[np.float64]], dict[str, float], list[float]]:
        """Measure the logarithm of the bits per pixel at each contrast and quality, and how much each kind of JPEG and
        each background adds to this logarithm.
        """
        # A very small image consists mostly of headers, so calibrate with at least 64 x 64 pixels.
        width, height = max(self.width, 64), max(self.height, 64)

        def scene(number: int, contrast: int, background: int) -> NDArray[np.uint8]:
            rng = np.random.default_rng([1, number])
            return self._compose(rng, ImageClass(3 * number), width, height, contrast, background)[0]

        def log_bits(pixels: NDArray[np.uint8], quality: int, *, kind: str = "420") -> float:
            image = _as_mode(pixels, kind if kind in ("L", "CMYK") else "YCbCr")
            size = len(_encode(image, quality, full_chroma=kind == "444", exif=b"")) - _HEADER_BYTES
            return math.log(max(size, 16) * 8 / (width * height))

        middle = _FIELDS // 2
        table = []
        for contrast in _CONTRASTS:
            scenes = [scene(number, contrast, middle) for number in range(_CALIBRATION_SCENES)]
            bits = np.array([np.mean([log_bits(pixels, quality) for pixels in scenes]) for quality in _QUALITIES])
            table.append(np.maximum.accumulate(bits) + 1e-9 * np.arange(len(bits)))
        usual = scene(0, _CONTRASTS[-2], middle)
        reference = log_bits(usual, 85)
        kinds = {kind: log_bits(usual, 85, kind=kind) - reference for kind in ("420", "444", "L", "CMYK")}
        backgrounds = [log_bits(scene(0, _CONTRASTS[-2], number), 85) - reference for number in range(_FIELDS)]
        return table, kinds, backgrounds


def _as_mode(pixels: NDArray[np.uint8], mode: str) -> Any:
    if mode == "L":
        return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0]))
    height, width = pixels.shape[:2]
    image = Image.frombytes("YCbCr", (width, height), pixels.data)
    return image.convert("RGB").convert("CMYK") if mode == "CMYK" else image


def _encode(image: Any, quality: int, *, full_chroma: bool, exif: bytes) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=0 if full_chroma else 2, exif=exif)
    return out.getvalue()


def _field(rng: np.random.Generator, slope: float) -> NDArray[np.int16]:
    """Return periodic noise, int16 [_PERIOD, _PERIOD], with the amplitude spectrum 1/f**slope.

    Source: in photographs, the slope is about 1 (Field 1987, J. Opt. Soc. Am. A 4, 2379).
    """
    f = np.hypot(np.fft.fftfreq(_PERIOD)[:, None], np.fft.rfftfreq(_PERIOD)[None, :])
    f[0, 0] = np.inf
    noise = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((_PERIOD, _PERIOD))) / f**slope, s=(_PERIOD, _PERIOD))
    scaled: NDArray[np.int16] = np.rint(np.clip(noise / noise.std(), -3.5, 3.5) * _UNIT).astype(np.int16)
    return scaled


def _stripes(rng: np.random.Generator, number: int, side: int) -> NDArray[np.int16]:
    """Return periodic stripes, int16 [_PERIOD, _PERIOD], in grey levels, with 11 or 22 periods per `side` pixels."""
    angle = math.pi * (number % 8) / 8
    cycles = min((11 if number < 8 else 22) * _PERIOD / side, _PERIOD / 4)
    along = [round(cycles * part) for part in (math.cos(angle), math.sin(angle))]
    if along == [0, 0]:
        along = [1, 0]
    grid = np.arange(_PERIOD) / _PERIOD
    warp = _field(rng, 2.0) * (0.5 / _UNIT)
    wave = np.sin(2 * math.pi * (along[0] * grid[None, :] + along[1] * grid[:, None]) + warp)
    levels: NDArray[np.int16] = np.rint(34 * wave).astype(np.int16)
    return levels


def _mask(shape: int, turn: int) -> Any:
    """Return the mask of a shape, rotated by up to 20 degrees, as a Pillow image of the values 0 and 255."""
    axis = (np.arange(_MASK) + 0.5) / _MASK * 2 - 1
    angle = math.radians(-20 + 40 * turn / (_ROTATIONS - 1))
    x = axis[None, :] * math.cos(angle) - axis[:, None] * math.sin(angle)
    y = axis[None, :] * math.sin(angle) + axis[:, None] * math.cos(angle)
    r, a = np.hypot(x, y), np.arctan2(x, -y)
    inside = {
        "disc": lambda: r < 0.95,
        "square": lambda: np.maximum(abs(x), abs(y)) < 0.72,
        "triangle": lambda: (y < 0.62) & (y > 1.9 * abs(x) - 0.95),
        "ring": lambda: (r < 0.95) & (r > 0.55),
        "cross": lambda: (np.minimum(abs(x), abs(y)) < 0.24) & (np.maximum(abs(x), abs(y)) < 0.88),
        "star": lambda: r < 0.42 + 0.53 * abs(2 * ((a / (2 * math.pi) * 5) % 1) - 1) ** 1.5,
        "crescent": lambda: (r < 0.95) & (np.hypot(x - 0.42, y) > 0.75),
        "bar": lambda: (abs(x) < 0.9) & (abs(y) < 0.28),
    }[SHAPES[shape]]()
    return Image.fromarray(inside.astype(np.uint8) * 255)


def _exif(number: int) -> bytes:
    """Return the EXIF block of a fictional camera. One block in eight has the orientation of a rotated camera."""
    exif = Image.Exif()
    exif[0x010F] = "Penstock"  # Make
    exif[0x0110] = f"Camera {number + 1}"  # Model
    exif[0x0112] = 6 if number == 7 else 1  # Orientation
    exif[0x011A], exif[0x011B], exif[0x0128] = 72.0, 72.0, 2  # X and Y resolution, in inches
    exif[0x0131] = "penstock dataset images"  # Software
    exif[0x0132] = f"2008:0{number + 1}:01 12:00:00"  # DateTime
    block: bytes = exif.tobytes()
    return block
