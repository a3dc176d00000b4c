# SPDX-License-Identifier: Apache-2.0
"""Worker process of `map`: runs functions over batches in shared memory.

Owns the memory of its results until the parent releases it. Does not handle order, state or stores: a task is rows in a
slot, and its result is rows in a slot. Arrays never go through the pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import reduction
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.parent_death import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from multiprocessing.connection import Connection

__all__ = [
    "FieldAt",
    "FunctionFailed",
    "MapResults",
    "Rows",
    "apply",
    "drew_since",
    "each",
    "layout",
    "new_memory",
    "run_worker",
    "torch_seeding",
]

_ALIGN = 256
"""Alignment of arrays in bytes. JAX copies arrays with a smaller alignment."""

FieldAt = tuple[str, str, tuple[int, ...], int]
"""A field in a slot: name, NumPy dtype, shape (rows first), offset."""


@dataclass(slots=True)
class Rows:
    """Input rows of the functions. Fields are arrays (first axis: rows), other columns are lists."""

    arrays: dict[str, Any]
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ragged: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Values and offsets (one more than rows) of each ragged field."""

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample as views, without copies."""
        made = {name: array[row, ...] for name, array in self.arrays.items()}
        for name, (values, offsets) in self.ragged.items():
            made[name] = values[offsets[row] : offsets[row + 1]]
        for name, items in self.lists.items():
            made[name] = items[row]
        return made


class FunctionFailed(Exception):
    """Failure of a function: the row, the reason, and the traceback as text."""

    def __init__(self, row: int, why: str, trace: str) -> None:
        super().__init__(row, why, trace)
        self.row, self.why, self.trace = row, why, trace


def new_memory(size: int) -> tuple[int, mmap.mmap]:
    """Create anonymous shared memory. It is freed when the last process that maps it ends, even if that process is
    killed.
    """
    descriptor = os.memfd_create("penstock-map", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor, mmap.mmap(descriptor, size)


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
    """Return arrays of the fields over a slot's memory."""
    import numpy as np

    return {name: np.ndarray(shape, dtype, buffer=memory, offset=offset) for name, dtype, shape, offset in fields}


class _Seeding:
    """Gives each sample's seed to functions with a `seed` parameter, and seeds the global generators for the others."""

    def __init__(self, functions: Sequence[tuple[Callable[..., Any], bool]]) -> None:
        self.functions = functions
        self._global = not all(wants for _, wants in functions)

    def run(self, sample: Any, seed: int) -> Any:
        if self._global:
            _seed_all(seed)
        for function, wants_seed in self.functions:
            sample = function(sample, seed=seed) if wants_seed else function(sample)
        return sample


class _TorchSeeding:
    """Import hook that seeds torch when a function is the first to import it. Without it, that sample would not be
    seeded.

    It is in `sys.meta_path` while functions run and torch is not imported.
    """

    seed = 0

    def watch(self, seed: int) -> None:
        self.seed = seed
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torch":
            return None
        self.end()
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                module.manual_seed(self.seed)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


torch_seeding = _TorchSeeding()


def _seed_all(seed: int) -> None:
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is None:
        torch_seeding.watch(seed)
    else:
        torch.manual_seed(seed)


def drew_since(seed: int) -> bool:
    """True if a global generator was used since it got this seed. Seeds all generators again."""
    before = _states()
    _seed_all(seed)
    return before != _states()


def _states() -> list[Any]:
    import random

    import numpy as np

    torch = sys.modules.get("torch")
    return [random.getstate(), repr(np.random.get_state()), None if torch is None else torch.get_rng_state().tolist()]


@dataclass(slots=True)
class MapResults:
    """Results of the functions, gathered over rows: `arrays` are in memory from `room`, other columns are lists."""

    fields: list[FieldAt] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)


def each(
    functions: Sequence[tuple[Callable[..., Any], bool]], rows: Rows, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Run the functions over every row, and return their results unchanged, one per row.

    Raises:
        Failure: A function raised, or did not return a dict.
    """
    seeding, found = _Seeding(functions), []
    for row, seed in enumerate(seeds):
        try:
            made = seeding.run(rows.sample(row), seed)
        except Exception as error:
            raise FunctionFailed(row, f"{type(error).__name__}: {error}", traceback.format_exc()) from error
        if not isinstance(made, dict):
            raise FunctionFailed(row, f"fn returned {type(made).__name__}, not a dict", "")
        found.append(made)
    return found


def _is_listed(value: Any) -> bool:
    return isinstance(value, (list, tuple, bytes, bytearray, memoryview, str, dict)) or value is None


def apply(
    functions: Sequence[tuple[Callable[..., Any], bool]],
    rows: Rows,
    seeds: Sequence[int],
    room: Callable[[int], Any],
) -> MapResults:
    """Run the functions over every row, and gather their results. The first result sets names, dtypes and shapes, and
    all others must match it.

    Args:
        room: Function that returns memory of at least the given number of bytes, for the arrays.
    Raises:
        Failure: A function raised, or a result does not match the first.
    """
    seeding, results = _Seeding(functions), None
    for row, seed in enumerate(seeds):
        try:
            made = seeding.run(rows.sample(row), seed)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise FunctionFailed(row, text, traceback.format_exc()) from error
        problem = None if isinstance(made, dict) else f"fn returned {type(made).__name__}, not a dict"
        if problem is None:
            try:
                if results is None:
                    results = _begin(made, len(seeds), room)
                problem = _put(results, row, made)
            except (TypeError, ValueError) as error:
                problem = f"fn returned a value that is not an array: {error}"
        if problem is not None:
            raise FunctionFailed(row, problem, "")
    return results or MapResults()


def _begin(first: dict[str, Any], rows: int, room: Callable[[int], Any]) -> MapResults:
    import numpy as np

    fields: list[tuple[str, str, tuple[int, ...]]] = []
    lists: dict[str, list[Any]] = {}
    for name, value in first.items():
        if _is_listed(value):
            lists[name] = []
            continue
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"`{name}` is a {type(value).__name__}")
        fields.append((name, array.dtype.str, (rows, *array.shape)))
    placed, size = layout(fields)
    return MapResults(placed, arrays_at(room(size), placed), lists)


def _put(results: MapResults, row: int, made: dict[str, Any]) -> str | None:
    import numpy as np

    if made.keys() != results.arrays.keys() | results.lists.keys():
        return f"fn returned {', '.join(made)}, but before {', '.join([*results.arrays, *results.lists])} before"
    for name, items in results.lists.items():
        items.append(made[name])
    for name, array in results.arrays.items():
        value = np.asarray(made[name])
        view = array[row, ...]
        if value.shape != view.shape or value.dtype != view.dtype:
            return (
                f"fn returned `{name}` as {value.dtype} {list(value.shape)}, but before as {view.dtype} "
                f"{list(view.shape)}"
                " (return a list if lengths differ)"
            )
        view[...] = value
    return None


class _Slots:
    """Slots that this process maps: input slots from the parent, and its own output slots."""

    def __init__(self) -> None:
        self.inputs: dict[int, mmap.mmap] = {}
        self.outputs: dict[int, mmap.mmap] = {}
        self._next = 0

    def output(self, size: int, offered: int | None) -> tuple[int, mmap.mmap, int | None]:
        """Return a slot of at least `size` bytes: the offered slot, or a new slot with its file descriptor."""
        if offered is not None and len(self.outputs[offered]) >= size:
            return offered, self.outputs[offered], None
        descriptor, memory = new_memory(size)
        self._next += 1
        self.outputs[self._next] = memory
        return self._next, memory, descriptor


def _read(pipe: Connection, into: SimpleQueue[Any]) -> None:
    """Read the parent's messages into a queue, each with the memory that it refers to. Puts None after the last."""
    # End of file means that the parent has ended, for whatever reason. This process must then end, too.
    with suppress(EOFError, OSError):
        while True:
            message, memory = pipe.recv(), None
            if message[0] == "input":
                descriptor = reduction.recv_handle(pipe)
                memory = mmap.mmap(descriptor, message[2])
                os.close(descriptor)
            into.put((message, memory))
    into.put(None)


def _messages(pipe: Connection) -> Iterator[tuple[Any, mmap.mmap | None]]:
    # A separate thread reads the pipe. Otherwise both processes would block if each sends a large message at the same
    # time.
    queue: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=(pipe, queue), name="penstock-map-read", daemon=True).start()
    return iter(queue.get, None)


def run_worker(pipe: Connection, pickled: bytes) -> None:
    """Main function of the worker process: runs tasks and sends results until the parent closes its end of the pipe."""
    end_with_parent()  # a function may run for a long time without reading the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but the parent decides
    try:
        functions = pickle.loads(pickled)  # noqa: S301 - written by our parent
    except Exception:
        with suppress(OSError):
            pipe.send(("broken", traceback.format_exc()))
        return
    slots = _Slots()
    with suppress(OSError):
        pipe.send(("ready",))
        for message, memory in _messages(pipe):
            if memory is not None:
                slots.inputs[message[1]] = memory
            elif message[0] == "drop":
                slots.outputs.pop(message[1], None)
            else:
                _run(pipe, functions, slots, message)


def _run(pipe: Connection, functions: Any, slots: _Slots, message: Any) -> None:
    _, number, slot, fields, ragged, lists, seeds, offered = message
    arrays = arrays_at(slots.inputs[slot], fields)
    rows = Rows(arrays, lists, {name: (arrays.pop(f"{name}/values"), arrays.pop(f"{name}/offsets")) for name in ragged})
    taken: list[tuple[int, mmap.mmap, int | None]] = []

    def room(size: int) -> mmap.mmap:
        taken.append(slots.output(size, offered))
        return taken[0][1]

    try:
        results = apply(functions, rows, seeds, room)
    except FunctionFailed as failure:
        pipe.send(("failed", number, failure.row, failure.why, failure.trace))
        return
    finally:
        del arrays, rows
    used, memory, descriptor = taken[0] if taken else (None, b"", None)
    answer = ("done", number, results.fields, results.lists, used, len(memory), descriptor is not None)
    results.arrays.clear()
    try:
        pipe.send(answer)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        pipe.send(("failed", number, 0, f"fn returned a list that cannot be pickled: {error}", ""))
        if descriptor is not None:
            os.close(descriptor)
        return
    if descriptor is not None:
        reduction.send_handle(pipe, descriptor, os.getppid())
        os.close(descriptor)
