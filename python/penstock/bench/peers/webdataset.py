# SPDX-License-Identifier: Apache-2.0
"""Driver for WebDataset in a torch DataLoader with one worker per core. The workers persist between passes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("webdataset", "torch", "torchvision", "pillow")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Builds the pipeline. The archives are read without conversion."""
    import torch
    import webdataset

    torch.set_num_threads(1)
    images = importlib.import_module("images")
    (_, spec, member), (_, number, label) = images.named(task)
    shape = images.transform(spec)
    kind = getattr(torch, number["dtype"])

    def sample(one: dict[str, Any]) -> Any:
        return shape(images.opened(one[member])), torch.tensor(int(one[label]), dtype=kind)

    dataset = webdataset.WebDataset(
        task["files"], shardshuffle=False, nodesplitter=None, workersplitter=webdataset.split_by_worker
    )
    batched = dataset.map(sample).batched(task["batch"])
    _made["loader"] = webdataset.WebLoader(
        batched, batch_size=None, num_workers=len(task["cores"]), persistent_workers=True
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One epoch."""
    images = importlib.import_module("images")
    (picture, _, _), (label, _, _) = images.named(task)
    for images, labels in _made["loader"]:
        yield {picture: images, label: labels}
