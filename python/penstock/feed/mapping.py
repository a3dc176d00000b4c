# SPDX-License-Identifier: Apache-2.0
"""Python functions over the samples of a feed, in this process or in spawned ones; order and state stay here.

Owns the worker processes of a loader and the shared memory that batches pass through. Batches go to whichever worker has
least to do and come out in their order. A worker that dies ends the pass with one error: what killed it would kill the
next one too, and the loader's state is that of the last delivered batch.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import mmap
import multiprocessing
import operator
import os
import pickle
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import connection, reduction
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock import _native
    from penstock.feed.loader import BaseLoader
    from penstock.feed.shape import Shaped

__all__ = ["Crew", "MapRun", "Mapping", "run_here", "sample_seed"]

_TASKS_A_WORKER = 2
"""Batches at a worker: one that it works on and one that waits, so that it never waits for the pipe."""

_POLL_S = 0.005
"""How often a free worker looks whether the feed has a batch for it."""

_SPARE = 2
"""Result slots of a worker that wait to be used again."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A function, whether it takes a seed, and in how many processes it runs."""

    function: Callable[..., dict[str, Any]]
    wants_seed: bool
    workers: int

    @classmethod
    def of(cls, function: Callable[..., dict[str, Any]], workers: int) -> Mapping:
        """Looks at a function.

        Raises:
            ConfigError: No function, no number of workers, or a function that does not pickle where there are workers.
        """
        workers = operator.index(workers)
        if not callable(function):
            raise ConfigError(f"map: {function!r} cannot be called", where="map")
        if not 0 <= workers <= 1024:
            raise ConfigError(f"workers: {workers} is not within 0 to 1024", where="workers")
        try:
            wants_seed = "seed" in inspect.signature(function).parameters
        except (TypeError, ValueError):
            wants_seed = False
        if workers:
            try:
                pickle.dumps(function)
            except Exception as error:
                raise ConfigError(
                    f"map: {function!r} does not pickle, so no other process can run it: {error}",
                    where="map",
                    hint="define it at the top of a module, or say workers=0",
                ) from None
        return cls(function, wants_seed, workers)


def sample_seed(seed: int | None, epoch: int, position: int) -> int:
    """The number that a sample's randomness comes from: of the order's seed, the epoch and the position, and of nothing
    else, so that ranks, workers and restarts do not change it. 0 to 2^63 - 1.
    """
    text = f"penstock-map:{seed}:{epoch}:{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


@dataclass(slots=True)
class _Task:
    """A batch at a worker."""

    worker: _Worker
    slot: int
    positions: Sequence[int]
    epoch: int
    cursor: int
    passed: dict[str, Any]
    result: Any = None


class _Worker:
    """One process, its pipe and its slots."""

    def __init__(self, number: int, pickled: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=worker.work, args=(theirs, pickled), name=f"penstock-map-{number}", daemon=True
        )
        self.process.start()
        theirs.close()
        self.tasks = 0
        self.is_ready = False
        self.inputs: dict[int, mmap.mmap] = {}
        self.free_inputs: list[int] = []
        self.outputs: dict[int, mmap.mmap] = {}
        self.free_outputs: list[int] = []

    def input(self, size: int) -> tuple[int, mmap.mmap]:
        """A slot for a task; a larger one where the old ones are too small."""
        for slot in self.free_inputs:
            if len(self.inputs[slot]) >= size:
                self.free_inputs.remove(slot)
                return slot, self.inputs[slot]
        slot = self.free_inputs.pop() if self.free_inputs else len(self.inputs)
        descriptor, memory = worker.new_memory(size)
        self.pipe.send(("input", slot, size))
        reduction.send_handle(self.pipe, descriptor, self.process.pid)
        os.close(descriptor)
        self.inputs[slot] = memory
        return slot, memory

    def give_back(self, slot: int) -> None:
        """A result slot that the consumer has let go of."""
        if len(self.free_outputs) < _SPARE:
            self.free_outputs.append(slot)
            return
        self.outputs.pop(slot, None)
        try:
            self.pipe.send(("drop", slot))
        except OSError:  # it has gone, and its memory with it
            return

    def end(self) -> None:
        self.pipe.close()
        self.process.join(0.5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Crew:
    """The processes of one loader, kept from epoch to epoch."""

    def __init__(self, mappings: Sequence[Mapping]) -> None:
        pickled = pickle.dumps([(mapping.function, mapping.wants_seed) for mapping in mappings])
        self.pid = os.getpid()
        self.workers = [_Worker(number, pickled) for number in range(max(m.workers for m in mappings))]
        self.tasks: dict[int, _Task] = {}
        self._next = 0
        self._end = weakref.finalize(self, _end_all, self.workers, self.pid)

    @property
    def is_alive(self) -> bool:
        return self._end.alive and self.pid == os.getpid()

    @property
    def has_room(self) -> bool:
        return any(each.tasks < _TASKS_A_WORKER for each in self.workers)

    def end(self) -> None:
        self._end()

    def submit(self, rows: worker.Rows, task: Callable[[_Worker, int], _Task], seeds: Sequence[int]) -> int:
        """Copies a batch into the slot of the worker that has least to do, and tells it."""
        import numpy as np

        chosen = min(self.workers, key=lambda each: each.tasks)
        arrays = dict(rows.arrays)
        for name, (values, offsets) in rows.ragged.items():
            arrays[f"{name}/values"], arrays[f"{name}/offsets"] = values, offsets
        fields, size = worker.layout([(name, array.dtype.str, array.shape) for name, array in arrays.items()])
        number, self._next = self._next, self._next + 1
        try:
            slot, memory = chosen.input(size)
            for name, seat in worker.arrays_at(memory, fields).items():
                np.copyto(seat, arrays[name])
            offered = chosen.free_outputs.pop() if chosen.free_outputs else None
            chosen.pipe.send(("task", number, slot, fields, list(rows.ragged), rows.lists, seeds, offered))
        except OSError:
            self.tasks[number] = task(chosen, -1)
            self._lost(chosen)
        chosen.tasks += 1
        self.tasks[number] = task(chosen, slot)
        return number

    def wait(self, timeout_s: float) -> None:
        """Takes what the workers have to say, waiting at most so long for the first."""
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
            descriptor = None
            if kind == "done" and message[6]:
                descriptor = reduction.recv_handle(sender.pipe)
                sender.outputs[message[4]] = mmap.mmap(descriptor, message[5])
                os.close(descriptor)
            sender.tasks -= 1
            task = self.tasks.get(number)
            if task is not None:
                sender.free_inputs.append(task.slot)
                task.result = message

    def _lost(self, lost: _Worker) -> None:
        lost.process.join(1)
        code = lost.process.exitcode
        held = [task for task in self.tasks.values() if task.worker is lost and task.result is None]
        began = lost.is_ready
        self.end()
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        what = (
            f" while it had positions {held[0].positions[0]:,} to {held[-1].positions[-1]:,} of epoch {held[0].epoch}"
            if held
            else ""
        )
        hint = None
        if code == -9:
            hint = "signal 9 is how the system ends a process when memory is short; fewer workers need less"
        elif not began:
            hint = 'a script that starts workers needs `if __name__ == "__main__":` around its main part'
        raise MapFailed(f"map: worker {lost.number} (process {lost.process.pid}) {how}{what}", where="map", hint=hint)

    def collect(self, number: int) -> tuple[dict[str, Any], _Task] | None:
        """The result of a task, when it is there: arrays over shared memory, which is the holder's."""
        task = self.tasks[number]
        if task.result is None:
            return None
        del self.tasks[number]
        kind = task.result[0]
        if kind == "failed":
            _, _, row, why, trace = task.result
            raise worker.Failure(row, why, trace)
        _, _, fields, lists, slot, _, _ = task.result
        made: dict[str, Any] = dict(lists)
        if slot is not None and fields:
            sender = task.worker
            memory = sender.outputs[slot]
            # The holder's arrays keep this alive; when the last is gone, the slot is used again.
            owner = (ctypes.c_char * len(memory)).from_buffer(memory)
            weakref.finalize(owner, _Worker.give_back, sender, slot).atexit = False
            made.update(worker.arrays_at(owner, fields))
        return made, task

    def abandon(self, numbers: Sequence[int]) -> None:
        """Forgets tasks of a pass that was ended; their slots are used again once the workers have answered."""
        for number in numbers:
            task = self.tasks.get(number)
            if task is None or task.result is None:
                continue
            del self.tasks[number]
            if task.result[0] == "done" and task.result[4] is not None:
                task.worker.give_back(task.result[4])

    def settle(self) -> None:
        """Waits for the answers to tasks that were forgotten."""
        while self.tasks:
            self.wait(1.0)
            self.abandon(list(self.tasks))


def _end_all(workers: list[_Worker], pid: int) -> None:
    if pid == os.getpid():  # a forked child has their pipes, but they are not its own
        for each in workers:
            each.pipe.close()
        for each in workers:
            each.end()


@dataclass(slots=True)
class _Pass:
    """Where a pass stands: what was read of the feed, and what of it is at the workers."""

    epoch: int
    read: int
    under_way: deque[int] = field(default_factory=deque)
    is_exhausted: bool = False
    wait_s: float = 0.0


class MapRun:
    """A native run whose batches pass through functions. What the loader's iterator sees of either is the same."""

    def __init__(self, loader: BaseLoader[Any], run: _native.Run, epoch: int, cursor: int) -> None:
        from penstock.feed.numpy import array

        self._loader, self._run, self._array = loader, run, array
        self._pass = _Pass(epoch, cursor)
        self._functions = [(mapping.function, mapping.wants_seed) for mapping in loader.dataset.mappings]
        self._crew = loader.crew()
        if self._crew is not None:
            self._crew.settle()

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """The next batch in order, or None after the last."""
        if self._crew is None:
            return self._next_here()
        crew, state = self._crew, self._pass
        while True:
            self._fill(crew)
            if not state.under_way:
                return None
            positions = crew.tasks[state.under_way[0]].positions
            try:
                found = crew.collect(state.under_way[0])
            except worker.Failure as failure:
                raise _failed(failure, self._loader.dataset, state.epoch, positions) from None
            if found is not None:
                state.under_way.popleft()
                made, task = found
                return {**task.passed, **made}, len(task.positions), task.cursor
            began = time.perf_counter()
            crew.wait(_POLL_S if crew.has_room and not state.is_exhausted else 1.0)
            state.wait_s += time.perf_counter() - began

    def _fill(self, crew: Crew) -> None:
        state = self._pass
        while not state.is_exhausted and crew.has_room and (not state.under_way or self._run.is_ready()):
            got = self._run.next()
            if got is None:
                state.is_exhausted = True
                return
            rows, passed, positions, cursor = self._rows(got)
            seeds = _seeds(self._loader.dataset, state.epoch, positions)

            def task(chosen: _Worker, slot: int, p: Any = positions, c: int = cursor, w: Any = passed) -> _Task:
                return _Task(chosen, slot, p, state.epoch, c, w)

            state.under_way.append(crew.submit(rows, task, seeds))

    def _next_here(self) -> tuple[dict[str, Any], int, int] | None:
        got = self._run.next()
        if got is None:
            return None
        rows, passed, positions, cursor = self._rows(got)
        import numpy as np

        began = time.perf_counter()
        seeds = _seeds(self._loader.dataset, self._pass.epoch, positions)
        with _generators_kept():
            try:
                results = worker.apply(self._functions, rows, seeds, lambda size: np.empty(size, dtype=np.uint8))
            except worker.Failure as failure:
                raise _failed(failure, self._loader.dataset, self._pass.epoch, positions) from failure.__cause__
        self._pass.wait_s += time.perf_counter() - began
        return {**passed, **results.arrays, **results.lists}, len(positions), cursor

    def _rows(self, got: tuple[dict[str, Any], int, int]) -> tuple[worker.Rows, dict[str, Any], Sequence[int], int]:
        """A batch of the feed, parted by kind, and the positions of its rows."""
        tensors, count, cursor = got
        loader, state = self._loader, self._pass
        samples = loader.dataset.samples
        start = state.read
        end = start + loader.global_batch if loader.tail == "pad" else min(start + loader.global_batch, samples)
        first = start + (end - start) * loader.rank // loader.world
        state.read = cursor
        rows, passed = worker.Rows({}), {}
        for name, value in tensors.items():
            if name == "weight" and loader.tail == "pad":
                passed[name] = self._array(value)
            else:
                _add(rows, name, value, self._array)
        return rows, passed, range(first, first + count), cursor

    def timing(self) -> dict[str, float]:
        """The native run's, and what was waited for functions."""
        return {**self._run.timing(), "wait_map_s": self._pass.wait_s}

    def mended(self) -> tuple[int, int, list[str]]:
        """The native run's."""
        return self._run.mended()

    def is_ready(self) -> bool:
        """True when `next` would answer at once; never without workers, where it runs the functions."""
        crew, under_way = self._crew, self._pass.under_way
        if crew is None or not under_way:
            return False
        crew.wait(0)
        return crew.tasks[under_way[0]].result is not None

    def close(self) -> None:
        """Ends the native run; the workers stay for the next pass."""
        self._run.close()
        if self._crew is not None and self._crew.is_alive:
            self._crew.abandon(list(self._pass.under_way))


def _add(rows: worker.Rows, name: str, value: Any, array: Callable[[Any], Any]) -> None:
    """A column of the feed, by its kind: of one shape, ragged (values and offsets), or a list."""
    if isinstance(value, list):
        rows.lists[name] = value
    elif hasattr(value, "offsets"):
        values, offsets = array(value.values), array(value.offsets)
        if getattr(value, "is_bytes", False):
            rows.lists[name] = [values[offsets[row] : offsets[row + 1]].tobytes() for row in range(len(offsets) - 1)]
        else:
            rows.ragged[name] = (values, offsets)
    else:
        rows.arrays[name] = array(value)


def _seeds(dataset: Shaped, epoch: int, positions: Sequence[int]) -> list[int]:
    # A mixture has no seed of its own; its identity stands for those of its parts.
    seed = dataset.seed if dataset.seed is not None else int(dataset.fingerprint[:15], 16)
    samples = dataset.samples
    return [sample_seed(seed, epoch, position % samples) for position in positions]


def _failed(failure: worker.Failure, dataset: Shaped, epoch: int, positions: Sequence[int]) -> MapFailed:
    position = positions[failure.row] % dataset.samples
    course = dataset.course()
    ((leaf, number, record),) = course.places(epoch, [position])
    source = course.sources[leaf]
    text = f"map: record {record} of {source.url}{source.key(number)} (position {position:,} of epoch {epoch}): {failure.why}"
    error = MapFailed(text, where="map", epoch=epoch, position=position)
    if failure.trace:
        error.add_note("the function's traceback:\n" + failure.trace)
    return error


def run_here(dataset: Shaped, columns: dict[str, Any], epoch: int, positions: Sequence[int]) -> list[dict[str, Any]]:
    """The dataset's functions over gathered samples, in this process; results as they are, a sample each."""
    from penstock.feed.numpy import array

    rows = worker.Rows({})
    for name, value in columns.items():
        _add(rows, name, value, array)
    functions = [(mapping.function, mapping.wants_seed) for mapping in dataset.mappings]
    with _generators_kept():
        try:
            return worker.each(functions, rows, _seeds(dataset, epoch, positions))
        except worker.Failure as failure:
            raise _failed(failure, dataset, epoch, positions) from failure.__cause__


class _generators_kept:  # noqa: N801 - read as `with`
    """The caller's global generators are as they were, whatever a sample's seed made of them."""

    def __enter__(self) -> None:
        import random
        import sys

        import numpy as np

        torch = sys.modules.get("torch")
        self._kept = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None

    def __exit__(self, *_: object) -> None:
        import random
        import sys

        import numpy as np

        random.setstate(self._kept[0])
        np.random.set_state(self._kept[1])
        if self._kept[2] is not None:
            sys.modules["torch"].set_rng_state(self._kept[2])
