# SPDX-License-Identifier: Apache-2.0
"""Makes the study's images: ImageNet-like JPEGs in TFRecord shards, replicated as in the publication."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.datasets.images import ImageSpec, generate

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["evict", "make_images", "make_objects"]


def make_images(folder: Path, *, images: int, shards: int, replicate: int) -> Path:
    """Make `replicate` copies of `images` images; return the folder of the shards.

    Args:
        shards: Shards of one copy.
    """
    generate(folder, ImageSpec(images=images, classes=min(1000, images), shards=shards, replicate=replicate))
    return folder / "train"


def make_objects(folder: Path, *, images: int, replicate: int) -> Path:
    """Make images that are objects of their own, all below one prefix; return the folder of the data set."""
    generate(folder, ImageSpec(images=images, classes=1, replicate=replicate, format="folder"))
    return folder / "train"


def evict(folder: Path) -> None:
    """Drop the files of a folder from the page cache, and nothing else: other programs use this machine, too."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
