# SPDX-License-Identifier: Apache-2.0
"""Driver for MosaicML Streaming. `MDSWriter` first converts the archives to MDS shards; JPEGs stay JPEGs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("mosaicml-streaming", "torch", "torchvision", "pillow")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Converts the archives, and builds the dataset and the loader."""
    import streaming
    import torch

    torch.set_num_threads(1)
    images = importlib.import_module("images")
    (_, spec, member), (_, number, label) = images.named(task)
    folder = str(Path(task["work"]) / "mds")
    with streaming.MDSWriter(out=folder, columns={"image": "bytes", "label": "int"}) as out:
        for one in images.members(task["files"]):
            out.write({"image": one[member], "label": int(one[label])})
    shape, kind = images.transform(spec), getattr(torch, number["dtype"])

    class Shaped(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            one = super().__getitem__(index)
            return shape(images.opened(one["image"])), torch.tensor(one["label"], dtype=kind)

    dataset = Shaped(local=folder, shuffle=False, batch_size=task["batch"])
    _made["loader"] = torch.utils.data.DataLoader(
        dataset, batch_size=task["batch"], num_workers=len(task["cores"]), persistent_workers=True
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One epoch."""
    images = importlib.import_module("images")
    (picture, _, _), (label, _, _) = images.named(task)
    for images, labels in _made["loader"]:
        yield {picture: images, label: labels}
