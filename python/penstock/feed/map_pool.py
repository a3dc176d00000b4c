# SPDX-License-Identifier: Apache-2.0
"""Worker pool of `map` and `decode`, in the process that iterates: manages the workers' pipes and the shared memory of
batches.

Only one thread at a time uses the pipes, and only in the process that started the workers. When any thread drops a
batch, the batch's slot is queued. The next `submit` or `wait` reuses the slot, or makes the worker unmap it.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, reduction
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed, SystemFault
from penstock.feed import map_functions, map_worker
from penstock.ownership.processes import signal_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MapTask", "WorkerPool"]

_TASKS_PER_WORKER = 2
"""Maximum number of tasks per worker: one in progress and one queued, so that a worker never waits for the pipe."""

_MAX_SPARE_SLOTS = 2
"""Number of free result slots that a worker keeps for reuse."""

_TRACE_WAIT_S = 0.5
"""Maximum time to wait for the traceback of a worker whose function does not return, in seconds."""

_END_WAIT_S = 0.5
"""Time in seconds that the workers have to exit. After this time, they are killed."""


class _Forks:
    """Counts the forks of this process. A slot that was in use at a fork is not reused, because the forked child shares
    its memory.
    """

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_parent=_Forks.add)


@dataclass(slots=True)
class MapTask:
    """A batch for a worker. `passed` contains the columns that functions do not receive. `submit` sets `number` and all
    attributes after `number`.
    """

    positions: Sequence[int]
    epoch: int
    start: int
    cursor: int
    passed: dict[str, Any]
    first_row: int = 0
    number: int = -1
    worker: _Worker | None = None
    slot: int = -1
    offered: int | None = None
    result: Any = None


class _Worker:
    """One worker process, with its pipe and its slots."""

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
        # The sample in progress, as (task, row), and the time at which this process first read this value.
        self.seen: tuple[int, int] = (-1, 0)
        self.seen_at = 0.0
        self.inputs: dict[int, mmap.mmap] = {}
        self.free_inputs: list[int] = []
        self.outputs: dict[int, mmap.mmap] = {}
        self.free_outputs: list[int] = []
        # Slots without references, each with the number of forks at delivery. Finalisers append to the deque at any
        # time and in any thread. This is safe without a lock.
        self.dropped: deque[tuple[int, int]] = deque()
        self.trace, self.progress = self._share(map_worker.PROGRESS_SLOT, mmap.PAGESIZE)
        map_worker.PROGRESS.pack_into(self.progress, 0, -1, 0)

    def _share(self, slot: int, size: int) -> tuple[int, mmap.mmap]:
        """Create an input slot. Return its file descriptor, which the caller closes, and its memory."""
        descriptor, memory = map_worker.new_memory(size)
        self.pipe.send(("input", slot, size))
        reduction.send_handle(self.pipe, descriptor, self.process.pid)
        return descriptor, memory

    def input(self, size: int) -> tuple[int, mmap.mmap]:
        """Return a slot for a task. If all free slots are too small, replace one by a larger slot."""
        for slot in self.free_inputs:
            if len(self.inputs[slot]) >= size:
                self.free_inputs.remove(slot)
                return slot, self.inputs[slot]
        slot = self.free_inputs.pop() if self.free_inputs else len(self.inputs)
        descriptor, memory = self._share(slot, size)
        os.close(descriptor)
        self.inputs[slot] = memory
        return slot, memory

    def reclaim(self) -> None:
        """Reuse at most `_MAX_SPARE_SLOTS` dropped slots, and make the worker unmap the others."""
        while self.dropped:
            slot, forks = self.dropped.popleft()
            if len(self.free_outputs) < _MAX_SPARE_SLOTS and forks == _Forks.count:
                self.free_outputs.append(slot)
                continue
            self.outputs.pop(slot, None)
            with suppress(OSError):  # the worker has ended, and has released its memory
                self.pipe.send(("drop", slot))

    def overdue(self, timeout_s: float, now: float) -> tuple[int, int] | None:
        """Return (task, row) of the sample whose function has run for more than `timeout_s`, or None."""
        seen = map_worker.PROGRESS.unpack_from(self.progress)
        if seen != self.seen or seen[0] < 0:
            self.seen, self.seen_at = seen, now
        return seen if now - self.seen_at > timeout_s else None

    def traceback(self) -> str:
        """Return the traceback of the function that is running; empty if the worker does not write a traceback."""
        signal_process(self.process.pid or 0, map_worker.TRACE_SIGNAL, lambda _: self.process.is_alive())
        until, found = time.monotonic() + _TRACE_WAIT_S, b""
        while time.monotonic() < until and b"run_worker" not in found:
            time.sleep(0.01)
            found = os.pread(self.trace, 1 << 16, map_worker.TRACE_AT).replace(b"\0", b"")
        return found.decode(errors="replace")

    def end(self, wait_s: float) -> None:
        self.process.join(wait_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        os.close(self.trace)


class WorkerPool:
    """Worker processes of one loader, which persist from epoch to epoch."""

    def __init__(self, functions: map_functions.Functions, workers: int, timeout_s: float) -> None:
        pickled = pickle.dumps(functions)
        self.pid = os.getpid()
        self._name, self._timeout_s = functions.name, timeout_s
        self.workers = [_Worker(number, pickled) for number in range(workers)]
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
        """Return a context in which only this thread uses the pipes. Dropped slots are reclaimed first.

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
                self.end()  # Ctrl-C can leave half a message in a pipe, so the next pass needs new workers
                raise
            finally:
                self._holder = None

    def submit(self, task: MapTask, rows: map_functions.Rows, seeds: Sequence[int | None]) -> None:
        """Copy a batch into a slot of the least busy worker, and send the task."""
        import numpy as np

        arrays = dict(rows.arrays)
        for name, (values, offsets) in rows.ragged.items():
            arrays[f"{name}/values"], arrays[f"{name}/offsets"] = values, offsets
        fields, size = map_functions.layout([(name, array.dtype.str, array.shape) for name, array in arrays.items()])
        with self._pipes():
            chosen = task.worker = min(self.workers, key=lambda each: each.tasks)
            task.number, self._next = self._next, self._next + 1
            self.tasks[task.number] = task
            try:
                task.slot, memory = chosen.input(size)
                for name, view in map_functions.arrays_at(memory, fields).items():
                    np.copyto(view, arrays[name])
                task.offered = chosen.free_outputs.pop() if chosen.free_outputs else None
                columns = (fields, list(rows.ragged), rows.raw, rows.lists)
                chosen.pipe.send(("task", task.number, task.slot, *columns, seeds, task.offered))
            except ConnectionError:
                self._lost(chosen)
            except OSError as error:
                raise SystemFault(
                    f"{self._name}: {size:,} bytes cannot be shared with a worker: {error.strerror}", where=self._name
                ) from None
            chosen.tasks += 1

    def wait(self, timeout_s: float) -> None:
        """Process the messages of the workers. Waits at most `timeout_s` seconds for the first message.

        Raises:
            FunctionHangs: A function has not returned within the time limit of one sample.
        """
        with self._pipes():
            ready = connection.wait([each.pipe for each in self.workers], timeout_s)
            for sender in [each for each in self.workers if each.pipe in ready]:
                try:
                    message = sender.pipe.recv()
                    self._take(sender, message)
                except (EOFError, ConnectionError):
                    self._lost(sender)
            now = time.monotonic()
            for each in self.workers:
                if (found := each.overdue(self._timeout_s, now)) and found[0] in self.tasks:
                    why = f"fn has not returned after {self._timeout_s:g} s (worker {each.number})"
                    raise map_functions.FunctionHangs(found[1], why, each.traceback(), self.tasks[found[0]])

    def _take(self, sender: _Worker, message: Any) -> None:
        if message[0] == "ready":
            sender.is_ready = True
        elif message[0] == "broken":
            self.end()
            error = MapFailed(f"{self._name}: a worker could not load its function", where=self._name)
            error.add_note("the worker's traceback:\n" + message[1])
            raise error
        else:
            kind, number = message[:2]
            used = message[3] if kind == "done" else None
            if used is not None and message[5]:
                descriptor = reduction.recv_handle(sender.pipe)
                sender.outputs[used] = mmap.mmap(descriptor, message[4])
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
            first, last = map_worker.MEMORY.unpack_from(lost.progress, map_worker.PROGRESS.size)
            if last > 2 * first > 0:
                how += f" after its memory had grown from {first / 1e6:,.0f} to {last / 1e6:,.0f} MB"
                hint = "find what the function keeps from call to call: its memory grew until the worker was killed"
        elif not began:
            hint = 'put the main part of the script under `if __name__ == "__main__":`'
        text = f"{self._name}: worker {lost.number} (process {lost.process.pid}) {how}{what}"
        raise MapFailed(text, where=self._name, hint=hint)

    def collect(self, task: MapTask) -> map_functions.Results | None:
        """Return the results of a task as arrays in shared memory, which belongs to the caller until it drops the
        arrays. None if the task is not complete.

        Raises:
            ConfigError: Another thread has abandoned the task.
            FunctionFailed: A function raised an exception.
        """
        if task.result is None:
            return None
        if self.tasks.pop(task.number, None) is None:
            raise ConfigError("iterator: already ended", where="iterator")
        if task.result[0] == "failed":
            _, _, row, why, trace = task.result
            raise map_functions.FunctionFailed(row, why, trace)
        results: map_functions.Results = task.result[2]
        slot = task.result[3]
        sender = task.worker
        if sender is not None and slot is not None:
            memory = sender.outputs[slot]
            # The caller's arrays keep `owner` alive. When the last array is dropped, the finaliser frees the slot for
            # reuse.
            owner = (ctypes.c_char * len(memory)).from_buffer(memory)
            weakref.finalize(owner, sender.dropped.append, (slot, _Forks.count)).atexit = False
            results.arrays = map_functions.arrays_at(owner, results.fields)
        return results

    def abandon(self) -> None:
        """Discard completed tasks and reuse their slots. Does not wait for a worker."""
        for number, task in list(self.tasks.items()):
            if task.result is None or self.tasks.pop(number, None) is None:
                continue
            if task.worker is not None and task.result[0] == "done" and task.result[3] is not None:
                task.worker.dropped.append((task.result[3], _Forks.count))

    def settle(self) -> None:
        """Wait for all tasks of an ended pass, and discard their results."""
        self.abandon()
        while self.tasks:
            self.wait(1.0)
            self.abandon()


def _end_all(workers: list[_Worker], pid: int) -> None:
    if pid == os.getpid():  # a forked child inherits the pipes, but must not end the parent's workers
        for each in workers:
            each.pipe.close()
        until = time.monotonic() + _END_WAIT_S
        for each in workers:
            each.end(max(0.0, until - time.monotonic()))
