# SPDX-License-Identifier: Apache-2.0
"""Compares the JPEG decoding rates (images per second, one thread) of Penstock, Pillow and torchvision.

    cargo build --release -p penstock-record --example image_rate
    python benches/image_decode.py target/release/examples/image_rate

Pillow (or Pillow-SIMD) and torchvision are measured if they can be imported. Rounds are interleaved. The best
round of each program counts, since other work on the machine can only slow it down. Only the ratios carry over to other
machines.
"""

import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

IMAGES, SECONDS, ROUNDS = 64, 3.0, 3


def picture(seed: int) -> bytes:
    """A JPEG of 500 x 375, quality 90, about 100 KB (typical of ImageNet), with noise at every scale like a photograph."""
    random = np.random.default_rng(seed)
    total = np.zeros((375, 500, 3))
    for side, weight in [(4, 60), (16, 40), (64, 25), (250, 14)]:
        coarse = random.normal(128, weight, (side, side, 3)).clip(0, 255).astype(np.uint8)
        total += np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)).astype(float) - 128
    raw = io.BytesIO()
    Image.fromarray((total + 128).clip(0, 255).astype(np.uint8)).save(raw, "JPEG", quality=90)
    return raw.getvalue()


def random_crop(random: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Draws a random crop at torchvision's cost, without its generator. -> left, top, right, bottom"""
    for _ in range(10):
        area, aspect = width * height * random.uniform(0.08, 1), np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(float(np.sqrt(area * aspect))), round(float(np.sqrt(area / aspect)))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            return x, y, x + w, y + h
    return 0, 0, width, height


def pillow(images: list[bytes], mode: str) -> Callable[[int], object]:
    random = np.random.default_rng(1)

    def one(at: int) -> object:
        image = Image.open(io.BytesIO(images[at % len(images)])).convert("RGB")
        if mode == "center-uint8":
            short = min(image.size)
            image = image.resize((image.width * 256 // short, image.height * 256 // short), Image.Resampling.BILINEAR)
            left, top = (image.width - 224) // 2, (image.height - 224) // 2
            return np.asarray(image.crop((left, top, left + 224, top + 224)))
        image = image.crop(random_crop(random, *image.size)).resize((224, 224), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if mode == "random-uint8":
            return np.asarray(image)
        floats = np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255
        mean = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
        return (floats - mean) / np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]

    return one


def torchvision(images: list[bytes], mode: str) -> Callable[[int], object] | None:
    try:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg
        from torchvision.transforms import v2
    except (ImportError, RuntimeError):
        return None
    torch.set_num_threads(1)
    data = [torch.frombuffer(bytearray(image), dtype=torch.uint8) for image in images]
    crop = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    steps = {
        "random-uint8": crop,
        "random-float32-chw": [*crop, *last],
        "center-uint8": [v2.Resize(256, antialias=True), v2.CenterCrop(224)],
    }
    work = v2.Compose(steps[mode])
    return lambda at: work(decode_jpeg(data[at % len(data)], ImageReadMode.RGB))


def rate(one: Callable[[int], object]) -> float:
    one(0)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        one(count)
        count += 1
    return count / (time.perf_counter() - start)


def main(program: str) -> None:
    images = [picture(seed) for seed in range(IMAGES)]
    print(
        f"{IMAGES} images of {sum(map(len, images)) / IMAGES / 1000:.0f} kB, load {Path('/proc/loadavg').read_text().split()[0]}"
    )
    best: dict[tuple[str, str], float] = {}

    def note(mode: str, name: str, value: float) -> None:
        best[mode, name] = max(value, best.get((mode, name), 0))

    with tempfile.TemporaryDirectory() as folder:
        for at, image in enumerate(images):
            (Path(folder) / f"{at:03}.jpg").write_bytes(image)
        for _ in range(ROUNDS):
            lines = subprocess.run([program, folder, str(SECONDS)], check=True, capture_output=True, text=True).stdout
            for line in lines.splitlines():
                mode, value = line.split()
                note(mode, "penstock", float(value))
                note(mode, "Pillow", rate(pillow(images, mode)))
                if (one := torchvision(images, mode)) is not None:
                    note(mode, "torchvision", rate(one))
    for (mode, name), value in best.items():
        print(f"{mode:20} {name:12} {value:8.1f} images/s  penstock is {best[mode, 'penstock'] / value:.2f} times that")


if __name__ == "__main__":
    main(sys.argv[1])
