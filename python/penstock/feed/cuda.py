# SPDX-License-Identifier: Apache-2.0
"""Batches copied to a CUDA device: from memory that is registered with it once, on a stream beside the consumer's.

Owns when memory may be used again (its copies are done, an event says so), when a batch may be used (the consumer's stream
waits for them), and how far the consumer may run ahead of the device. With `feed.torch` the only modules that import torch.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock import _native
from penstock.errors import PenstockError, Unsupported
from penstock.feed import columns

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Copied", "Copies", "Cuda"]

_STEPS_AHEAD = 2
"""Batches whose work may wait on the device when the next is handed over: each holds the device's memory."""


class Event(Protocol):
    """A point in a stream of work."""

    def query(self) -> bool:
        """True once all before it is done."""

    def synchronize(self) -> None:
        """Waits until then."""


class Device(Protocol):
    """Where batches go: a stream for copies, and the consumer's."""

    def copy(self, column: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Begins a copy of a native tensor or an array: the tensor there, and the one here, to be kept until it is done."""

    def copies_begun(self) -> Event:
        """Once all copies begun so far are done."""

    def give(self, tensors: list[torch.Tensor], copied: Event) -> Event:
        """Has the consumer's stream wait for `copied` and makes the tensors its own; once what it was given to do before
        is done.
        """


@dataclass(frozen=True, slots=True)
class Copied:
    """A batch whose copies have begun."""

    batch: dict[str, Any]
    tensors: list[torch.Tensor]
    done: Event


class Copies:
    """The copies of one loader's batches to one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Copies that are not known to be done, and the memory that they read.
        self._under_way: deque[tuple[Event, list[torch.Tensor]]] = deque()
        # Where the consumer's stream stood at the last batches' hand-over.
        self._given: deque[Event] = deque()

    def __str__(self) -> str:
        return str(self._device)

    def begin(self, tensors: Mapping[str, Any]) -> Copied:
        """Begins the copies of a batch; lists of bytes stay where they are."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        there: list[torch.Tensor] = []
        here: list[torch.Tensor] = []

        def copy(column: Any) -> torch.Tensor:
            copied, source = self._device.copy(column)
            there.append(copied)
            here.append(source)
            return copied

        try:
            batch = columns.adapt(tensors, copy)
        finally:  # a device whose memory is full may have begun a part of them
            done = self._device.copies_begun()
            self._under_way.append((done, here))
        return Copied(batch, there, done)

    def hand_over(self, copied: Copied) -> tuple[dict[str, Any], float]:
        """The batch, for the consumer's stream, and the seconds waited for work that was given to it earlier."""
        self._given.append(self._device.give(copied.tensors, copied.done))
        began = time.perf_counter()
        if len(self._given) > _STEPS_AHEAD:
            self._given.popleft().synchronize()
        return copied.batch, time.perf_counter() - began

    def settle(self) -> None:
        """Waits for the copies that are under way, and lets go of what they read."""
        # A device that has failed copies no more, and tells whoever uses it next.
        with contextlib.suppress(RuntimeError):
            if self._under_way:
                self._under_way[-1][0].synchronize()
        self._under_way.clear()
        self._given.clear()


class Cuda:
    """A CUDA device by torch, and its driver for memory of ours."""

    def __init__(self, device: torch.device) -> None:
        """Opens it.

        Raises:
            Unsupported: torch sees no such device.
        """
        if not torch.cuda.is_available():
            raise Unsupported(
                f"device: torch {torch.__version__} sees no CUDA device here, and {device} was asked for",
                where="device",
                hint="nvidia-smi says whether there is a GPU; torch.version.cuda whether this torch was built for one",
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)
        self._driver: _native.CudaDevice | None = None
        self.pinned_by = "registered memory"
        try:
            self._driver = _native.CudaDevice(index)
        except PenstockError as error:
            self._refused(error)

    def __str__(self) -> str:
        return f"{self._device} from {self.pinned_by}"

    def _refused(self, error: PenstockError) -> None:
        self._driver = None
        self.pinned_by = f"torch's pinned memory, one copy more: {error}"

    def _is_pinned(self, column: Any) -> bool:
        """True where the column lies in a slot that the driver has registered, now or before."""
        if self._driver is None or not isinstance(column, _native.Tensor):
            return False
        try:
            self._driver.hold(column)
        except PenstockError as error:
            self._refused(error)
            return False
        return True

    def copy(self, column: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Device`. What is not in a slot, as functions' results, goes through torch's own pinned memory."""
        here = torch.from_dlpack(column)
        if not self._is_pinned(column):
            here = here.pin_memory()
        with torch.cuda.stream(self._stream):
            return here.to(self._device, non_blocking=True), here

    def copies_begun(self) -> torch.cuda.Event:
        """As `Device`."""
        return self._mark(self._stream)

    def give(self, tensors: list[torch.Tensor], copied: torch.cuda.Event) -> torch.cuda.Event:
        """As `Device`."""
        consumer = torch.cuda.current_stream(self._device)
        before = self._mark(consumer)
        consumer.wait_event(copied)
        for tensor in tensors:
            # Its memory is of the copies' stream, which must not use it again before the consumer has done with it.
            tensor.record_stream(consumer)
        return before

    @staticmethod
    def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
        # A core that waits is one that decodes meanwhile: no spinning.
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event
