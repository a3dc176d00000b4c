# SPDX-License-Identifier: Apache-2.0
"""Driver for FFCV. FFCV's writer first converts the archives to a beton file; images stay JPEGs of the same
dimensions.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("ffcv", "torch")

_made: dict[str, Any] = {}


class _Held:
    """Dataset of samples in the form that FFCV's writer expects."""

    def __init__(self, samples: list[tuple[Any, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        images = importlib.import_module("images")
        data, label = self.samples[index]
        return images.opened(data), label


def begin(task: dict[str, Any]) -> None:
    """Converts the archives (JPEGs are encoded again, at quality 90), and builds the loader."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor
    from ffcv.writer import DatasetWriter

    images = importlib.import_module("images")
    (_, spec, member), (_, _, label) = images.named(task)
    beton = str(Path(task["work"]) / "set.beton")
    writer = DatasetWriter(
        beton, {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}, num_workers=1
    )
    writer.from_indexed_dataset(_Held([(one[member], int(one[label])) for one in images.members(task["files"])]))
    size = (spec["height"], spec["width"])
    if spec["crop"] == "random":
        steps = [RandomResizedCropRGBImageDecoder(size)]
    else:
        steps = [CenterCropRGBImageDecoder(size, ratio=spec["height"] / spec["resize"])]
    if spec["flip"]:
        steps.append(RandomHorizontalFlip(spec["flip"]))
    _made["loader"] = Loader(
        beton,
        batch_size=task["batch"],
        num_workers=len(task["cores"]),
        order=OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=False,
        pipelines={"image": [*steps, ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One epoch."""
    import torch

    images = importlib.import_module("images")
    (picture, _, _), (label, number, _) = images.named(task)
    for images, labels in _made["loader"]:
        yield {picture: images, label: labels.reshape(-1).to(getattr(torch, number["dtype"]))}
