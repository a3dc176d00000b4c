# SPDX-License-Identifier: Apache-2.0
"""Writes images with Pillow, and the samples that Pillow computes from them, to one archive, for tests/it/image.rs.

The archive contains NAME.jpg and NAME.png. For each, it has NAME.full (RGB pixels), NAME.none (resized to 32 x 24),
NAME.center (Resize(40), then CenterCrop((24, 32))) and NAME.random.KEY (RandomResizedCrop to 32 x 24 with this key).
Also writes random_crops.txt: results of torchvision's `RandomResizedCrop.get_params`, but with the random numbers of
SplitMix64. Needs numpy and Pillow.
"""

import io
import math
from pathlib import Path

import numpy as np
from archive import write_archive
from PIL import Image, ImageOps

HERE = Path(__file__).parent
MASK = (1 << 64) - 1
members: dict[str, bytes] = {}


class Draws:
    """Random number generator SplitMix64, as in src/image/crop.rs."""

    def __init__(self, key: int) -> None:
        self.state = key

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = ((self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    def uniform(self, least: float, most: float) -> float:
        return least + (most - least) * ((self.next() >> 11) / (1 << 53))

    def randint(self, n: int) -> int:
        return (self.next() * n) >> 64


def get_params(width: int, height: int, draws: Draws) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, with its variable names. Returns x, y, w, h."""
    scale, ratio = (0.08, 1.0), (3.0 / 4.0, 4.0 / 3.0)
    area = height * width
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        target_area = area * draws.uniform(*scale)
        aspect_ratio = math.exp(draws.uniform(*log_ratio))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = draws.randint(height - h + 1)
            j = draws.randint(width - w + 1)
            return j, i, w, h
    in_ratio = float(width) / float(height)
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w = width
        h = height
    return (width - w) // 2, (height - h) // 2, w, h


lines = []
for key in range(60):
    for width, height in [(500, 375), (33, 47), (64, 2000), (3000, 40), (1, 1)]:
        draws = Draws(key * 0x1234567)
        draws.next()  # used by the flip
        lines.append(" ".join(map(str, (key * 0x1234567, width, height, *get_params(width, height, draws)))))
(HERE / "random_crops.txt").write_text("\n".join(lines) + "\n")


def picture(width: int, height: int) -> Image.Image:
    """Draws a test image with colour gradients, an edge and some noise."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(9 * x + 4 * y), np.cos(7 * x * y + 2), np.sin(14 * (x - 0.5) ** 2 + 10 * y)]
    rgb = np.stack(waves, -1) * 90 + 128 + np.random.default_rng(width).normal(0, 4, (height, width, 1))
    rgb[(x - 0.4) ** 2 + (y - 0.3) ** 2 < 0.03] = (240, 30, 60)
    return Image.fromarray(rgb.clip(0, 255).astype(np.uint8))


def expect(name: str, stored: Image.Image, *, whole: bool = True) -> None:
    image = stored.convert("RGB")
    if whole:
        members[f"{name}.full"] = image.tobytes()
    members[f"{name}.none"] = image.resize((32, 24), Image.Resampling.BILINEAR).tobytes()
    width, height = image.size
    short, long = min(width, height), max(width, height)
    long = int(40 * long / short)
    resized = image.resize((40, long) if width <= height else (long, 40), Image.Resampling.BILINEAR)
    left, top = round((resized.width - 32) / 2.0), round((resized.height - 24) / 2.0)
    members[f"{name}.center"] = resized.crop((left, top, left + 32, top + 24)).tobytes()
    for key in (1, 2, 3):
        draws = Draws(key)
        draws.next()
        x, y, w, h = get_params(width, height, draws)
        crop = image.crop((x, y, x + w, y + h)).resize((32, 24), Image.Resampling.BILINEAR)
        members[f"{name}.random.{key}"] = crop.tobytes()


def save(name: str, image: Image.Image, *, whole: bool = True, **options: object) -> None:
    raw = io.BytesIO()
    form = "JPEG" if name.endswith("jpg") else "PNG"
    image.save(raw, form, **options)
    members[name] = raw.getvalue()
    expect(name, Image.open(io.BytesIO(raw.getvalue())), whole=whole)


small, large = picture(47, 33), picture(320, 240)
save("420.jpg", small, quality=90, subsampling="4:2:0")
save("422.jpg", small, quality=90, subsampling="4:2:2")
save("444.jpg", small, quality=90, subsampling="4:4:4")
save("restart.jpg", small, quality=90, restart_marker_blocks=2)
save("progressive.jpg", small, quality=90, progressive=True)
save("grey.jpg", small.convert("L"), quality=90)
save("cmyk.jpg", small.convert("CMYK"), quality=90)
save("large420.jpg", large, quality=85, subsampling="4:2:0", whole=False)
save("large444.jpg", large, quality=85, subsampling="4:4:4", whole=False)
save("largeprogressive.jpg", large, quality=80, progressive=True, whole=False)
save("tall.jpg", picture(20, 300), quality=90)
save("rgb.png", small)
save("rgba.png", Image.merge("RGBA", (*small.split(), small.convert("L"))))
save("grey.png", small.convert("L"))
save("greyalpha.png", Image.merge("LA", (small.convert("L"), small.split()[0])))
save("palette.png", small.convert("P", palette=Image.Palette.ADAPTIVE, colors=16))
save("transparent.png", small.convert("P", palette=Image.Palette.ADAPTIVE, colors=16), transparency=3)
save("bits.png", small.convert("1"))

# Pillow converts 16-bit images differently from torchvision and others. The expected values are the upper 8 bits.
deep = Image.fromarray((np.asarray(small.convert("L")).astype(np.uint16) << 8) | 77)
raw = io.BytesIO()
deep.save(raw, "PNG")
members["deep.png"] = raw.getvalue()
expect("deep.png", small.convert("L"))

for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = io.BytesIO()
    small.save(raw, "JPEG", quality=90, exif=exif)
    members[f"exif{orientation}.jpg"] = raw.getvalue()
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(raw.getvalue())))
    expect(f"exif{orientation}.jpg", shown, whole=False)

write_archive("image.tar.gz", members)
