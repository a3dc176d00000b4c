# SPDX-License-Identifier: Apache-2.0
"""Driver for LitData. `litdata.optimize` first converts the archives to LitData's chunks; JPEGs stay JPEGs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("litdata", "torch", "torchvision", "pillow")

_made: dict[str, Any] = {}


def _convert(item: tuple[bytes, bytes]) -> dict[str, Any]:
    import io

    from PIL import Image

    return {"image": Image.open(io.BytesIO(item[0])), "label": int(item[1])}


def begin(task: dict[str, Any]) -> None:
    """Converts the archives, and builds the loader in the same way as LitData's own ImageNet benchmark."""
    import litdata
    import torch

    torch.set_num_threads(1)
    images = importlib.import_module("images")
    (_, spec, member), (_, number, label) = images.named(task)
    folder = Path(task["work"]) / "chunks"
    litdata.optimize(
        fn=_convert,
        inputs=[(one[member], one[label]) for one in images.members(task["files"])],
        output_dir=str(folder),
        chunk_bytes="64MB",
        num_workers=len(task["cores"]),
        start_method="fork",
    )
    shape, kind = images.transform(spec, tensors=True), getattr(torch, number["dtype"])

    class Shaped(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            one = super().__getitem__(index)
            return shape(one["image"]), torch.tensor(one["label"], dtype=kind)

    dataset = Shaped(str(folder), shuffle=False, drop_last=False)
    _made["loader"] = litdata.StreamingDataLoader(
        dataset, batch_size=task["batch"], num_workers=len(task["cores"]), persistent_workers=True
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One epoch."""
    images = importlib.import_module("images")
    (picture, _, _), (label, _, _) = images.named(task)
    for images, labels in _made["loader"]:
        yield {picture: images, label: labels}
