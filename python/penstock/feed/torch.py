# SPDX-License-Identifier: Apache-2.0
"""Loader that yields batches as torch tensors, without a copy on the CPU.

Rank and world come from `torch.distributed` if it is initialised, otherwise from the launcher's variables.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import ConfigError, RankFailed
from penstock.feed import batch_columns
from penstock.feed.cuda import Copies, CopyDevice, Cuda, Given
from penstock.feed.equal_batches import EqualRun
from penstock.feed.loader import BaseLoader

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset
    from penstock.feed.epoch import BatchRun, Delivery
    from penstock.feed.equal_batches import Answer

__all__ = ["Loader"]

_LOG = logging.getLogger("penstock.feed")


def _device(device: Any) -> Any:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device: {device!r} is not a torch device",
            where="device",
            hint="give the name of a device, such as cpu or cuda:0, or a torch.device",
        ) from error


class _Answer:
    """Result of a collective call that may still be in progress: whether all ranks have another batch."""

    def __init__(self, work: Any, flag: Any) -> None:
        self._work, self._flag = work, flag

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self) -> bool:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise RankFailed(
                "process group: another rank ended or did not respond while this rank waited for its next batch",
                where="process group",
            ) from error
        return bool(self._flag[0])


class Loader(BaseLoader[dict[str, Any]]):
    """Loader that yields dicts of torch tensors, which use the feed's memory on the CPU or are copies on a device.
    Casts and log1p are faster on the device.
    """

    def __init__(self, dataset: Dataset, *, device: Any = None, **arguments: Any) -> None:
        """Like `penstock.Loader`, with these differences:

        Args:
            tail: As in `penstock.Loader`, but on more than one rank, the default differs. All ranks get the same number
                of batches, and no rank gets an empty batch, because its loss would be NaN. For a shuffled dataset and
                with `batch_by`, the default is `drop`, and each epoch omits different samples. In stored order, the
                default is `ragged`, but a last batch with fewer samples than ranks is left out, with a warning. If a
                rank's number of batches is known only at the end (`indexed=False`, `pack`, `decode(rebatch=True)`), the
                ranks communicate, and the epoch ends on all ranks together.
            device: Target device of the tensors; None leaves them on the CPU. Copies to a CUDA device run on a separate
                stream while the consumer works on the previous batch. The device then stores about four batches at a
                time.
        """
        self._has_default_tail = self._asks_group = False
        # The loader's epoch minus the trainer's epoch; None after a state was loaded.
        self._epoch_offset: int | None = 0
        # Process id, and the group in which ranks exchange whether they have another batch.
        self._exchanged_in: tuple[int, Any] | None = None
        super().__init__(dataset, **arguments)
        self.device = None if device is None else _device(device)
        # Process id, device, and the record of delivered batches, which is kept between passes.
        self._copied_to: tuple[int, CopyDevice, Given] | None = None

    def _place(self) -> tuple[int, int]:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            # True even if the dataset is local and this rank is alone on its node, because all ranks must call
            # new_group.
            self._asks_group = group.get_world_size() > 1
            return int(group.get_rank()), int(group.get_world_size())
        return super()._place()

    @property
    def batch_sampler(self) -> Any:
        """Object for trainers such as Lightning, which call `batch_sampler.sampler.set_epoch` before each epoch."""
        if not self.has_fixed_positions:
            raise AttributeError("batch_sampler")  # otherwise, the trainer prefetches a batch before it calls set_epoch
        return SimpleNamespace(sampler=SimpleNamespace(set_epoch=self._set_trainers_epoch))

    def _set_trainers_epoch(self, epoch: int) -> None:
        """Like `set_epoch`, but after a state was loaded, the trainer's epoch numbers are relative to the state's
        epoch. If an epoch stops at `max_steps`, Lightning counts this epoch as complete, although the state continues
        within this epoch.
        """
        if self._epoch_offset is None:
            self._epoch_offset = self._epoch + self._is_spent(self._cursor) - epoch
        self.set_epoch(max(epoch + self._epoch_offset, 0))

    def _go_on(self, epoch: int, cursor: int) -> None:
        super()._go_on(epoch, cursor)
        self._epoch_offset = None

    def _default_tail(self, on_error: str) -> str:
        self._has_default_tail = True
        return self._group_tail(on_error)

    def _run(self, feed: Any, epoch: int, cursor: int) -> BatchRun:
        run = super()._run(feed, epoch, cursor)
        is_asked = self._asks_group and self._has_default_tail
        return EqualRun(run, self._exchange) if is_asked and not self.has_fixed_positions else run

    def _exchange(self, mine: bool) -> Answer:  # noqa: FBT001 - the one caller's own fact
        """Start a collective call that returns whether `mine` is true on all ranks."""
        dist = torch.distributed
        if self._exchanged_in is None or self._exchanged_in[0] != os.getpid():
            # Use a separate group, because the training makes collective calls at the same time.
            self._exchanged_in = os.getpid(), dist.new_group(backend="gloo")
        flag = torch.tensor([mine], dtype=torch.uint8)
        work = dist.all_reduce(flag, dist.ReduceOp.MIN, group=self._exchanged_in[1], async_op=True)
        return _Answer(work, flag)

    def _warn_of_tail(self) -> None:
        """Warn once, on the first rank, if the default tail leaves out the same samples in every epoch, or all
        samples.
        """
        is_fixed = self.has_fixed_positions and self._batch_by is None and self.dataset.packing is None
        if self.rank or self.world == 1 or not self._has_default_tail or not is_fixed:
            return
        if self.dataset.awaits_scan():
            return  # do not wait for the number of samples; warn in the next epoch
        self._has_default_tail = False
        samples, left = self.dataset.samples, self.dataset.samples % self.global_batch
        advice = 'Set tail="pad" (repeated samples with weight 0) or tail="ragged" (some ranks get an empty batch)'
        if 0 < samples == left and not len(self):
            self._warns_of_no_batch = False
            _LOG.warning(
                "%r: an epoch has no batch: %d samples are fewer than the global batch of %d on %d ranks. %s, or use "
                "smaller batches.",
                self.dataset,
                samples,
                self.global_batch,
                self.world,
                advice,
            )
        elif 0 < left < self._min_rows:
            _LOG.warning(
                "%r: the last %d of %d samples are left out, because they are fewer than the %d ranks. %s to use them.",
                self.dataset,
                left,
                samples,
                self.world,
                advice,
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
        batch = batch_columns.adapt(tensors, torch.from_dlpack)
        if self.device is None or self.device.type == "cpu":
            return batch, 0.0
        began = time.perf_counter()
        return {name: self._moved(column) for name, column in batch.items()}, time.perf_counter() - began

    def _moved_batch(self, made: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        return made if self.device is None else self._moved(made), time.perf_counter() - began

    def _moved(self, column: Any) -> Any:
        """Copy a column, or the result of `collate`, to a device, and wait for the copy. Values that are not tensors
        stay on the host.
        """
        if isinstance(column, dict):
            return {name: self._moved(value) for name, value in column.items()}
        if type(column) in (list, tuple):
            return type(column)(self._moved(value) for value in column)
        if isinstance(column, batch_columns.Ragged):
            return batch_columns.Ragged(self._moved(column.values), self._moved(column.offsets))
        return column.to(self.device) if isinstance(column, torch.Tensor) else column

    def _device_name(self) -> str | None:
        return None if self.device is None else str(self.device if self._copied_to is None else self._copied_to[1])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_copied_to": None, "_exchanged_in": None}
