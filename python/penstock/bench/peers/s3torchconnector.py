# SPDX-License-Identifier: Apache-2.0
"""Driver for s3torchconnector: S3MapDataset in a torch DataLoader, with one worker per core or without workers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("s3torchconnector", "torch")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Builds the dataset and the loader."""
    import torch
    from s3torchconnector import S3ClientConfig, S3MapDataset

    torch.set_num_threads(1)
    torch_batches = importlib.import_module("torch_batches")
    name, spec = torch_batches.only(task)

    def load(opened: Any) -> dict[str, Any]:
        # Reads return bytes, which torch must not write to. s3torchconnector's documentation recommends this copy.
        return {name: torch_batches.tensor(bytearray(opened.read()), spec)}

    dataset = S3MapDataset.from_objects(
        task["files"],
        region=task["region"],
        endpoint=task["endpoint"],
        transform=load,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    workers = len(task["cores"]) if task["options"].get("workers", True) else 0
    _made["loader"] = torch.utils.data.DataLoader(
        dataset, batch_size=task["batch"], num_workers=workers, persistent_workers=workers > 0
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - one of a driver's three functions
    """One epoch."""
    return iter(_made["loader"])
