# SPDX-License-Identifier: Apache-2.0
"""Copies batches from registered (pinned) host memory to a CUDA device, on another stream than the consumer's.

Host memory is reused after an event reports that its copies are complete. The consumer's stream waits for a batch's
copies before it uses the batch. This module also limits how many batches the consumer takes before the device has
completed its work. Only this module and `feed.torch` import torch.
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
from penstock.feed import batch_columns
from penstock.feed.epoch import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Copied", "Copies", "CopyDevice", "Cuda", "Given"]

_STEPS_AHEAD = 2
"""Maximum number of delivered batches whose work on the device is not complete. Each of these batches occupies device
memory.
"""


class Event(Protocol):
    """An event in a CUDA stream."""

    def query(self) -> bool:
        """True when all work before this event is complete."""

    def synchronize(self) -> None:
        """Wait until all work before this event is complete."""


class CopyDevice(Protocol):
    """Target device of the copies, with a stream for copies and the consumer's stream."""

    def pinned(self, column: Any) -> torch.Tensor:
        """Return a native tensor or an array as a tensor in host memory that the device can read directly."""

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context manager in which `copy` may be called."""

    def copy(self, here: torch.Tensor) -> torch.Tensor:
        """Start a copy. The caller must keep `here` until the copy is complete."""

    def copies_begun(self) -> Event:
        """Return an event that is complete after all copies that have started."""

    def wait(self) -> None:
        """Wait for all copies that have started."""

    def give(self, tensors: list[torch.Tensor], copied: Event) -> Event:
        """Make the consumer's stream wait for `copied` and become the owner of the tensors. Return an event that
        follows the consumer's earlier work.
        """


Given = deque[tuple[Event, Event]]
"""For each recent batch of a consumer: the event after its copies, and the event after the consumer's earlier work."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A batch whose copies have started."""

    batch: dict[str, Any]
    tensors: list[torch.Tensor]
    done: Event


@dataclass(slots=True)
class _Reading:
    """Host memory that copies read, and the event after which the memory can be released. The event is None until all
    copies have started.
    """

    here: list[torch.Tensor] = field(default_factory=list)
    done: Event | None = None


class Copies(Delivery[dict[str, Any]]):
    """Copies the batches of one pass to a device. `given` records delivered batches, and is kept for the next pass."""

    takes_ahead = True

    def __init__(self, device: CopyDevice, given: Given) -> None:
        self._device, self._given, self._pid = device, given, os.getpid()
        # Other threads can end the pass. The lock is reentrant, because a signal handler can end the pass during a step
        # of this thread.
        self._turn = threading.RLock()
        self._under_way: deque[_Reading] = deque()
        self._has_ended = False

    def adapt(self, tensors: dict[str, Any]) -> tuple[Copied, float]:
        """Start the copies of a batch. Lists of bytes stay on the host."""
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
                raise ConfigError("iterator: already ended", where="iterator")
            self._let_go()
            self._under_way.append(reading)
            try:
                with self._device.copying():
                    batch = batch_columns.adapt(tensors, copy)
            finally:  # some copies have started even if the device ran out of memory
                done = reading.done = self._device.copies_begun()
                if self._has_ended:  # a signal handler ended the pass, but could not wait for these copies
                    self._device.wait()  # type: ignore[unreachable]  # mypy knows no handlers
        return Copied(batch, there, done), time.perf_counter() - began

    def _let_go(self) -> None:
        """Release host memory whose copies are complete."""
        while self._under_way and (done := self._under_way[0].done) is not None and done.query():
            self._under_way.popleft()

    def hand_over(self, adapted: Copied) -> tuple[dict[str, Any], float, float]:
        """Return the batch for use on the consumer's stream. Waits if the device has not completed the work of more
        than two delivered batches.
        """
        self._given.append((adapted.done, self._device.give(adapted.tensors, adapted.done)))
        began = copied = time.perf_counter()
        if len(self._given) > _STEPS_AHEAD:
            done, before = self._given.popleft()
            done.synchronize()
            copied = time.perf_counter()
            before.synchronize()
        return adapted.batch, copied - began, time.perf_counter() - copied

    def end(self) -> None:
        """Wait for the copies in flight, then release the host memory that they read."""
        with self._turn:
            self._has_ended = True
            if self._under_way:
                # Ignore the error of a failed device: its copies have stopped, and its next use raises the error again.
                with contextlib.suppress(RuntimeError):
                    self._device.wait()
            self._under_way.clear()

    def __del__(self) -> None:
        # Call `end` again, because Ctrl-C may have interrupted the first call.
        if not self._has_ended and self._pid == os.getpid():
            self.end()


class Cuda:
    """A CUDA device of torch. Registers the feed's memory with the CUDA driver."""

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
        """Implement `CopyDevice`. Ragged fields and results of functions are first copied to torch's pinned memory."""
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
        # Set the current device, too: when torch leaves the stream context, it would otherwise create a CUDA context on
        # another device.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def copy(self, here: torch.Tensor) -> torch.Tensor:
        return here.to(self._device, non_blocking=True)

    def copies_begun(self) -> torch.cuda.Event:
        return self._mark(self._stream)

    def wait(self) -> None:
        self._stream.synchronize()

    def give(self, tensors: list[torch.Tensor], copied: Event) -> torch.cuda.Event:
        consumer = torch.cuda.current_stream(self._device)
        before = self._mark(consumer)
        consumer.wait_event(copied)
        for tensor in tensors:
            # The tensor's memory belongs to the copy stream, which must not reuse it before the consumer has finished
            # with it.
            tensor.record_stream(consumer)
        return before

    @staticmethod
    def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
        # While a thread waits for a blocking event, it sleeps instead of spinning, so the CPU core is free for
        # decoding.
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event
