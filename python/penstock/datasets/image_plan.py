# SPDX-License-Identifier: Apache-2.0
"""Plan of a generated image dataset: shards, labels, names and broken images, as pure functions of the settings.

Writes nothing. An image depends only on the settings and the image's number, so any process can write any shard.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.datasets.image_classes import MAX_CLASSES, ImageClass
from penstock.datasets.image_shards import FORMATS, ImageFormat, shard_name
from penstock.errors import ConfigError
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BROKEN_KINDS", "DEFAULT_SIGMA", "ImageSpec", "Split", "Task"]

DEFAULT_SIGMA = 0.29
"""Standard deviation of the logarithm of the file size. If the median is 110 kB, the mean is then 114.7 kB, as in
MLPerf Storage's ResNet-50 (114,660 bytes).
"""
BROKEN_KINDS = ("truncated", "not a JPEG", "empty", "label out of range")
_SHARD_BYTES = 128 << 20
_MIN_SHARDS = 8  # so that several processes can write a small dataset, and a loader can shuffle its shards
_MAX_SHARDS = 99_999  # per split, because names of TFRecord shards have five digits
_FOLDER_TASK = 250  # number of images
_MIN_BITS, _MAX_BITS = 0.6, 8.0  # bits per pixel of the image of median size

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work: images `first` to `stop` of a split, which are one shard of each copy of the dataset."""

    split: Split
    first: int
    stop: int
    shard: int


@dataclass(frozen=True)
class ImageSpec:
    """Settings of a dataset. Equal settings give equal bytes if the versions of Pillow and NumPy are equal.

    Attributes:
        images: Number of different images for training.
        validation: Number of images for validation.
        classes: Number of classes, 1 to 1000. Labels are balanced.
        shards: Number of training shards of one copy of the dataset. The default is computed from the other settings.
        format: "tfrecord", "tar" or "folder".
        width, height: Nominal size in pixels. The sizes of the images vary around it (see `image_scenes`).
        median_bytes: Median size of a JPEG.
        sigma: Standard deviation of the logarithm of a JPEG's size.
        replicate: Number of copies of each training image, each with its own name.
        broken: Number of training images that are broken on purpose, with each of `BROKEN_KINDS` in turn.

    Raises:
        ConfigError: A setting is invalid.
    """

    images: int
    classes: int = 1000
    shards: int = 0
    validation: int = 0
    format: ImageFormat = "tfrecord"
    width: int = 500
    height: int = 400
    median_bytes: int = 110_000
    sigma: float = DEFAULT_SIGMA
    seed: int = 0
    replicate: int = 1
    broken: int = 0

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format: `{self.format}` is not one of {', '.join(FORMATS)}")
        if not 1 <= self.classes <= MAX_CLASSES:
            raise ConfigError(f"classes: {self.classes} is not between 1 and {MAX_CLASSES}")
        if self.images < self.classes:
            raise ConfigError(
                f"images: {self.images} are too few for {self.classes} classes",
                hint="use at least one image per class: raise --images or lower --classes",
            )
        if self.validation < 0 or (self.format == "folder" and 0 < self.validation < self.classes):
            raise ConfigError(
                f"validation: {self.validation} images do not fill {self.classes} class folders",
                hint="use 0 or at least one image per class, because a missing folder changes the labels",
            )
        for name, value in (("width", self.width), ("height", self.height)):
            if not 32 <= value <= 2048:
                raise ConfigError(f"size: a {name} of {value} pixels is not between 32 and 2048")
        if not 0 <= self.sigma <= 1:
            raise ConfigError(f"sigma: {self.sigma:g} is not between 0 and 1")
        if self.seed < 0:
            raise ConfigError(f"seed: must be at least 0 (got {self.seed})")
        if not 1 <= self.replicate <= 100:
            raise ConfigError(f"replicate: {self.replicate} is not between 1 and 100")
        if not 0 <= self.broken <= self.images:
            raise ConfigError(f"broken: {self.broken} is not between 0 and {self.images} (the number of images)")
        bits = self.median_bytes * 8 / (self.width * self.height)
        if not _MIN_BITS <= bits <= _MAX_BITS:
            low, high = (format_bytes(b * self.width * self.height / 8) for b in (_MIN_BITS, _MAX_BITS))
            raise ConfigError(
                f"median-bytes: {format_bytes(self.median_bytes)} at {self.width} x {self.height} pixels is"
                f" {bits:.2f} bits per pixel, which is not between {_MIN_BITS:g} and {_MAX_BITS:g}",
                hint=f"choose {low} to {high}, or another --size",
            )
        most = min(self.images, _MAX_SHARDS // self.replicate)
        if self.format != "folder" and not 0 <= self.shards <= most:
            raise ConfigError(
                f"shards: {self.shards} is not between 1 and {most}"
                f" for {self.images} images and {self.replicate} copies"
            )
        if self.format == "folder" and self.shards:
            raise ConfigError("shards: class folders have no shards", hint="remove --shards, or choose another format")

    @property
    def mean_bytes(self) -> float:
        """Expected size of a JPEG."""
        return self.median_bytes * math.exp(self.sigma**2 / 2)

    def settings(self) -> dict[str, Any]:
        """Return the settings for the manifest, with the number of shards."""
        return {**asdict(self), "shards": self.shards_of("train") if self.format != "folder" else 0}

    def images_of(self, split: Split) -> int:
        """Return the number of different images."""
        return self.images if split == "train" else self.validation

    def copies_of(self, split: Split) -> int:
        """Return the number of copies of each image. Validation images are never replicated."""
        return self.replicate if split == "train" else 1

    @property
    def splits(self) -> tuple[Split, ...]:
        """Splits that have images."""
        return ("train", "validation") if self.validation else ("train",)

    def shards_of(self, split: Split) -> int:
        """Return the number of shards of one copy of the dataset or, for class folders, the number of tasks."""
        images = self.images_of(split)
        if self.format == "folder":
            return -(-images // _FOLDER_TASK)
        train = self.shards or max(
            min(_MIN_SHARDS, self.images), math.ceil(self.images * self.mean_bytes / _SHARD_BYTES)
        )
        train = min(train, _MAX_SHARDS // self.replicate)
        return train if split == "train" else min(images, _MAX_SHARDS, max(1, round(train * images / self.images)))

    def tasks(self) -> Iterator[Task]:
        """Yield all tasks, in the order of their images. The sizes of two tasks differ by at most one image."""
        for split in self.splits:
            images, shards = self.images_of(split), self.shards_of(split)
            for shard in range(shards):
                yield Task(split, images * shard // shards, images * (shard + 1) // shards, shard)

    def shard_names(self, task: Task) -> list[str]:
        """Return the names of the shards of a task, one per copy. The shards of the first copy of the dataset come
        first.
        """
        copies, shards = self.copies_of(task.split), self.shards_of(task.split)
        return [
            shard_name(self.format, task.split, copy * shards + task.shard, copies * shards) for copy in range(copies)
        ]

    def class_of(self, split: Split, image: int) -> ImageClass:
        """Return the class of an image. Each group of `classes` consecutive images contains every class once, in random
        order.
        """
        block, position = divmod(image, self.classes)
        return ImageClass(_permutation(self.seed, split, block, self.classes)[position])

    def key(self, split: Split, image: int, copy: int) -> str:
        """Return the unique name of a copy of an image, without an extension."""
        name = f"{self.class_of(split, image).synset}_{image}" if split == "train" else f"validation_{image:08d}"
        return name if copy == 0 else f"{name}_copy{copy}"

    def label(self, split: Split, image: int) -> int:
        """Return the stored label, counted from 0. If the label is out of range on purpose, it is `classes`."""
        if self.broken_kind(split, image) == "label out of range":
            return self.classes
        return self.class_of(split, image).number

    @cached_property
    def broken_images(self) -> dict[int, str]:
        """Return the broken training images: the kind of damage, by the number of the image."""
        if not self.broken:
            return {}
        chosen = np.random.default_rng([self.seed, 3]).choice(self.images, self.broken, replace=False).tolist()
        kinds = {image: BROKEN_KINDS[i % len(BROKEN_KINDS)] for i, image in enumerate(chosen)}
        return dict(sorted(kinds.items()))

    def broken_kind(self, split: Split, image: int) -> str | None:
        """Return the kind of damage of an image, from `BROKEN_KINDS`; None for an intact image."""
        return self.broken_images.get(image) if split == "train" else None

    def generator(self, split: Split, image: int) -> np.random.Generator:
        """Return the random generator for all choices of an image."""
        return np.random.default_rng([self.seed, _SPLIT_SEED[split], image])


_SPLIT_SEED: dict[Split, int] = {"train": 0, "validation": 1}


@lru_cache(maxsize=8)
def _permutation(seed: int, split: Split, block: int, classes: int) -> list[int]:
    numbers: list[int] = np.random.default_rng([seed, 2, _SPLIT_SEED[split], block]).permutation(classes).tolist()
    return numbers
