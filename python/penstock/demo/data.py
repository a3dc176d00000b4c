# SPDX-License-Identifier: Apache-2.0
"""Generates the demo's data, gzip'd and raw: small samples for training, larger ones for the storage comparison."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from typing import TYPE_CHECKING

from penstock.errors import NoSpace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.demo.sizes import Size

__all__ = ["check_space", "inflate", "make", "multiply"]

HELD_OUT_FROM = 1_000_000  # number of the first held-out universe; every number has different parameters
LEARN_BOX_MPC = 600.0  # a larger box has more modes, so fewer samples suffice (docs/decisions/0702)
_NUMBER = re.compile(r"_a(\d{7})_")


def check_space(folder: Path, need_bytes: int) -> None:
    """Raise NoSpace if the demo's data would not fit."""
    free = shutil.disk_usage(folder).free
    if free < need_bytes:
        raise NoSpace(
            f"{folder} has {free / 1e9:.1f} GB free, but the demo's data need {need_bytes / 1e9:.1f} GB",
            hint="use --output on another disk",
            need=need_bytes,
            free=free,
        )


def make(bucket: Path, size: Size, seed: int, progress: Callable[[str], None]) -> None:
    """Fill a bucket: `gzip/{train,held-out,volumes}`, and the same files without the suffix `.gz` under `raw/`.

    Each volume of the comparison gets several names through hard links, to save generation time. The store and the
    loader treat every name as a separate object.
    """
    from penstock.datasets.cosmoflow import generate

    packed = bucket / "gzip"
    parts = {
        "train": (size.learn_samples, size.learn_voxels, 0, LEARN_BOX_MPC),
        "held-out": (size.held_out, size.learn_voxels, HELD_OUT_FROM, LEARN_BOX_MPC),
        "volumes": (size.distinct, size.voxels, 0, None),
    }
    for name, (samples, voxels, first, box) in parts.items():
        progress(f"{samples} {name} samples of {voxels}³")
        generate(
            packed / name, samples=samples, voxels=voxels, seed=seed, first_universe=first, box_mpc=box, compress="gzip"
        )
    progress("the same, raw")
    for name in parts:
        inflate(packed / name, bucket / "raw" / name)
    for copy in (packed / "volumes", bucket / "raw" / "volumes"):
        multiply(copy, size.distinct, size.volumes)


def inflate(source: Path, target: Path) -> None:
    """Decompress the .gz files of a folder into another, under their names without that suffix."""
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        with gzip.open(file) as packed, (target / file.name.removesuffix(".gz")).open("wb") as raw:
            shutil.copyfileobj(packed, raw, 1 << 20)


def multiply(folder: Path, distinct: int, wanted: int) -> None:
    """Create further names for the `distinct` files of a folder, as hard links, up to `wanted` names."""
    first = sorted(folder.iterdir())
    for i in range(distinct, wanted):
        original = first[i % distinct]
        os.link(original, folder / _NUMBER.sub(f"_a{i:07d}_", original.name))
