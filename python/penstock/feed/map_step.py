# SPDX-License-Identifier: Apache-2.0
"""`map` and `decode`: run Python functions over the samples of a feed, in this process, in threads or in worker
processes. Manages order and state.

The least busy worker gets the next batch, and batches are delivered in order. If a worker dies, the pass ends with an
error. There is no retry, because the batch would probably kill the next worker, too. The loader's state is then the
state after the last delivered batch.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed import global_seeds, map_functions, whole_record_fields
from penstock.feed.batch_columns import Ragged, ragged, string_rows
from penstock.feed.function_digest import function_digest
from penstock.feed.map_functions import Function, Functions, Results, Rows
from penstock.feed.map_pool import MapTask, WorkerPool
from penstock.feed.map_threads import ThreadPool
from penstock.feed.number_arguments import as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock import _native
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.first_epoch import FirstEpochRun
    from penstock.feed.loader import BaseLoader

__all__ = [
    "MapRun",
    "MapStep",
    "functions_of",
    "map_failed",
    "new_pool",
    "record_place",
    "row_positions",
    "run_here",
    "sample_seed",
]

_MAX_ERRORS = 8
"""Maximum number of error messages kept for the report."""

_DEFAULT_TIMEOUT_S = 600.0

_POLL_S = 0.005
"""Interval in seconds at which a free worker checks whether the feed has a batch."""


@dataclass(frozen=True, slots=True)
class MapStep:
    """A function of `map` or `decode`, with the settings that determine where it runs."""

    function: Callable[..., Any]
    wants_seed: bool
    workers: int
    threads: int = 0
    decodes: bool = False
    rebatch: bool = False
    timeout_s: float = _DEFAULT_TIMEOUT_S
    is_source: bool = False
    """Whether this step is a part of opening the dataset, as in `penstock.video.open`."""
    digest: str | None = None
    """With `rebatch`, digest of the function before its first call. None if the digest cannot be computed."""

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        workers: int,
        *,
        threads: int | None = None,
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        **how: bool,
    ) -> MapStep:
        """Check a function.

        Raises:
            ConfigError: The function is not callable, a number is invalid, or the function cannot be pickled, which
                workers require.
        """
        name = "decode" if how.get("decodes") else "map"
        workers, threads = as_int("workers", workers), as_int("threads", threads or 0)
        if not callable(function):
            raise ConfigError(f"{name}: {function!r} is not callable", where=name)
        for what, count in (("workers", workers), ("threads", threads)):
            if not 0 <= count <= 1024:
                raise ConfigError(f"{what}: {count} is not between 0 and 1024", where=what)
        if workers and threads:
            raise ConfigError(f"{name}: give either workers or threads (got {workers} and {threads})", where=name)
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s: {timeout_s} is not above 0 s", where="timeout_s")
        if timeout_s != _DEFAULT_TIMEOUT_S and not workers and not threads:
            raise ConfigError(
                f"timeout_s: {timeout_s:g} s cannot be enforced, because fn runs in the thread of the caller",
                where="timeout_s",
                hint=f"set workers=1 or threads=1 in {name}(), or leave out timeout_s",
            )
        try:
            wants_seed = "seed" in inspect.signature(function).parameters
        except (TypeError, ValueError):
            wants_seed = False
        if workers:
            try:
                pickle.dumps(function)
            except Exception as error:
                raise ConfigError(
                    f"{name}: {function!r} cannot be pickled for other processes: {error}",
                    where=name,
                    hint="define it at the top of a module, or set workers=0",
                ) from None
        digest = function_digest(function) if how.get("rebatch") else None
        return cls(function, wants_seed, workers, threads, timeout_s=timeout_s, digest=digest, **how)


def functions_of(dataset: DatasetBase, *, on_error: str = "raise") -> Functions:
    """Return the functions of a dataset's steps. If `on_error` is `skip`, or `substitute` with `rebatch`, a sample for
    which a function of `decode` raises an exception is left out.
    """
    steps = dataset.map_steps
    unwraps = whole_record_fields.sole_name(dataset.batch_fields()) if steps[0].decodes else None
    skips = on_error == "skip" or (on_error == "substitute" and dataset.rebatches)
    return Functions(
        tuple(Function(step.function, step.wants_seed, step.decodes) for step in steps),
        unwraps,
        skips=skips and any(step.decodes for step in steps),
        seeds_globals=not any(step.threads for step in steps),
    )


def new_pool(dataset: DatasetBase, functions: Functions) -> WorkerPool | ThreadPool | None:
    """Start the processes or threads that run a dataset's functions. None if the consumer's thread runs them."""
    workers, threads = (max(getattr(step, name) for step in dataset.map_steps) for name in ("workers", "threads"))
    timeout_s = min(step.timeout_s for step in dataset.map_steps)
    if workers:
        return WorkerPool(functions, workers, timeout_s)
    return ThreadPool(functions, threads, timeout_s, _room) if threads else None


def _room(size: int) -> Any:
    import numpy as np

    return np.empty(size, dtype=np.uint8)


def sample_seed(seed: int | None, epoch: int, position: int) -> int:
    """Return the random seed of a sample, 0 to 2^63 - 1. The seed depends only on the seed of the order, the epoch and
    the position, so that ranks, workers and restarts do not change it.
    """
    text = f"penstock-map:{seed}:{epoch}:{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


@dataclass(slots=True)
class _Pass:
    """State of a pass: number of samples read from the feed, and batches in flight at the workers."""

    epoch: int
    read: int
    skip_rows: int = 0
    under_way: deque[MapTask] = field(default_factory=deque)
    is_exhausted: bool = False
    is_closed: bool = False
    wait_s: float = 0.0


class MapRun:
    """A run that applies the functions to the batches of a native run. Has the same interface as the native run."""

    def __init__(
        self,
        loader: BaseLoader[Any],
        run: _native.Run | FirstEpochRun,
        epoch: int,
        cursor: int,
        skip_rows: int = 0,
    ) -> None:
        """`skip_rows` is the number of rows at the start of the first batch that functions do not receive."""
        from penstock.feed.numpy import array

        self._loader, self._run, self._array = loader, run, array
        self._pass = _Pass(epoch, cursor, skip_rows)
        self._functions, self._pool = loader.functions, loader.worker_pool()
        self._skipped, self._errors = 0, list[str]()
        self._positions: Sequence[int] = ()
        # Columns without rows, made from an earlier batch of this pass. They are the result for a slice without
        # samples, for which no function is called.
        self._empty: dict[str, Any] = {}
        if self._pool is not None:
            try:
                self._pool.settle()
            except map_functions.FunctionHangs as failure:
                raise self._failed(failure, failure.task) from None

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch in order, or None after the last."""
        got = self._next_results()
        if got is None:
            return None
        task, results = got
        passed, positions, counts = task.passed, task.positions, results.counts
        self._positions = positions
        rows = len(positions)
        if counts is not None:
            rows, passed = sum(counts), {name: values.repeat(counts) for name, values in passed.items()}
            if not rows and positions and positions[0] < self._loader.dataset.samples:
                raise MapFailed(
                    f"decode: a batch is empty, because all samples from position {positions[0]:,} to {positions[-1]:,} "
                    f"of epoch {task.epoch} were dropped{self._after_errors()}",
                    where="decode",
                    hint="use decode(fn, rebatch=True), which fills batches, or larger batches",
                )
        made = {**results.arrays, **results.lists}
        if made and not self._empty:
            self._empty = {name: [] if isinstance(column, list) else column[:0].copy() for name, column in made.items()}
        return {**passed, **(made or self._empty)}, rows, task.cursor

    def positions(self) -> Sequence[int]:
        """Return the positions of the samples of the last batch."""
        return self._positions

    def _next_results(self) -> tuple[MapTask, Results] | None:
        """Return the next batch's task and results, or None after the last."""
        pool, state = self._pool, self._pass
        if pool is None:
            return self._results_here()
        while True:
            self._fill(pool)
            if not state.under_way:
                return None
            task = state.under_way[0]
            try:
                results = pool.collect(task)
                if results is not None:
                    state.under_way.popleft()
                    self._note_skipped(task, results)
                    return task, results
                began = time.perf_counter()
                pool.wait(_POLL_S if pool.has_room and not state.is_exhausted else 1.0)
                state.wait_s += time.perf_counter() - began
            except map_functions.FunctionHangs as failure:
                raise self._failed(failure, failure.task) from None
            except map_functions.FunctionFailed as failure:
                raise self._failed(failure, task) from failure.__cause__

    def _fill(self, pool: WorkerPool | ThreadPool) -> None:
        state = self._pass
        if state.is_closed:
            raise ConfigError("iterator: already ended", where="iterator")
        while not state.is_exhausted and pool.has_room and (not state.under_way or self._run.is_ready()):
            got = self._run.next()
            if got is None:
                state.is_exhausted = True
                return
            rows, seeds, task = self._rows(got)
            pool.submit(task, rows, seeds)
            state.under_way.append(task)

    def _results_here(self) -> tuple[MapTask, Results] | None:
        got = self._run.next()
        if got is None:
            return None
        rows, seeds, task = self._rows(got)
        began = time.perf_counter()
        with _generators_kept():
            try:
                results = map_functions.run(self._functions, rows, seeds, _room)
            except map_functions.FunctionFailed as failure:
                raise self._failed(failure, task) from failure.__cause__
        self._pass.wait_s += time.perf_counter() - began
        self._note_skipped(task, results)
        return task, results

    def _failed(self, failure: map_functions.FunctionFailed, task: MapTask) -> MapFailed:
        return map_failed(self._functions.name, failure, self._loader.dataset, task.epoch, task.positions)

    def _note_skipped(self, task: MapTask, results: Results) -> None:
        """Count the samples that were left out because a function raised an exception."""
        self._skipped += len(results.skipped)
        for row, why in results.skipped[: _MAX_ERRORS - len(self._errors)]:
            self._errors.append(str(self._failed(map_functions.FunctionFailed(row, why, ""), task)))

    def _after_errors(self) -> str:
        """Return the end of a message about missing samples: the number of errors, and the first error."""
        skipped, _, errors = self.error_counts()
        return f"; {skipped:,} samples were left out after errors, the first: {errors[0]}" if errors else ""

    def _rows(self, got: tuple[dict[str, Any], int, int]) -> tuple[Rows, list[int | None], MapTask]:
        """Convert a batch of the feed to rows, and compute their positions and seeds. Functions do not receive rows
        whose seed is None.
        """
        tensors, count, cursor = got
        loader, state = self._loader, self._pass
        is_padded, start = loader.source_tail == "pad", state.read
        state.read = cursor
        rows, passed = Rows({}), {}
        for name, value in tensors.items():
            if name == "weight" and is_padded:
                passed[name] = self._array(value)
            else:
                _add(rows, name, value, self._array)
        skip, state.skip_rows = min(state.skip_rows, count), 0
        positions = row_positions(loader, self._run, start, cursor)[:count]
        task = MapTask(positions[skip:], state.epoch, start, cursor, passed, skip)
        seeds: list[int | None] = list(_seeds(loader.dataset, state.epoch, task.positions))
        if is_padded and loader.tail != "pad":
            # Damaged records and repeated samples have the weight 0. Functions do not receive these rows.
            for row, weight in enumerate(passed.pop("weight")[skip:]):
                seeds[row] = seeds[row] if weight else None
        return rows.after(skip) if skip else rows, seeds, task

    def timing(self) -> dict[str, float]:
        """Return the times of the native run, and the time spent waiting for functions."""
        return {**self._run.timing(), "wait_map_s": self._pass.wait_s}

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the numbers of skipped and substituted samples, and the first errors, including failures of functions."""
        skipped, substituted, errors = self._run.error_counts()
        return skipped + self._skipped, substituted, [*errors, *self._errors][:_MAX_ERRORS]

    def is_ready(self) -> bool:
        """True if `next` would not wait. Without workers, always False, because `next` itself runs the functions."""
        pool, under_way = self._pool, self._pass.under_way
        if pool is None or not under_way:
            return False
        pool.wait(0)
        return under_way[0].result is not None

    def close(self) -> None:
        """End the native run. Any thread can call this method. The workers are kept for the next pass."""
        self._pass.is_closed = True
        self._run.close()
        if self._pool is not None and self._pool.is_alive:
            self._pool.abandon()


def row_positions(loader: BaseLoader[Any], run: _native.Run | FirstEpochRun, start: int, cursor: int) -> Sequence[int]:
    """Return the positions of this rank's samples in the last batch of `run`, which extends from `start` to
    `cursor`.
    """
    planned = run.positions()
    if planned is not None:
        return planned
    size = loader.source_batch if loader.source_tail == "pad" else cursor - start
    return range(start + size * loader.rank // loader.world, start + size * (loader.rank + 1) // loader.world)


def _add(rows: Rows, name: str, value: Any, array: Callable[[Any], Any]) -> None:
    """Add a column of the feed to `rows`, as an array, as values and offsets (ragged), or as a list."""
    if isinstance(value, list):
        rows.lists[name] = value
    elif hasattr(value, "offsets"):
        if value.is_text or (value.is_bytes and len(value.offsets) > 1):  # texts, and lists of byte strings
            rows.lists[name] = string_rows(value)
            return
        made = ragged(value, array)
        if isinstance(made.values, Ragged):  # lists of lists
            rows.lists[name] = [made.row(at) for at in range(len(value))]
            return
        rows.ragged[name] = (made.values, made.offsets)
        if value.is_bytes:
            rows.raw |= {name}
    else:
        rows.arrays[name] = array(value)


def _seeds(dataset: DatasetBase, epoch: int, positions: Sequence[int]) -> list[int]:
    # A mixture does not have a seed, so its fingerprint replaces the seed.
    seed = dataset.seed if dataset.seed is not None else int(dataset.fingerprint[:15], 16)
    if dataset.is_counted:  # before all records are counted, no position is in the padded tail
        samples = dataset.samples
        positions = [position % samples for position in positions]
    return [sample_seed(seed, epoch, position) for position in positions]


def record_place(dataset: DatasetBase, epoch: int, position: int) -> str:
    """Return the name of the record at a position of an epoch, for messages."""
    course = dataset.course()
    ((leaf, number, record),) = course.places(epoch, [position])
    source = course.sources[leaf]
    return f"record {record} of {source.url}{source.key(number)} (position {position:,} of epoch {epoch})"


def map_failed(
    name: str, failure: map_functions.FunctionFailed, dataset: DatasetBase, epoch: int, positions: Sequence[int]
) -> MapFailed:
    """Return the error for a sample for which a function failed, with the sample's record and the traceback."""
    position = positions[failure.row] % dataset.samples
    place = record_place(dataset, epoch, position)
    error = MapFailed(f"{name}: {place}: {failure.why}", where=name, epoch=epoch, position=position)
    if failure.trace:
        error.add_note("the function's traceback:\n" + failure.trace)
    return error


def run_here(
    dataset: DatasetBase, columns: dict[str, Any], epoch: int, positions: Sequence[int], *, watches_draws: bool = False
) -> tuple[list[dict[str, Any]], bool]:
    """Run the dataset's functions over the given samples in this process. The results are neither converted nor
    stacked.

    Returns:
        One result per sample and, with `watches_draws`, whether the functions take a seed or used a global random
        generator.
    """
    from penstock.feed.numpy import array

    rows = Rows({})
    for name, value in columns.items():
        _add(rows, name, value, array)
    functions = functions_of(dataset)
    seeds = _seeds(dataset, epoch, positions)
    with _generators_kept():
        try:
            results = map_functions.each(functions, rows, seeds)
        except map_functions.FunctionFailed as failure:
            raise map_failed(functions.name, failure, dataset, epoch, positions) from failure.__cause__
        drew = (
            watches_draws
            and bool(seeds)
            and (any(step.wants_seed for step in functions.steps) or global_seeds.drew_since(seeds[-1]))
        )
    return results, drew


class _generators_kept:  # noqa: N801 - read as `with`
    """Return a context manager that restores the state of the global random generators at its end, because each sample
    seeds these generators.
    """

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

        global_seeds.torch_seeding.end()
        random.setstate(self._kept[0])
        np.random.set_state(self._kept[1])
        if self._kept[2] is not None:
            sys.modules["torch"].set_rng_state(self._kept[2])
