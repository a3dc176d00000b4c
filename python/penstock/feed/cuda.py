# SPDX-License-Identifier: Apache-2.0
"""Batches copied to a CUDA device: from memory that is registered with it once, on a stream beside the consumer's.

Owns when memory may be used again (its copies are done, an event says so), when a batch may be used (the consumer's stream
waits for them), and how far the consumer may run ahead of the device. With `feed.torch` the only modules that import torch.
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
"""Batches whose work may wait on the device when the next is handed over: each holds the device's memory."""


class Event(Protocol):
    """A point in a stream of work."""

    def query(self) -> bool:
        """True once all before it is done."""

    def synchronize(self) -> None:
        """Waits until then."""


class CopyDevice(Protocol):
    """Where batches go: a stream for copies, and the consumer's."""

    def pinned(self, column: Any) -> torch.Tensor:
        """A native tensor or an array as a tensor here that the device can read by itself."""

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, `copy` may be called."""

    def copy(self, here: torch.Tensor) -> torch.Tensor:
        """Begins a copy; `here` must be kept until it is done."""

    def copies_begun(self) -> Event:
        """Once all copies begun so far are done."""

    def wait(self) -> None:
        """Waits for all copies begun so far."""

    def give(self, tensors: list[torch.Tensor], copied: Event) -> Event:
        """Has the consumer's stream wait for `copied` and makes the tensors its own; once what it was given to do before
        is done.
        """


Given = deque[tuple[Event, Event]]
"""Of the last batches that a consumer was given: their copies done, and all done that it had to do before."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A batch whose copies have begun."""

    batch: dict[str, Any]
    tensors: list[torch.Tensor]
    done: Event


@dataclass(slots=True)
class _Reading:
    """Memory that copies read; until when, once all of them have begun."""

    here: list[torch.Tensor] = field(default_factory=list)
    done: Event | None = None


class Copies(Delivery[dict[str, Any]]):
    """The copies of one pass's batches to a device. What the consumer was given stands from pass to pass."""

    takes_ahead = True

    def __init__(self, device: CopyDevice, given: Given) -> None:
        self._device, self._given, self._pid = device, given, os.getpid()
        # A pass may be ended by one thread while another steps it, or by a signal's handler in the same.
        self._turn = threading.RLock()
        self._under_way: deque[_Reading] = deque()
        self._has_ended = False

    def adapt(self, tensors: dict[str, Any]) -> tuple[Copied, float]:
        """Begins the copies of a batch; lists of bytes stay where they are."""
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
            finally:  # a device whose memory is full may have begun a part of them
                done = reading.done = self._device.copies_begun()
                if self._has_ended:  # by such a handler, which could not wait for these
                    self._device.wait()  # type: ignore[unreachable]  # mypy knows no handlers
        return Copied(batch, there, done), time.perf_counter() - began

    def _let_go(self) -> None:
        """Gives memory back whose copies are known to be done."""
        while self._under_way and (done := self._under_way[0].done) is not None and done.query():
            self._under_way.popleft()

    def hand_over(self, adapted: Copied) -> tuple[dict[str, Any], float, float]:
        """The batch, for the consumer's stream; it waits where the consumer is ahead of the device by more than two."""
        self._given.append((adapted.done, self._device.give(adapted.tensors, adapted.done)))
        began = copied = time.perf_counter()
        if len(self._given) > _STEPS_AHEAD:
            done, before = self._given.popleft()
            done.synchronize()
            copied = time.perf_counter()
            before.synchronize()
        return adapted.batch, copied - began, time.perf_counter() - copied

    def end(self) -> None:
        """Waits for the copies that are under way, and lets go of what they read."""
        with self._turn:
            self._has_ended = True
            if self._under_way:
                # A device that has failed copies no more, and tells whoever uses it next.
                with contextlib.suppress(RuntimeError):
                    self._device.wait()
            self._under_way.clear()

    def __del__(self) -> None:
        # Where Ctrl-C broke off the pass's own end.
        if not self._has_ended and self._pid == os.getpid():
            self.end()


class Cuda:
    """A CUDA device by torch, and its driver for memory of ours."""

    def __init__(self, device: torch.device) -> None:
        """Opens it.

        Raises:
            Unsupported: torch sees no such device.
        """
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise Unsupported(
                f"device: torch {torch.__version__} sees {count or 'no'} CUDA devices here, and {device} was asked for",
                where="device",
                hint="nvidia-smi says what GPUs there are; torch.version.cuda whether this torch was built for them",
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
        """As `CopyDevice`. Ragged fields and functions' results go through torch's own pinned memory."""
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
        """As `CopyDevice`."""
        # Leaving a stream goes by the default device's, where that is another: it would get a context of this process.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def copy(self, here: torch.Tensor) -> torch.Tensor:
        """As `CopyDevice`."""
        return here.to(self._device, non_blocking=True)

    def copies_begun(self) -> torch.cuda.Event:
        """As `CopyDevice`."""
        return self._mark(self._stream)

    def wait(self) -> None:
        """As `CopyDevice`."""
        self._stream.synchronize()

    def give(self, tensors: list[torch.Tensor], copied: Event) -> torch.cuda.Event:
        """As `CopyDevice`."""
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
