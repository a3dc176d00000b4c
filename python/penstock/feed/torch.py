# SPDX-License-Identifier: Apache-2.0
"""Batches as torch tensors, without a copy on the CPU.

Rank and world come from `torch.distributed` once it is initialised, else from the launcher's variables.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.feed import columns
from penstock.feed.cuda import Copied, Copies, Cuda
from penstock.feed.loader import BaseLoader

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset

__all__ = ["Loader"]


class Loader(BaseLoader[dict[str, Any]]):
    """Iterates dicts of torch tensors: on the CPU over the feed's own memory, on a device as copies of it. Casting and
    log1p belong on the device.
    """

    def __init__(self, dataset: Dataset, *, device: Any = None, **arguments: Any) -> None:
        """As `penstock.Loader`, and:

        Args:
            device: Where the tensors go; None leaves them on the CPU. A CUDA device reads the feed's memory itself, on a
                stream of its own, while the batch before is worked on; it holds up to four batches at a time.
        """
        super().__init__(dataset, **arguments)
        self.device = None if device is None else torch.device(device)
        self._takes_ahead = self.device is not None and self.device.type == "cuda"
        # With the process that it is of.
        self._copies: tuple[int, Copies] | None = None

    def _place(self) -> tuple[int, int]:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return int(group.get_rank()), int(group.get_world_size())
        return super()._place()

    def _prepare(self) -> None:
        if self._takes_ahead and (self._copies is None or self._copies[0] != os.getpid()):
            assert self.device is not None
            self._copies = os.getpid(), Copies(Cuda(self.device))

    def _adapt(self, tensors: dict[str, Any]) -> tuple[dict[str, Any] | Copied, float]:
        began = time.perf_counter()
        if self._copies is not None:
            copied = self._copies[1].begin(tensors)
            return copied, time.perf_counter() - began
        batch = columns.adapt(tensors, torch.from_dlpack)
        if self.device is None or self.device.type == "cpu":
            return batch, 0.0
        return {name: self._moved(column) for name, column in batch.items()}, time.perf_counter() - began

    def _moved(self, column: Any) -> Any:
        """A column on the device, its copy done; lists stay where they are."""
        if isinstance(column, columns.Ragged):
            return columns.Ragged(self._moved(column.values), self._moved(column.offsets))
        return column.to(self.device) if isinstance(column, torch.Tensor) else column

    def _hand_over(self, adapted: dict[str, Any] | Copied) -> tuple[dict[str, Any], float]:
        if isinstance(adapted, Copied):
            assert self._copies is not None
            return self._copies[1].hand_over(adapted)
        return adapted, 0.0

    def _ended(self) -> None:
        if self._copies is not None:
            self._copies[1].settle()

    def _device_said(self) -> str | None:
        return None if self.device is None else str(self.device if self._copies is None else self._copies[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_copies": None}
