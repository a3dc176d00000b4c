# SPDX-License-Identifier: Apache-2.0
"""Generates the data for the feed benchmarks. The same parameters always produce the same bytes."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def volumes(folder: Path, count: int, voxels: int = 128) -> None:
    """CosmoFlow volumes of 128^3 x 4 int16, gzip'd TFRecords of one record: 16.8 MB each when inflated."""
    argv = [PENSTOCK, "dataset", "cosmoflow", str(folder), "--samples", str(count), "--cubes-per-universe", "8"]
    argv += ["--voxels", str(voxels)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def picture(seed: int) -> bytes:
    """A JPEG of 500 x 375, quality 90, about 100 KB (typical of ImageNet), with noise at every scale like a photograph."""
    from PIL import Image

    random = np.random.default_rng(seed)
    total = np.zeros((375, 500, 3))
    for side, weight in [(4, 60), (16, 40), (64, 25), (250, 14)]:
        coarse = random.normal(128, weight, (side, side, 3)).clip(0, 255).astype(np.uint8)
        total += np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)).astype(float) - 128
    raw = io.BytesIO()
    Image.fromarray((total + 128).clip(0, 255).astype(np.uint8)).save(raw, "JPEG", quality=90)
    return raw.getvalue()


def tars(folder: Path, shards: int, each: int) -> None:
    """Writes WebDataset shards of `.jpg` and `.cls` members, in the environment of WebDataset, which has Pillow."""
    python = Path(__file__).resolve().parents[3] / ".tools/peers/webdataset/bin/python"
    subprocess.run([str(python), __file__, str(folder), str(shards), str(each)], check=True)


def add_member(out: tarfile.TarFile, name: str, content: bytes) -> None:
    """Adds a file to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    out.addfile(member, io.BytesIO(content))


def write_tars(folder: Path, shards: int, each: int) -> None:
    """Writes the shards of `tars` in this process, which must have Pillow."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:04d}.tar", "w", format=tarfile.USTAR_FORMAT) as out:
            for row in range(each):
                number = shard * each + row
                for extension, content in (("jpg", picture(number)), ("cls", str(number % 1000).encode())):
                    add_member(out, f"{number:08d}.{extension}", content)


def records(folder: Path, shards: int, each: int, size: int) -> None:
    """Writes plain TFRecord files of many records, each with one feature of `size` bytes."""
    from penstock import _native

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(size)
    for shard in range(shards):
        with (folder / f"train-{shard:04d}.tfrecord").open("wb") as out:
            for _ in range(each):
                out.write(_native.encode_tfrecord({"x": random.bytes(size)}))


def objects(folder: Path, count: int, size: int) -> None:
    """Objects of one raw record each."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(size)
    for number in range(count):
        (folder / f"{number:05d}.bin").write_bytes(random.bytes(size))


if __name__ == "__main__":
    write_tars(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
