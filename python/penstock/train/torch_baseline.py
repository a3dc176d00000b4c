# SPDX-License-Identifier: Apache-2.0
"""Baseline without Penstock: a torch DataLoader with worker processes over the files in a folder.

Reads like DLIO's PyTorch loader: one file per sample with `numpy.load` or Pillow; each worker prefetches two batches.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.protocols import Batch
    from penstock.train.source import FeedRequest

__all__ = ["TorchBaseline"]

_SUFFIXES = {"npz": (".npz",), "image": (".jpg", ".jpeg", ".png")}


class _Files:
    """A map-style dataset: sample i is file i, loaded as a whole."""

    def __init__(self, paths: list[Path], field: str, side: tuple[int, int] | None) -> None:
        self.paths, self.field, self.side = paths, field, side

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        import torch

        if self.side is None:
            with np.load(self.paths[i]) as arrays:
                return torch.from_numpy(arrays[self.field])
        from PIL import Image

        with Image.open(self.paths[i]) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB").resize((self.side[1], self.side[0]))))


def _as_list(samples: list[Any]) -> list[Any]:
    return samples


class TorchBaseline:
    """A `Feed` that uses only torch, not Penstock.

    Raises:
        ConfigError: The data is in a store, or in a format that needs a package other than torch (TFRecord).
        NotFound: The folder contains no file of the required format.
    """

    _WORKERS = 4  # same as DLIO's `read_threads` for these workloads

    def __init__(self, request: FeedRequest) -> None:
        if "://" in request.url and not request.url.startswith("file://"):
            raise ConfigError(
                f"plain PyTorch reads only folders, but {request.url} is in a store", hint="mount or stage the dataset"
            )
        (name, field), *more = request.demand.fields.items()
        if (
            more
            or field.dtype not in ("bytes", "image")
            or name not in ("x", "image")
            or (field.dtype, name) == ("bytes", "image")
        ):
            raise ConfigError("plain PyTorch reads only npz files and images, not TFRecord")
        kind = "image" if field.dtype == "image" else "npz"
        folder = Path(request.url.removeprefix("file://"))
        paths = sorted(p for p in folder.rglob("*") if p.suffix in _SUFFIXES[kind])
        if not paths:
            raise NotFound(
                f"{folder} contains no files with the suffix {' or '.join(_SUFFIXES[kind])}", where=str(folder)
            )
        self._files = _Files(paths, name, (field.shape[0], field.shape[1]) if kind == "image" else None)
        self._request, self._name, self._epoch = request, name, 0
        self._bytes = sum(path.stat().st_size for path in paths)

    def __len__(self) -> int:
        return len(self._files) // self._request.global_batch

    def _batches(self) -> list[list[int]]:
        request = self._request
        order = np.arange(len(self._files))
        if request.shuffled:
            np.random.default_rng([request.seed, self._epoch]).shuffle(order)
        each = request.global_batch // request.world
        starts = range(request.rank * each, len(self) * request.global_batch, request.global_batch)
        return [order[start : start + each].tolist() for start in starts]

    def __iter__(self) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            self._files,
            batch_sampler=self._batches(),
            num_workers=min(self._WORKERS, os.cpu_count() or 1),
            collate_fn=_as_list,
        )
        for batch in loader:
            arrays = [sample.numpy() for sample in batch]
            yield {self._name: arrays if self._files.side is None else np.stack(arrays)}
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self._epoch = int(state["epoch"])

    def report(self) -> Mapping[str, Any]:
        return {"source": "torch", "bytes": self._bytes // self._request.world}
