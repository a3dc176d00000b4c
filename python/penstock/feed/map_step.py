# SPDX-License-Identifier: Apache-2.0
"""`map`: runs Python functions over the samples of a feed, in this process or in workers. Order and state are managed
here.

The least busy worker gets the next batch, and batches are delivered in order. If a worker dies, the pass ends with one
error, because the cause would kill the next worker, too. The loader's state is then that of the last delivered batch.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
import pickle
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed import map_worker
from penstock.feed.columns import Ragged, byte_rows, ragged
from penstock.feed.map_pool import MapTask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock import _native
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.first_epoch import FirstEpochRun
    from penstock.feed.loader import BaseLoader
    from penstock.feed.map_pool import WorkerPool

__all__ = ["MapRun", "MapStep", "run_here", "sample_seed"]

_POLL_S = 0.005
"""Interval in seconds at which a free worker checks whether the feed has a batch."""


@dataclass(frozen=True, slots=True)
class MapStep:
    """A function, whether it takes a seed, and its number of worker processes."""

    function: Callable[..., dict[str, Any]]
    wants_seed: bool
    workers: int

    @classmethod
    def of(cls, function: Callable[..., dict[str, Any]], workers: int) -> MapStep:
        """Check a function.

        Raises:
            ConfigError: The function is not callable, `workers` is invalid, or the function cannot be pickled although
                there are workers.
        """
        workers = operator.index(workers)
        if not callable(function):
            raise ConfigError(f"map: {function!r} is not callable", where="map")
        if not 0 <= workers <= 1024:
            raise ConfigError(f"workers: {workers} is not between 0 and 1024", where="workers")
        try:
            wants_seed = "seed" in inspect.signature(function).parameters
        except (TypeError, ValueError):
            wants_seed = False
        if workers:
            try:
                pickle.dumps(function)
            except Exception as error:
                raise ConfigError(
                    f"map: {function!r} cannot be pickled for other processes: {error}",
                    where="map",
                    hint="define it at the top of a module, or set workers=0",
                ) from None
        return cls(function, wants_seed, workers)


def sample_seed(seed: int | None, epoch: int, position: int) -> int:
    """Return the seed of a sample's randomness, 0 to 2^63 - 1. It depends only on the order's seed, the epoch and the
    position, so that ranks, workers and restarts do not change it.
    """
    text = f"penstock-map:{seed}:{epoch}:{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


@dataclass(slots=True)
class _Pass:
    """State of a pass: number of samples read from the feed, and batches in flight at the workers."""

    epoch: int
    read: int
    under_way: deque[MapTask] = field(default_factory=deque)
    is_exhausted: bool = False
    is_closed: bool = False
    wait_s: float = 0.0


class MapRun:
    """A native run whose batches go through functions. Has the same interface as the native run."""

    def __init__(self, loader: BaseLoader[Any], run: _native.Run | FirstEpochRun, epoch: int, cursor: int) -> None:
        from penstock.feed.numpy import array

        self._loader, self._run, self._array = loader, run, array
        self._pass = _Pass(epoch, cursor)
        self._functions = [(mapping.function, mapping.wants_seed) for mapping in loader.dataset.map_steps]
        self._worker_pool = loader.worker_pool()
        if self._worker_pool is not None:
            self._worker_pool.settle()

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch in order, or None after the last."""
        if self._worker_pool is None:
            return self._next_here()
        worker_pool, state = self._worker_pool, self._pass
        while True:
            self._fill(worker_pool)
            if not state.under_way:
                return None
            task = state.under_way[0]
            try:
                made = worker_pool.collect(task)
            except map_worker.FunctionFailed as failure:
                raise _failed(failure, self._loader.dataset, state.epoch, task.positions) from None
            if made is not None:
                state.under_way.popleft()
                return {**task.passed, **made}, len(task.positions), task.cursor
            began = time.perf_counter()
            worker_pool.wait(_POLL_S if worker_pool.has_room and not state.is_exhausted else 1.0)
            state.wait_s += time.perf_counter() - began

    def _fill(self, worker_pool: WorkerPool) -> None:
        state = self._pass
        if state.is_closed:
            raise ConfigError("iterator: already ended", where="iterator")
        while not state.is_exhausted and worker_pool.has_room and (not state.under_way or self._run.is_ready()):
            got = self._run.next()
            if got is None:
                state.is_exhausted = True
                return
            rows, passed, positions, cursor = self._rows(got)
            task = MapTask(positions, state.epoch, cursor, passed)
            worker_pool.submit(task, rows, _seeds(self._loader.dataset, state.epoch, positions))
            state.under_way.append(task)

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
                results = map_worker.apply(self._functions, rows, seeds, lambda size: np.empty(size, dtype=np.uint8))
            except map_worker.FunctionFailed as failure:
                raise _failed(failure, self._loader.dataset, self._pass.epoch, positions) from failure.__cause__
        self._pass.wait_s += time.perf_counter() - began
        return {**passed, **results.arrays, **results.lists}, len(positions), cursor

    def _rows(self, got: tuple[dict[str, Any], int, int]) -> tuple[map_worker.Rows, dict[str, Any], Sequence[int], int]:
        """Split a batch of the feed by kind of column, and compute the positions of its rows."""
        tensors, count, cursor = got
        loader, state = self._loader, self._pass
        start = state.read
        end = start + loader.global_batch if loader.tail == "pad" else cursor
        first = start + (end - start) * loader.rank // loader.world
        state.read = cursor
        rows, passed = map_worker.Rows({}), {}
        for name, value in tensors.items():
            if name == "weight" and loader.tail == "pad":
                passed[name] = self._array(value)
            else:
                _add(rows, name, value, self._array)
        planned = self._run.positions()
        return rows, passed, range(first, first + count) if planned is None else planned, cursor

    def timing(self) -> dict[str, float]:
        """Return the times of the native run, and the time spent waiting for functions."""
        return {**self._run.timing(), "wait_map_s": self._pass.wait_s}

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the errors that the native run skipped or substituted."""
        return self._run.error_counts()

    def is_ready(self) -> bool:
        """True if `next` would not wait. Always False without workers, because `next` then runs the functions
        itself.
        """
        worker_pool, under_way = self._worker_pool, self._pass.under_way
        if worker_pool is None or not under_way:
            return False
        worker_pool.wait(0)
        return under_way[0].result is not None

    def close(self) -> None:
        """End the native run, from any thread. The workers are kept for the next pass."""
        self._pass.is_closed = True
        self._run.close()
        if self._worker_pool is not None and self._worker_pool.is_alive:
            self._worker_pool.abandon()


def _add(rows: map_worker.Rows, name: str, value: Any, array: Callable[[Any], Any]) -> None:
    """Add a column of the feed to `rows`, according to its kind: fixed shape, ragged (values and offsets), or list."""
    if isinstance(value, list):
        rows.lists[name] = value
    elif hasattr(value, "offsets"):
        if getattr(value, "is_bytes", False):
            rows.lists[name] = byte_rows(value)
        else:
            made = ragged(value, array)
            if isinstance(made.values, Ragged):  # lists of lists
                rows.lists[name] = [made.row(at) for at in range(len(value))]
            else:
                rows.ragged[name] = (made.values, made.offsets)
    else:
        rows.arrays[name] = array(value)


def _seeds(dataset: DatasetBase, epoch: int, positions: Sequence[int]) -> list[int]:
    # A mixture does not have a seed, so its fingerprint replaces the seed.
    seed = dataset.seed if dataset.seed is not None else int(dataset.fingerprint[:15], 16)
    if dataset.is_counted:  # before that, no position is in a padded tail
        samples = dataset.samples
        positions = [position % samples for position in positions]
    return [sample_seed(seed, epoch, position) for position in positions]


def _failed(
    failure: map_worker.FunctionFailed, dataset: DatasetBase, epoch: int, positions: Sequence[int]
) -> MapFailed:
    position = positions[failure.row] % dataset.samples
    course = dataset.course()
    ((leaf, number, record),) = course.places(epoch, [position])
    source = course.sources[leaf]
    text = f"map: record {record} of {source.url}{source.key(number)} (position {position:,} of epoch {epoch}): {failure.why}"
    error = MapFailed(text, where="map", epoch=epoch, position=position)
    if failure.trace:
        error.add_note("the function's traceback:\n" + failure.trace)
    return error


def run_here(
    dataset: DatasetBase, columns: dict[str, Any], epoch: int, positions: Sequence[int], *, watches_draws: bool = False
) -> tuple[list[dict[str, Any]], bool]:
    """Run the dataset's functions over the given samples, in this process. Results are not converted or stacked.

    Returns:
        One result per sample and, with `watches_draws`, whether the functions take a seed or used a global random
        generator.
    """
    from penstock.feed.numpy import array

    rows = map_worker.Rows({})
    for name, value in columns.items():
        _add(rows, name, value, array)
    functions = [(mapping.function, mapping.wants_seed) for mapping in dataset.map_steps]
    seeds = _seeds(dataset, epoch, positions)
    with _generators_kept():
        try:
            results = map_worker.each(functions, rows, seeds)
        except map_worker.FunctionFailed as failure:
            raise _failed(failure, dataset, epoch, positions) from failure.__cause__
        drew = (
            watches_draws and bool(seeds) and (any(wants for _, wants in functions) or map_worker.drew_since(seeds[-1]))
        )
    return results, drew


class _generators_kept:  # noqa: N801 - read as `with`
    """Context manager that restores the caller's global random generators, which are seeded for each sample."""

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

        map_worker.torch_seeding.end()
        random.setstate(self._kept[0])
        np.random.set_state(self._kept[1])
        if self._kept[2] is not None:
            sys.modules["torch"].set_rng_state(self._kept[2])
