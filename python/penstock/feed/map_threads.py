# SPDX-License-Identifier: Apache-2.0
"""Threads of `decode`, for functions that release the GIL. Has the interface of `map_pool.WorkerPool`.

A task is divided into pieces of rows, which the threads take in order. The thread that completes the last piece of a
task gathers the outputs. All threads are daemon threads: a function that hangs cannot be stopped, and must not prevent
the program from exiting.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.feed import map_functions
from penstock.feed.map_functions import FunctionFailed, FunctionHangs, Outputs, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.feed.map_functions import Functions, Rows
    from penstock.feed.map_pool import MapTask

__all__ = ["ThreadPool"]

_PIECES_PER_THREAD = 2
"""Number of pieces of a task per thread. With small pieces, the threads complete a task at about the same time."""


@dataclass(slots=True)
class _Job:
    """A task in progress."""

    task: MapTask
    rows: Rows
    seeds: Sequence[int | None]
    pieces: list[range]
    results: list[Outputs | FunctionFailed | None] = field(default_factory=list)
    left: int = 0
    is_abandoned: bool = False


class ThreadPool:
    """Threads of one loader. They are kept from epoch to epoch."""

    def __init__(self, functions: Functions, threads: int, timeout_s: float, room: Callable[[int], Any]) -> None:
        self._functions, self._threads, self._timeout_s, self._room = functions, threads, timeout_s, room
        self._queue: SimpleQueue[tuple[_Job, int] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._next = self._completed = self._seen = 0
        self._pid = os.getpid()
        self.is_ended = False
        # The sample that each thread works on, as (job, row, time of its start).
        self._working: dict[int, tuple[_Job, int, float]] = {}
        for number in range(threads):
            threading.Thread(target=self._work, name=f"penstock-decode-{number}", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return not self.is_ended and self._pid == os.getpid()

    @property
    def has_room(self) -> bool:
        jobs = list(self._jobs.values())  # a copy, because another thread can abandon the jobs
        pieces = sum(len(job.pieces) for job in jobs)
        return len(jobs) < 2 or pieces < 2 * _PIECES_PER_THREAD * self._threads

    def end(self) -> None:
        """End the threads that wait for work. A thread that runs a function ends when the function returns."""
        self.is_ended = True
        for job in list(self._jobs.values()):
            job.is_abandoned = True
        for _ in range(self._threads):
            self._queue.put(None)

    def submit(self, task: MapTask, rows: Rows, seeds: Sequence[int | None]) -> None:
        """Queue a task."""
        count = len(seeds)
        step = max(1, -(-count // (_PIECES_PER_THREAD * self._threads)))
        pieces = [range(first, min(first + step, count)) for first in range(0, count, step)] or [range(0)]
        task.number, self._next = self._next, self._next + 1
        job = _Job(task, rows, seeds, pieces, [None] * len(pieces), len(pieces))
        self._jobs[task.number] = job
        for number in range(len(pieces)):
            self._queue.put((job, number))

    def wait(self, timeout_s: float) -> None:
        """Wait until another task is complete, but at most `timeout_s` seconds.

        Raises:
            FunctionHangs: A function has not returned within the time limit of one sample.
        """
        with self._changed:
            if self._completed == self._seen:
                self._changed.wait(timeout_s)
            self._seen = self._completed
        now = time.monotonic()
        for ident, (job, row, since) in list(self._working.items()):
            if now - since > self._timeout_s and not job.is_abandoned:
                frame = sys._current_frames().get(ident)  # noqa: SLF001 - the documented way to another thread's stack
                trace = "".join(traceback.format_stack(frame)) if frame is not None else ""
                self.end()
                why = f"fn has not returned after {self._timeout_s:g} s (its thread cannot be stopped)"
                raise FunctionHangs(row, why, trace, job.task)

    def collect(self, task: MapTask) -> Results | None:
        """Return the results of a task; None if the task is not complete.

        Raises:
            ConfigError: Another thread has abandoned the task.
            FunctionFailed: A function raised an exception.
        """
        if task.result is None:
            return None
        if self._jobs.pop(task.number, None) is None:
            raise ConfigError("iterator: already ended", where="iterator")
        if isinstance(task.result, FunctionFailed):
            raise task.result
        results: Results = task.result
        return results

    def abandon(self) -> None:
        """Discard all tasks. Pieces that have not started are not run."""
        for job in list(self._jobs.values()):
            job.is_abandoned = True
        self._jobs.clear()

    def settle(self) -> None:
        """Discard the tasks of an ended pass. Does not wait for the threads."""
        self.abandon()

    def _work(self) -> None:
        ident = threading.get_ident()
        while (got := self._queue.get()) is not None:
            job, number = got
            result: Outputs | FunctionFailed | None = None
            if not job.is_abandoned:

                def note(row: int, job: _Job = job) -> None:
                    self._working[ident] = job, row, time.monotonic()

                try:
                    result = map_functions.outputs_of(self._functions, job.rows, job.pieces[number], job.seeds, note)
                except FunctionFailed as failure:
                    result = failure
                except BaseException as error:  # also SystemExit, which would end the thread
                    row = self._working[ident][1]
                    result = FunctionFailed(row, f"{type(error).__name__}: {error}", traceback.format_exc())
                self._working.pop(ident, None)
            self._complete(job, number, result)
            del job, got, result

    def _complete(self, job: _Job, number: int, result: Outputs | FunctionFailed | None) -> None:
        with self._changed:
            job.results[number] = result
            job.left -= 1
            if job.left or job.is_abandoned:
                return
        # Report the failure of the first row, so that the error does not depend on the timing of threads.
        outputs: Any = next((each for each in job.results if isinstance(each, FunctionFailed)), None)
        if outputs is None:
            try:
                outputs = map_functions.gather([each for each in job.results if isinstance(each, Outputs)], self._room)
            except FunctionFailed as failure:
                outputs = failure
            except BaseException as error:  # also MemoryError; without a result, the consumer would wait forever
                outputs = FunctionFailed(0, f"{type(error).__name__}: {error}", traceback.format_exc())
        with self._changed:
            job.task.result = outputs
            self._completed += 1
            self._changed.notify_all()
