# SPDX-License-Identifier: Apache-2.0
"""Copies batches to a CUDA device: from registered (pinned) host memory, on a stream beside the consumer's.

Decides when host memory may be reused (an event reports that its copies are done), when a batch may be used (the
consumer's stream waits for its copies), and how far the consumer may run ahead of the device. Only this module and
`feed.torch` import torch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock import _native
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.feed import columns
from penstock.feed.epoch import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Copied", "Copies", "CopyDevice", "Cuda", "Given"]

_STEPS_AHEAD = 2
"""Batches whose work may still wait on the device when the next is delivered; each occupies device memory."""


class Event(Protocol):
    """A point in a stream of work."""

    def query(self) -> bool:
        """True once all work before this point is done."""

    def synchronize(self) -> None:
        """Wait until all work before this point is done."""


class CopyDevice(Protocol):
    """Device that batches are copied to: its stream for copies, and the consumer's stream."""

    def pinned(self, column: Any) -> torch.Tensor:
        """A native tensor or an array as a tensor in host memory that the device can read directly."""

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """Context within which `copy` may be called."""

    def copy(self, here: torch.Tensor) -> torch.Tensor:
        """Begin a copy. The caller keeps `here` until the copy is done."""

    def copies_begun(self) -> Event:
        """Event after all copies begun so far."""

    def wait(self) -> None:
        """Wait for all copies begun so far."""

    def give(self, tensors: list[torch.Tensor], copied: Event) -> Event:
        """Make the consumer's stream wait for `copied`, and make it the owner of the tensors. Returns an event after
        the consumer's earlier work.
        """


Given = deque[tuple[Event, Event]]
"""For each recent batch of a consumer: the event after its copies, and the event after the consumer's earlier work."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A batch whose copies have begun."""

    batch: dict[str, Any]
    tensors: list[torch.Tensor]
    done: Event


@dataclass(slots=True)
class _Reading:
    """Host memory that copies read, and the event after which it is free; None until all copies have begun."""

    here: list[torch.Tensor] = field(default_factory=list)
    done: Event | None = None


class Copies(Delivery[dict[str, Any]]):
    """Copies of one pass's batches to a device. The record of delivered batches outlives a pass."""

    takes_ahead = True

    def __init__(self, device: CopyDevice, given: Given) -> None:
        self._device, self._given, self._pid = device, given, os.getpid()
        # Another thread, or a signal handler in this one, may end the pass during a step: hence a reentrant lock.
        self._turn = threading.RLock()
        self._under_way: deque[_Reading] = deque()
        self._has_ended = False

    def adapt(self, tensors: dict[str, Any]) -> tuple[Copied, float]:
        """Begin the copies of a batch; lists of bytes stay on the host."""
        began = time.perf_counter()
        there: list[torch.Tensor] = []
        reading = _Reading()

        def copy(column: Any) -> torch.Tensor:
            here = self._device.pinned(column)
            reading.here.append(here)
            there.append(self._device.copy(here))
            return there[-1]

        with self._turn:
            if self._has_ended:
                raise ConfigError("iterator: it has ended", where="iterator")
            self._let_go()
            self._under_way.append(reading)
            try:
                with self._device.copying():
                    batch = columns.adapt(tensors, copy)
            finally:  # if the device's memory is full, some copies have begun
                done = reading.done = self._device.copies_begun()
                if self._has_ended:  # by a signal handler, which could not wait for these
                    self._device.wait()  # type: ignore[unreachable]  # mypy knows no handlers
        return Copied(batch, there, done), time.perf_counter() - began

    def _let_go(self) -> None:
        """Release host memory whose copies are done."""
        while self._under_way and (done := self._under_way[0].done) is not None and done.query():
            self._under_way.popleft()

    def hand_over(self, adapted: Copied) -> tuple[dict[str, Any], float, float]:
        """The batch, for the consumer's stream. Waits if the consumer is more than two batches ahead of the device."""
        self._given.append((adapted.done, self._device.give(adapted.tensors, adapted.done)))
        began = copied = time.perf_counter()
        if len(self._given) > _STEPS_AHEAD:
            done, before = self._given.popleft()
            done.synchronize()
            copied = time.perf_counter()
            before.synchronize()
        return adapted.batch, copied - began, time.perf_counter() - copied

    def end(self) -> None:
        """Wait for the copies under way, then release the memory that they read."""
        with self._turn:
            self._has_ended = True
            if self._under_way:
                # A failed device copies no more, and reports the error at its next use.
                with contextlib.suppress(RuntimeError):
                    self._device.wait()
            self._under_way.clear()

    def __del__(self) -> None:
        # Ctrl-C may have interrupted the pass's own end.
        if not self._has_ended and self._pid == os.getpid():
            self.end()


class Cuda:
    """A CUDA device through torch, and its driver to register our memory."""

    def __init__(self, device: torch.device) -> None:
        """Open the device.

        Raises:
            Unsupported: torch finds no such device.
        """
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise Unsupported(
                f"device: torch {torch.__version__} sees {count or 'no'} CUDA devices, but {device} was requested",
                where="device",
                hint="run nvidia-smi to list the GPUs; check torch.version.cuda to see if this torch was built for "
                "them",
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)
        self._driver: _native.CudaDevice | None = None
        self._refusal = ""
        self._registered_bytes = self._other_bytes = 0
        try:
            self._driver = _native.CudaDevice(index)
        except PenstockError as error:
            self._refused(error)

    def __str__(self) -> str:
        copied = self._registered_bytes + self._other_bytes
        if not copied:
            return str(self._device)
        share = f"{self._device}, {100 * self._registered_bytes / copied:.0f} % of the bytes from registered memory"
        return share + (f", the rest through torch's{self._refusal}" if self._other_bytes else "")

    def _refused(self, error: PenstockError) -> None:
        self._driver, self._refusal = None, f" ({error})"

    def pinned(self, column: Any) -> torch.Tensor:
        """As in `CopyDevice`. Ragged fields and results of functions go through torch's own pinned memory."""
        here = torch.from_dlpack(column)
        if self._driver is not None and isinstance(column, _native.Tensor):
            try:
                if self._driver.hold(column):
                    self._registered_bytes += here.nbytes
                    return here
            except PenstockError as error:
                self._refused(error)
        self._other_bytes += here.nbytes
        return here.pin_memory()

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """As in `CopyDevice`."""
        # torch leaves a stream through the current device, and would create a context of this process on another one.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def copy(self, here: torch.Tensor) -> torch.Tensor:
        """As in `CopyDevice`."""
        return here.to(self._device, non_blocking=True)

    def copies_begun(self) -> torch.cuda.Event:
        """As in `CopyDevice`."""
        return self._mark(self._stream)

    def wait(self) -> None:
        """As in `CopyDevice`."""
        self._stream.synchronize()

    def give(self, tensors: list[torch.Tensor], copied: Event) -> torch.cuda.Event:
        """As in `CopyDevice`."""
        consumer = torch.cuda.current_stream(self._device)
        before = self._mark(consumer)
        consumer.wait_event(copied)
        for tensor in tensors:
            # The memory belongs to the copy stream, which must not reuse it before the consumer is done with it.
            tensor.record_stream(consumer)
        return before

    @staticmethod
    def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
        # A blocking wait, not a spinning one: the core can decode meanwhile.
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event
