# SPDX-License-Identifier: Apache-2.0
"""Batches as torch tensors, without a copy on the CPU. The only module of the feed that imports torch.

Rank and world come from `torch.distributed` once it is initialised, else from the launcher's variables.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.feed import columns
from penstock.feed.loader import BaseLoader

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset

__all__ = ["Loader"]


class Loader(BaseLoader[dict[str, Any]]):
    """Iterates dicts of torch tensors: on the CPU over the feed's own memory, on a device as copies made from pinned
    memory. Casting and log1p belong on the device.
    """

    def __init__(self, dataset: Dataset, *, device: Any = None, **arguments: Any) -> None:
        """As `penstock.Loader`, and:

        Args:
            device: Where the tensors go; None leaves them on the CPU.
        """
        super().__init__(dataset, **arguments)
        self.device = None if device is None else torch.device(device)

    def _place(self) -> tuple[int, int]:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return int(group.get_rank()), int(group.get_world_size())
        return super()._place()

    def _adapt(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], float]:
        batch = columns.adapt(tensors, torch.from_dlpack)
        if self.device is None or self.device.type == "cpu":
            return batch, 0.0
        began = time.perf_counter()
        return {name: self._moved(column) for name, column in batch.items()}, time.perf_counter() - began

    def _moved(self, column: Any) -> Any:
        """A column on the device; lists of bytes stay where they are."""
        if isinstance(column, columns.Ragged):
            return columns.Ragged(self._moved(column.values), self._moved(column.offsets))
        if not isinstance(column, torch.Tensor):
            return column
        if self.device is not None and self.device.type == "cuda":
            # torch's pinned memory is held until the copy is done; ours would be used again before that.
            column = column.pin_memory()
        return column.to(self.device, non_blocking=True)
