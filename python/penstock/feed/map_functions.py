# SPDX-License-Identifier: Apache-2.0
"""Runs the functions of `map` and `decode` over the rows of a batch, with each sample's seed, and gathers the results.

Does not handle processes, threads, order or state. A row is a sample of the feed, and an output is a sample that the
last function returns. With `decode`, a row can have no output or several.
"""

from __future__ import annotations

import hashlib
import mmap
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.feed.global_seeds import seed_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "FieldAt",
    "Function",
    "FunctionFailed",
    "FunctionHangs",
    "Functions",
    "Outputs",
    "Results",
    "Rows",
    "arrays_at",
    "difference",
    "each",
    "gather",
    "layout",
    "outputs_of",
    "run",
]

_ALIGN = 256
"""Alignment of arrays in bytes. JAX copies arrays with a smaller alignment."""

FieldAt = tuple[str, str, tuple[int, ...], int]
"""A field in a slot: name, NumPy dtype, shape (the first axis is the rows), offset in bytes."""


@dataclass(slots=True)
class Rows:
    """Input rows of the functions. Fields of numbers are arrays, whose first axis is the rows; other columns are
    lists.
    """

    arrays: dict[str, Any]
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ragged: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Values and offsets of each ragged field. There is one more offset than rows."""
    raw: frozenset[str] = frozenset()
    """Names of the ragged fields that the functions receive as `bytes`."""

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample as views. Only raw fields are copied."""
        made = {name: array[row, ...] for name, array in self.arrays.items()}
        for name, (values, offsets) in self.ragged.items():
            view = values[offsets[row] : offsets[row + 1]]
            made[name] = view.tobytes() if name in self.raw else view
        for name, items in self.lists.items():
            made[name] = items[row]
        return made

    def after(self, count: int) -> Rows:
        """Return the rows after the first `count`."""
        return replace(
            self,
            arrays={name: array[count:] for name, array in self.arrays.items()},
            lists={name: items[count:] for name, items in self.lists.items()},
            ragged={name: (values, offsets[count:]) for name, (values, offsets) in self.ragged.items()},
        )


class Function(NamedTuple):
    """A function of `map` or, with `decodes`, of `decode`."""

    call: Callable[..., Any]
    wants_seed: bool
    decodes: bool = False

    def outputs(self, sample: Any, seed: int) -> list[Any]:
        """Run the function over one sample, and return the samples that it makes."""
        made = self.call(sample, seed=seed) if self.wants_seed else self.call(sample)
        if not self.decodes:
            return [made]
        if made is None:
            return []
        if isinstance(made, dict):
            return [made]
        if isinstance(made, (str, bytes, bytearray, memoryview)) or not isinstance(made, Iterable):
            raise TypeError(f"fn returned {type(made).__name__}, not a dict, None or an iterable of dicts")
        return list(made)


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a dataset, with the settings of their calls. Pickled for worker processes."""

    steps: tuple[Function, ...]
    unwraps: str | None = None
    """Name of the only field, if the first function receives its value instead of a dict."""
    skips: bool = False
    """Whether a sample is left out if a function raises an exception for it."""
    seeds_globals: bool = True
    """Whether the global random generators are seeded for functions without a `seed` parameter. False for threads,
    because they share the generators.
    """

    @property
    def decodes(self) -> bool:
        """True if the functions can drop a sample or make several samples of it."""
        return any(step.decodes for step in self.steps)

    @property
    def name(self) -> str:
        """Name of the dataset's method (`map` or `decode`) in messages."""
        return "decode" if self.decodes else getattr(self.steps[0].call, "penstock_step", "map")

    def outputs(self, sample: dict[str, Any], seed: int) -> list[Any]:
        """Run the functions over one sample, and return their outputs."""
        if self.seeds_globals and not all(step.wants_seed for step in self.steps):
            seed_all(seed)
        samples: list[Any] = [sample if self.unwraps is None else sample[self.unwraps]]
        for step in self.steps:
            samples = [
                made for number, one in enumerate(samples) for made in step.outputs(one, _output_seed(seed, number))
            ]
        return samples


def _output_seed(seed: int, number: int) -> int:
    """Return the seed of output `number` of a sample. The seed of output 0 is the sample's seed."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), "little") >> 1


class FunctionFailed(Exception):
    """Failure of a function in a row, with the reason, and the traceback as text."""

    def __init__(self, row: int, why: str, trace: str) -> None:
        super().__init__(row, why, trace)
        self.row, self.why, self.trace = row, why, trace


class FunctionHangs(FunctionFailed):
    """Failure of a function that has not returned within its time limit, with its task."""

    def __init__(self, row: int, why: str, trace: str, task: Any) -> None:
        super().__init__(row, why, trace)
        self.task = task


def layout(fields: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[list[FieldAt], int]:
    """Compute the offsets of fields (name, dtype, shape including rows) in a slot, and the size of the slot."""
    import numpy as np

    placed, end = [], 0
    for name, dtype, shape in fields:
        placed.append((name, dtype, shape, end))
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        end += -(-size // _ALIGN) * _ALIGN
    return placed, max(end, mmap.PAGESIZE)


def arrays_at(memory: Any, fields: Sequence[FieldAt]) -> dict[str, Any]:
    """Return arrays of the fields, which use the slot's memory."""
    import numpy as np

    return {name: np.ndarray(shape, dtype, buffer=memory, offset=offset) for name, dtype, shape, offset in fields}


@dataclass(slots=True)
class Results:
    """Results of the functions for the rows of a task. `arrays` are in memory from `room`; other columns are lists."""

    fields: list[FieldAt] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    counts: list[int] | None = None
    """Number of outputs of each row; None if each row has one output."""
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """Rows that were left out because a function raised an exception, each with the reason."""


def each(functions: Functions, rows: Rows, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run the functions over every row, and return one result per row, unchanged.

    Raises:
        FunctionFailed: A function raised an exception, or did not return a dict.
    """
    found = []
    for row, seed in enumerate(seeds):
        (made,) = _outputs(functions, rows, row, seed)
        found.append(made)
    return found


def _outputs(functions: Functions, rows: Rows, row: int, seed: int) -> list[dict[str, Any]]:
    try:
        made = functions.outputs(rows.sample(row), seed)
    except Exception as error:
        raise FunctionFailed(row, f"{type(error).__name__}: {error}", traceback.format_exc()) from error
    for output in made:
        if not isinstance(output, dict):
            drop = " (map keeps every sample; to drop some, use decode)" if output is None else ""
            name = "None" if output is None else type(output).__name__
            raise FunctionFailed(row, f"fn returned {name}, not a dict{drop}", "")
    return made


def _is_listed(value: Any) -> bool:
    return isinstance(value, (list, tuple, bytes, bytearray, memoryview, str, dict)) or value is None


def run(
    functions: Functions,
    rows: Rows,
    seeds: Sequence[int | None],
    room: Callable[[int], Any],
    note: Callable[[int], None] = lambda _: None,
) -> Results:
    """Run the functions over every row, and gather their results. All results must have the names, dtypes and shapes of
    the first result.

    Args:
        room: Function that returns memory for the arrays, of at least the given number of bytes.
        note: Function that is called with each row before the row starts.
    Raises:
        FunctionFailed: A function raised an exception, or a result does not match the first.
    """
    if functions.decodes:
        pieces = [outputs_of(functions, rows, range(len(seeds)), seeds, note)]
        return gather(pieces, room)
    results = None
    for row, seed in enumerate(seeds):
        note(row)
        (made,) = _outputs(functions, rows, row, seed or 0)
        results = _begin(made, row, len(seeds), room) if results is None else results
        _put(results, row, row, made)
    return results or Results()


class Outputs(NamedTuple):
    """Outputs of some rows, which are not gathered into arrays yet."""

    first_row: int
    samples: list[dict[str, Any]]
    counts: list[int]
    skipped: list[tuple[int, str]]


def outputs_of(
    functions: Functions, rows: Rows, chosen: range, seeds: Sequence[int | None], note: Callable[[int], None]
) -> Outputs:
    """Run the functions over the chosen rows. A row whose seed is None is left out.

    Raises:
        FunctionFailed: A function returned a value of another type, or raised an exception and samples are not skipped.
    """
    outputs = Outputs(chosen.start, [], [], [])
    for row in chosen:
        if (seed := seeds[row]) is None:
            outputs.counts.append(0)
            continue
        note(row)
        try:
            made = _outputs(functions, rows, row, seed)
        except FunctionFailed as failure:
            if not (functions.skips and failure.trace):
                raise
            outputs.skipped.append((row, failure.why))
            made = []
        outputs.samples.extend(made)
        outputs.counts.append(len(made))
    return outputs


def gather(pieces: Sequence[Outputs], room: Callable[[int], Any]) -> Results:
    """Gather the outputs of consecutive rows into arrays and lists.

    Raises:
        FunctionFailed: An output does not match the first.
    """
    counts = [count for piece in pieces for count in piece.counts]
    total, results, at = sum(counts), None, 0
    for piece in pieces:
        samples = iter(piece.samples)
        for row, count in enumerate(piece.counts, piece.first_row):
            for _ in range(count):
                made = next(samples)
                results = _begin(made, row, total, room) if results is None else results
                _put(results, row, at, made)
                at += 1
        piece.samples.clear()
    results = results or Results()
    results.counts = counts
    results.skipped = [skipped for piece in pieces for skipped in piece.skipped]
    return results


def _begin(first: dict[str, Any], row: int, rows: int, room: Callable[[int], Any]) -> Results:
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    lists: dict[str, list[Any]] = {}
    for name, value in first.items():
        if _is_listed(value):
            lists[name] = []
            continue
        array = _array(row, name, value)
        fields.append((name, array.dtype.str, (rows, *array.shape)))
    placed, size = layout(fields)
    return Results(placed, arrays_at(room(size), placed), lists)


def _array(row: int, name: str, value: Any) -> Any:
    import numpy as np

    try:
        array = np.asarray(value)
    except Exception as error:  # the conversion can raise any exception, such as torch's RuntimeError
        raise FunctionFailed(row, f"fn returned a value that is not an array: `{name}`: {error}", "") from None
    if array.dtype.hasobject:
        why = f"fn returned a value that is not an array: `{name}` is a {type(value).__name__}"
        raise FunctionFailed(row, why, "")
    return array


def difference(name: str, have: str, want: str, *, is_dtype: bool) -> str:
    """Return the message that a value differs from earlier values. `is_dtype` means that only the dtype differs."""
    advice = "convert it to one dtype" if is_dtype else "return a list if lengths differ"
    return f"fn returned `{name}` as {have}, but earlier as {want} ({advice})"


def _put(results: Results, row: int, at: int, made: dict[str, Any]) -> None:
    """Copy the output of a row to position `at` of the results."""
    if made.keys() != results.arrays.keys() | results.lists.keys():
        before = ", ".join([*results.arrays, *results.lists])
        raise FunctionFailed(row, f"fn returned {', '.join(made)}, but {before} for an earlier sample", "")
    for name, items in results.lists.items():
        items.append(made[name])
    for name, array in results.arrays.items():
        value = _array(row, name, made[name])
        view = array[at, ...]
        if value.shape != view.shape or value.dtype != view.dtype:
            have, want = (f"{each.dtype} {list(each.shape)}" for each in (value, view))
            why = difference(name, have, want, is_dtype=value.shape == view.shape)
            raise FunctionFailed(row, why, "")
        view[...] = value
