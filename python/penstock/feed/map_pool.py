# SPDX-License-Identifier: Apache-2.0
"""Worker pool of `map`, in the process that iterates: manages the workers' pipes and the shared memory of batches.

Only one thread at a time uses the pipes, and only in the process that started the workers. When a batch is dropped in
any thread, its slot is queued, and the next `submit` or `wait` informs the worker. Until then, the batch's shared
memory stays mapped.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import threading
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, reduction
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed, SystemFault
from penstock.feed import map_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.feed.map_step import MapStep

__all__ = ["MapTask", "WorkerPool"]

_TASKS_PER_WORKER = 2
"""Maximum number of tasks per worker: one in progress and one queued, so that a worker never waits for the pipe."""

_MAX_SPARE_SLOTS = 2
"""Number of free result slots that a worker keeps for reuse."""


class _Forks:
    """Number of forks of this process. A child shares the memory of batches, so a slot that was used before a fork is
    not reused.
    """

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_parent=_Forks.add)


@dataclass(slots=True)
class MapTask:
    """A batch for a worker. `passed` contains the columns that no function receives. `submit` sets the other fields."""

    positions: Sequence[int]
    epoch: int
    cursor: int
    passed: dict[str, Any]
    number: int = -1
    worker: _Worker | None = None
    slot: int = -1
    offered: int | None = None
    result: Any = None


class _Worker:
    """One process, its pipe and its slots."""

    def __init__(self, number: int, pickled: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=map_worker.run_worker, args=(theirs, pickled), name=f"penstock-map-{number}", daemon=True
        )
        self.process.start()
        theirs.close()
        self.tasks = 0
        self.is_ready = False
        self.inputs: dict[int, mmap.mmap] = {}
        self.free_inputs: list[int] = []
        self.outputs: dict[int, mmap.mmap] = {}
        self.free_outputs: list[int] = []
        # Slots without references, each with the fork count at delivery. Finalisers append at any time and in any
        # thread; a deque needs no lock for that.
        self.dropped: deque[tuple[int, int]] = deque()

    def input(self, size: int) -> tuple[int, mmap.mmap]:
        """Return a slot for a task. If the free slots are too small, replaces one with a larger slot."""
        for slot in self.free_inputs:
            if len(self.inputs[slot]) >= size:
                self.free_inputs.remove(slot)
                return slot, self.inputs[slot]
        slot = self.free_inputs.pop() if self.free_inputs else len(self.inputs)
        descriptor, memory = map_worker.new_memory(size)
        self.pipe.send(("input", slot, size))
        reduction.send_handle(self.pipe, descriptor, self.process.pid)
        os.close(descriptor)
        self.inputs[slot] = memory
        return slot, memory

    def reclaim(self) -> None:
        """Reuse dropped slots, and make the worker unmap those above `_MAX_SPARE_SLOTS`."""
        while self.dropped:
            slot, forks = self.dropped.popleft()
            if len(self.free_outputs) < _MAX_SPARE_SLOTS and forks == _Forks.count:
                self.free_outputs.append(slot)
                continue
            self.outputs.pop(slot, None)
            with suppress(OSError):  # the worker has ended, and has released its memory
                self.pipe.send(("drop", slot))

    def end(self) -> None:
        self.pipe.close()
        self.process.join(0.5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class WorkerPool:
    """Worker processes of one loader, which persist from epoch to epoch."""

    def __init__(self, map_steps: Sequence[MapStep]) -> None:
        pickled = pickle.dumps([(mapping.function, mapping.wants_seed) for mapping in map_steps])
        self.pid = os.getpid()
        self.workers = [_Worker(number, pickled) for number in range(max(m.workers for m in map_steps))]
        self.tasks: dict[int, MapTask] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._end = weakref.finalize(self, _end_all, self.workers, self.pid)

    @property
    def is_alive(self) -> bool:
        return self._end.alive and self.pid == os.getpid()

    @property
    def has_room(self) -> bool:
        return any(each.tasks < _TASKS_PER_WORKER for each in self.workers)

    def end(self) -> None:
        self._end()

    @contextmanager
    def _pipes(self) -> Iterator[None]:
        """Context in which only this thread uses the pipes. Dropped slots are reclaimed first.

        Raises:
            ConfigError: The caller is in another process, the workers have ended, or a signal handler interrupted a
                thread that uses the pipes.
        """
        if self.pid != os.getpid():
            raise ConfigError(
                f"iterator: belongs to process {self.pid}; create a new one in this process", where="iterator"
            )
        if self._holder == threading.get_ident():
            raise ConfigError(
                "iterator: a signal handler cannot read from the loader that it interrupted",
                where="iterator",
                hint="set a flag in the handler and act on it between batches",
            )
        with self._lock:
            self._holder = threading.get_ident()
            try:
                if not self._end.alive:
                    raise ConfigError(
                        "iterator: the workers have ended", where="iterator", hint="create a new iterator"
                    )
                for each in self.workers:
                    each.reclaim()
                yield
            except BaseException:
                self.end()  # Ctrl-C may leave half a message in a pipe, so the next pass needs new workers
                raise
            finally:
                self._holder = None

    def submit(self, task: MapTask, rows: map_worker.Rows, seeds: Sequence[int]) -> None:
        """Copy a batch into a slot of the least busy worker, and send the task."""
        import numpy as np

        arrays = dict(rows.arrays)
        for name, (values, offsets) in rows.ragged.items():
            arrays[f"{name}/values"], arrays[f"{name}/offsets"] = values, offsets
        fields, size = map_worker.layout([(name, array.dtype.str, array.shape) for name, array in arrays.items()])
        with self._pipes():
            chosen = task.worker = min(self.workers, key=lambda each: each.tasks)
            task.number, self._next = self._next, self._next + 1
            self.tasks[task.number] = task
            try:
                task.slot, memory = chosen.input(size)
                for name, view in map_worker.arrays_at(memory, fields).items():
                    np.copyto(view, arrays[name])
                task.offered = chosen.free_outputs.pop() if chosen.free_outputs else None
                message = ("task", task.number, task.slot, fields, list(rows.ragged), rows.lists, seeds, task.offered)
                chosen.pipe.send(message)
            except ConnectionError:
                self._lost(chosen)
            except OSError as error:
                raise SystemFault(
                    f"map: {size:,} bytes cannot be shared with a worker: {error.strerror}", where="map"
                ) from None
            chosen.tasks += 1

    def wait(self, timeout_s: float) -> None:
        """Process the workers' messages. Waits at most `timeout_s` for the first message."""
        with self._pipes():
            ready = connection.wait([each.pipe for each in self.workers], timeout_s)
            for sender in [each for each in self.workers if each.pipe in ready]:
                try:
                    message = sender.pipe.recv()
                    self._take(sender, message)
                except (EOFError, ConnectionError):
                    self._lost(sender)

    def _take(self, sender: _Worker, message: Any) -> None:
        if message[0] == "ready":
            sender.is_ready = True
        elif message[0] == "broken":
            self.end()
            error = MapFailed("map: a worker could not load its function", where="map")
            error.add_note("the worker's traceback:\n" + message[1])
            raise error
        else:
            kind, number = message[:2]
            used = message[4] if kind == "done" else None
            if used is not None and message[6]:
                descriptor = reduction.recv_handle(sender.pipe)
                sender.outputs[used] = mmap.mmap(descriptor, message[5])
                os.close(descriptor)
            sender.tasks -= 1
            task = self.tasks[number]
            sender.free_inputs.append(task.slot)
            if task.offered is not None and task.offered != used:  # the slot was too small, or the task failed
                sender.dropped.append((task.offered, -1))
            task.result = message

    def _lost(self, lost: _Worker) -> None:
        lost.process.join(1)
        code = lost.process.exitcode
        held = [task for task in self.tasks.values() if task.worker is lost and task.result is None]
        began = lost.is_ready
        self.end()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        what = (
            f" while it processed positions {held[0].positions[0]:,} to {held[-1].positions[-1]:,} of epoch "
            f"{held[0].epoch}"
            if held
            else ""
        )
        hint = None
        if code == -9:
            hint = "use fewer workers: signal 9 usually means that the system ran out of memory"
        elif not began:
            hint = 'put the main part of the script under `if __name__ == "__main__":`'
        raise MapFailed(f"map: worker {lost.number} (process {lost.process.pid}) {how}{what}", where="map", hint=hint)

    def collect(self, task: MapTask) -> dict[str, Any] | None:
        """Return the result of a task: arrays over shared memory, which then belongs to the caller. None if the task is
        not complete.

        Raises:
            ConfigError: Another thread has abandoned the task.
        """
        if task.result is None:
            return None
        if self.tasks.pop(task.number, None) is None:
            raise ConfigError("iterator: already ended", where="iterator")
        if task.result[0] == "failed":
            _, _, row, why, trace = task.result
            raise map_worker.FunctionFailed(row, why, trace)
        _, _, fields, lists, slot, _, _ = task.result
        made: dict[str, Any] = dict(lists)
        sender = task.worker
        if sender is not None and slot is not None:
            memory = sender.outputs[slot]
            # The caller's arrays keep `owner` alive. When the last array is dropped, the finaliser frees the slot for
            # reuse.
            owner = (ctypes.c_char * len(memory)).from_buffer(memory)
            weakref.finalize(owner, sender.dropped.append, (slot, _Forks.count)).atexit = False
            made.update(map_worker.arrays_at(owner, fields))
        return made

    def abandon(self) -> None:
        """Discard completed tasks and reuse their slots. Does not wait for a worker."""
        for number, task in list(self.tasks.items()):
            if task.result is None or self.tasks.pop(number, None) is None:
                continue
            if task.worker is not None and task.result[0] == "done" and task.result[4] is not None:
                task.worker.dropped.append((task.result[4], _Forks.count))

    def settle(self) -> None:
        """Wait for all tasks of an ended pass, and discard their results."""
        self.abandon()
        while self.tasks:
            self.wait(1.0)
            self.abandon()


def _end_all(workers: list[_Worker], pid: int) -> None:
    if pid == os.getpid():  # a forked child inherits the pipes, but must not use the parent's workers
        for each in workers:
            each.pipe.close()
        for each in workers:
            each.end()
