# SPDX-License-Identifier: Apache-2.0
"""One pass over an epoch: takes batches from the native run, delivers them, and measures where the time goes.

Owns the run and its end. The loader decides where an epoch begins; the delivery decides what a batch is.
"""
# ruff: noqa: SLF001 - a pass and its loader are one unit of two classes

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.errors import ConfigError
from penstock.feed import report as reporting

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import _native
    from penstock.feed.loader import BaseLoader
    from penstock.feed.map_step import MapRun

__all__ = ["Delivery", "Epoch"]

Batch = TypeVar("Batch")


class Delivery(Generic[Batch]):
    """How the batches of one pass reach their holder: as a framework's, over the feed's own memory."""

    takes_ahead = False
    """Whether the next batch is adapted, where it is there already, before this one is worked on."""

    def __init__(self, adapt: Callable[[dict[str, Any]], tuple[Batch, float]]) -> None:
        self._adapt = adapt

    def adapt(self, tensors: dict[str, Any]) -> tuple[Any, float]:
        """A batch of native tensors on its way, and the seconds that copies to a device took."""
        return self._adapt(tensors)

    def hand_over(self, adapted: Any) -> tuple[Batch, float, float]:
        """What `adapt` made as its holder gets it, and the seconds waited for copies and for the holder's own work."""
        return adapted, 0.0, 0.0

    def end(self) -> None:
        """The pass is over; in the process that began it, and from any thread."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A batch that has left the run and was not handed over yet."""

    adapted: Any
    rows: int
    cursor: int
    bytes_out: int


class Epoch(Generic[Batch]):
    """One pass over (what is left of) an epoch. Ends its threads and requests when it is done, dropped or superseded."""

    def __init__(
        self, loader: BaseLoader[Batch], feed: _native.Feed | _native.UnindexedFeed, epoch: int, cursor: int
    ) -> None:
        self._loader = loader
        self._feed = feed
        self._epoch = epoch
        self._why: str | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._began = time.perf_counter()
        self._measured = loader._measured = reporting.EpochMeasurements(epoch=epoch)
        self._before = feed.metrics()
        self._delivery = loader._delivery()
        self._run: _native.Run | MapRun | None = loader._run(feed, epoch, cursor)
        # What the next step will find: a batch, the end or an error.
        self._ahead: Future[_Taken | None] | None = None
        self._left_at = time.perf_counter()
        self._measured.wait_s = self._left_at - self._began

    def __iter__(self) -> Epoch[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._pid != os.getpid():
            self._ahead = None
            return self._step()  # refused there; the lock may be held for ever
        with self._turn:  # threads that share an iterator take turns
            return self._step()

    def _raise_if_ended(self) -> None:
        if self._why is not None:
            raise ConfigError(f"iterator: it has ended, since {self._why}", where="iterator")
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
                self._raise_if_ended()  # by another thread, which was closing the run
            self._measure()
            self.close()
            raise
        if taken is None:
            self._raise_if_ended()  # by another thread, while this one waited: the epoch is not exhausted
            self._measure()
            measured.complete = True
            measured.wait_s += time.perf_counter() - called
            measured.wall_s = time.perf_counter() - self._began
            self.close()
            loader._exhausted(self, self._epoch)
            raise StopIteration
        self._raise_if_ended()  # by another thread, and the loader stands elsewhere now
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
        """The run's next batch, or None after the last."""
        run = self._run
        if run is None:  # ended by another thread
            raise ConfigError("iterator: it has ended", where="iterator")
        got = run.next()
        if got is None:
            return None
        tensors, rows, cursor = got
        bytes_out = sum(getattr(tensor, "nbytes", 0) for tensor in tensors.values())
        adapted, copied_s = self._delivery.adapt(tensors)
        self._measured.host_to_device_s += copied_s
        return _Taken(adapted, rows, cursor, bytes_out)

    def _take_ahead(self) -> None:
        """Takes the batch after the one that was handed over, if it is there; an error waits for its turn."""
        run, ahead = self._run, Future[_Taken | None]()
        try:
            if run is None or not run.is_ready():
                return
            ahead.set_result(self._take())
        except Exception as error:
            ahead.set_exception(_without_frames(error))
        self._ahead = ahead if self._run is not None else None

    def measure(self) -> None:
        """Brings the measured pass up to date; while a thread waits for a batch, it stays as of the last one."""
        if self._pid == os.getpid() and self._turn.acquire(blocking=False):
            try:
                self._measure()
            finally:
                self._turn.release()

    def _measure(self) -> None:
        """Brings the native side's times and counters into the measured pass."""
        if self._run is not None and self._pid == os.getpid():
            self._measured.timing = self._run.timing()
            self._measured.mended = self._run.mended()
            after = self._feed.metrics()
            self._measured.counters = {name: after[name] - self._before[name] for name in after}

    def end(self, why: str) -> None:
        """Ends it for a reason that its holder is told at the next step."""
        if self._run is not None:
            self.measure()
            self._why = why
            self.close()

    def close(self) -> None:
        """Ends threads and requests."""
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
    """The error alone: frames hold the pass that it was met in, and those of what it came from do."""
    of: BaseException | None = error
    while of is not None:
        of.__traceback__ = None
        of = of.__cause__ or of.__context__
    return error
