# SPDX-License-Identifier: Apache-2.0
"""Loader that yields batches as torch tensors, without a copy on the CPU.

Rank and world come from `torch.distributed` if it is initialised, otherwise from the launcher's variables.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from penstock.feed import columns
from penstock.feed.cuda import Copies, CopyDevice, Cuda, Given
from penstock.feed.loader import BaseLoader

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset
    from penstock.feed.epoch import Delivery

__all__ = ["Loader"]

_LOG = logging.getLogger("penstock.feed")


class Loader(BaseLoader[dict[str, Any]]):
    """Loader that yields dicts of torch tensors: over the feed's memory on the CPU, or as copies on a device. For
    speed, run casts and log1p on the device.
    """

    def __init__(self, dataset: Dataset, *, device: Any = None, **arguments: Any) -> None:
        """Like `penstock.Loader`, with these differences:

        Args:
            tail: As in `penstock.Loader`, but with another default. For a shuffled dataset and more than one rank, it
                is `drop`: each epoch omits different samples, and no rank gets an empty batch, which would give a loss
                of NaN. Otherwise, it is `ragged`, with a warning if a rank's last batch has no samples.
            device: Target device of the tensors; None leaves them on the CPU. Copies to a CUDA device run on a separate
                stream while the consumer works on the previous batch. The device then stores about four batches at a
                time.
        """
        self._has_default_tail = False
        super().__init__(dataset, **arguments)
        self.device = None if device is None else torch.device(device)
        # Process id, device, and the record of delivered batches, which outlives a pass.
        self._copied_to: tuple[int, CopyDevice, Given] | None = None

    def _place(self) -> tuple[int, int]:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return int(group.get_rank()), int(group.get_world_size())
        return super()._place()

    def _default_tail(self, on_error: str) -> str:
        self._has_default_tail = True
        return "drop" if self.world > 1 and self.dataset.is_shuffled and on_error != "skip" else "ragged"

    def _warn_of_tail(self) -> None:
        """Warn once, on the first rank, if the default tail leaves some ranks without samples."""
        is_fixed = self.dataset.indexed and self._batch_by is None and self.dataset.packing is None
        if self.rank or self.world == 1 or not self._has_default_tail or not is_fixed:
            return
        if self.dataset.awaits_scan():
            return  # the first epoch does not wait for its number of samples; the next one warns
        self._has_default_tail = False
        samples, left = self.dataset.samples, self.dataset.samples % self.global_batch
        if self.tail == "drop" and 0 < samples < self.global_batch:
            _LOG.warning(
                "%r: an epoch has no batch: %d samples are fewer than the global batch of %d, and the tail is "
                "dropped. Set "
                'tail="ragged" or tail="pad", or use smaller batches.',
                self.dataset,
                samples,
                self.global_batch,
            )
        elif self.tail == "ragged" and 0 < left < self.world:
            _LOG.warning(
                "%r: the last batch of an epoch has %d samples for %d ranks, so %d ranks get an empty batch, whose "
                "mean loss "
                'is NaN. Set tail="drop" or tail="pad", or tail="ragged" to allow this.',
                self.dataset,
                left,
                self.world,
                self.world - left,
            )

    def _prepare(self) -> None:
        self._warn_of_tail()
        is_ready = self._copied_to is not None and self._copied_to[0] == os.getpid()
        if self.device is not None and self.device.type == "cuda" and not is_ready:
            self._copied_to = os.getpid(), Cuda(self.device), deque()

    def _delivery(self) -> Delivery[dict[str, Any]]:
        is_copied = self._copied_to is not None and self._collate is None
        return Copies(*self._copied_to[1:]) if is_copied else super()._delivery()  # type: ignore[index]

    def _adapt(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], float]:
        batch = columns.adapt(tensors, torch.from_dlpack)
        if self.device is None or self.device.type == "cpu":
            return batch, 0.0
        began = time.perf_counter()
        return {name: self._moved(column) for name, column in batch.items()}, time.perf_counter() - began

    def _moved_batch(self, made: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        return made if self.device is None else self._moved(made), time.perf_counter() - began

    def _moved(self, column: Any) -> Any:
        """Copy a column, or the result of `collate`, to a device, and wait for the copy. Lists of other values stay on
        the host.
        """
        if isinstance(column, dict):
            return {name: self._moved(value) for name, value in column.items()}
        if type(column) in (list, tuple):
            return type(column)(self._moved(value) for value in column)
        if isinstance(column, columns.Ragged):
            return columns.Ragged(self._moved(column.values), self._moved(column.offsets))
        return column.to(self.device) if isinstance(column, torch.Tensor) else column

    def _device_name(self) -> str | None:
        return None if self.device is None else str(self.device if self._copied_to is None else self._copied_to[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_copied_to": None}
