# SPDX-License-Identifier: Apache-2.0
"""One pass over an epoch: takes batches from the native run, delivers them, and measures the time spent.

Owns and ends the native run. The loader chooses the position at which a pass starts, and a `Delivery` converts batches.
"""
# ruff: noqa: SLF001 - Epoch and BaseLoader form one unit and use each other's private members

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.errors import ConfigError
from penstock.feed import report as reporting

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.feed.loader import AnyFeed, BaseLoader

__all__ = ["BatchRun", "Delivery", "Epoch"]

Batch = TypeVar("Batch")


class BatchRun(Protocol):
    """Interface of a run, which returns the batches of a pass: the native run, or a run that changes the batches of
    another.
    """

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch as (fields, rows, cursor), or None after the last."""

    def is_ready(self) -> bool:
        """True if `next` would not wait."""

    def timing(self) -> dict[str, float]:
        """Return the seconds of waiting by cause, and the busy seconds of the threads."""

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the numbers of skipped and substituted samples, and the first errors."""

    def close(self) -> None:
        """End the pass's threads and requests."""


class Delivery(Generic[Batch]):
    """Converts the batches of one pass to the consumer's form. This base class returns tensors of the framework that
    use the feed's memory.
    """

    takes_ahead = False
    """Whether the next batch, if it is ready, is adapted before the consumer works on the current batch."""

    def __init__(self, adapt: Callable[[dict[str, Any]], tuple[Batch, float]]) -> None:
        self._adapt = adapt

    def adapt(self, tensors: dict[str, Any]) -> tuple[Any, float]:
        """Convert a batch of native tensors. Return the result, and the seconds spent on copies to a device."""
        return self._adapt(tensors)

    def hand_over(self, adapted: Any) -> tuple[Batch, float, float]:
        """Return the consumer's form of a batch from `adapt`, the seconds of waiting for copies, and the seconds of
        waiting for the consumer's earlier work on the device.
        """
        return adapted, 0.0, 0.0

    def end(self) -> None:
        """Release resources when the pass ends. Any thread of the process that started the pass can call this
        method.
        """


@dataclass(frozen=True, slots=True)
class _Taken:
    """A batch that was taken from the run but not delivered yet."""

    adapted: Any
    rows: int
    cursor: int
    bytes_out: int


class Epoch(Generic[Batch]):
    """One pass over an epoch, or over the rest of an epoch. When the pass is complete, dropped or replaced, its threads
    and requests end.
    """

    def __init__(
        self,
        loader: BaseLoader[Batch],
        feed: AnyFeed,
        epoch: int,
        cursor: int,
    ) -> None:
        self._loader = loader
        self._why: str | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._is_touched = False
        self._begin(feed, epoch, cursor)

    def _begin(self, feed: AnyFeed, epoch: int, cursor: int) -> None:
        loader = self._loader
        self._feed = feed
        self._epoch = epoch
        self._began = time.perf_counter()
        self._measured = loader._measured = reporting.EpochMeasurements(epoch=epoch)
        self._before = feed.metrics()
        self._delivery = loader._delivery()
        self._run: BatchRun | None = loader._run(feed, epoch, cursor)
        # Result of the next step, which was computed in advance: a batch, the end or an error.
        self._ahead: Future[_Taken | None] | None = None
        self._left_at = time.perf_counter()
        self._measured.wait_s = self._left_at - self._began

    @property
    def is_untouched(self) -> bool:
        """True if no batch was requested from this pass in this process. Such a pass can still be moved to another
        position.
        """
        return self._run is not None and self._pid == os.getpid() and not self._is_touched

    def begin_elsewhere(self, feed: AnyFeed, epoch: int, cursor: int) -> None:
        """Move the start of the pass to another epoch and cursor. Only for a pass from which no batch was requested."""
        self.close()
        self._begin(feed, epoch, cursor)

    def __iter__(self) -> Epoch[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._pid != os.getpid():
            # A forked child has no threads of the run, and another thread of the parent may have held the lock.
            self._raise_if_ended()
            raise ConfigError(
                f"iterator: belongs to process {self._pid}; create a new one in this process with iter(loader)",
                where="iterator",
            )
        with self._turn:  # serialises threads that share an iterator
            if not self._is_touched:
                self._is_touched = True
                self._loader._requested(self)
            return self._step()

    def _raise_if_ended(self) -> None:
        if self._why is not None:
            raise ConfigError(f"iterator: ended because {self._why}", where="iterator")
        if self._run is None:
            raise StopIteration

    def _step(self) -> Batch:
        self._raise_if_ended()
        called = time.perf_counter()
        measured, loader = self._measured, self._loader
        measured.compute_s += called - self._left_at
        try:
            ahead, self._ahead = self._ahead, None
            taken = self._take() if ahead is None else ahead.result()
            if taken is not None:
                batch, copied_s, computed_s = self._delivery.hand_over(taken.adapted)
                if self._delivery.takes_ahead and not loader._is_spent(taken.cursor):
                    self._take_ahead()
        except BaseException as error:
            if isinstance(error, ConfigError):
                self._raise_if_ended()  # another thread closed the run, which caused the error
            self._measure()
            self.close()
            raise
        if taken is None:
            self._raise_if_ended()  # another thread ended the pass while this one waited, so the epoch is not exhausted
            self._measure()
            measured.complete = True
            measured.wait_s += time.perf_counter() - called
            measured.wall_s = time.perf_counter() - self._began
            self.close()
            loader._exhausted(self, self._epoch)
            raise StopIteration
        self._raise_if_ended()  # another thread moved the loader to a different position
        measured.samples += taken.rows
        measured.bytes_out += taken.bytes_out
        measured.batches += 1
        measured.host_to_device_s += copied_s
        measured.compute_s += computed_s
        loader._delivered(self, taken.cursor)
        self._left_at = time.perf_counter()
        measured.wait_s += self._left_at - called - computed_s
        measured.wall_s = self._left_at - self._began
        if measured.first_batch_s is None:
            measured.first_batch_s = measured.wall_s
        return batch

    def _take(self) -> _Taken | None:
        """Take the run's next batch; None after the last."""
        run = self._run
        if run is None:  # ended by another thread
            raise ConfigError("iterator: already ended", where="iterator")
        got = run.next()
        if got is None:
            return None
        tensors, rows, cursor = got
        bytes_out = sum(getattr(tensor, "nbytes", 0) for tensor in tensors.values())
        adapted, copied_s = self._delivery.adapt(tensors)
        self._measured.host_to_device_s += copied_s
        return _Taken(adapted, rows, cursor, bytes_out)

    def _take_ahead(self) -> None:
        """Take the batch after the delivered batch from the run, if it is ready. If the run raises an error, store it,
        and raise it when that batch is requested.
        """
        run, ahead = self._run, Future[_Taken | None]()
        try:
            if run is None or not run.is_ready():
                return
            ahead.set_result(self._take())
        except Exception as error:
            ahead.set_exception(_without_frames(error))
        self._ahead = ahead if self._run is not None else None

    def measure(self) -> None:
        """Update the pass's measurements. If a thread currently waits for a batch, the measurements do not change."""
        if self._pid == os.getpid() and self._turn.acquire(blocking=False):
            try:
                self._measure()
            finally:
                self._turn.release()

    def _measure(self) -> None:
        """Copy the times and counters of the native run into the pass's measurements."""
        if self._run is not None and self._pid == os.getpid():
            self._measured.timing = self._run.timing()
            self._measured.error_counts = self._run.error_counts()
            after = self._feed.metrics()
            self._measured.counters = {name: after[name] - self._before[name] for name in after}

    def end(self, why: str) -> None:
        """End the pass. The next step raises an error that contains `why`."""
        if self._run is not None:
            self.measure()
            self._why = why
            self.close()

    def close(self) -> None:
        """End the threads and requests of the pass."""
        if self._run is not None:
            run, self._run, self._ahead = self._run, None, None
            try:
                run.close()
            finally:
                if self._pid == os.getpid():
                    self._delivery.end()

    def __del__(self) -> None:
        if getattr(self, "_run", None) is not None:
            self.measure()
            self.close()


def _without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks of an error and of its causes, because their frames would keep the pass alive."""
    of: BaseException | None = error
    while of is not None:
        of.__traceback__ = None
        of = of.__cause__ or of.__context__
    return error
