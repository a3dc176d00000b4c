# SPDX-License-Identifier: Apache-2.0
"""Worker process of `map` and `decode`: runs functions over batches in shared memory.

Owns the memory of its results until the parent releases it. Does not handle order, state or stores. Tasks and results
are rows in a slot of shared memory; arrays are never sent through the pipe.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import signal
import struct
import threading
import traceback
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.feed.map_functions import FunctionFailed, Functions, Rows, arrays_at, run
from penstock.parent_death import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

__all__ = ["MEMORY", "PROGRESS", "PROGRESS_SLOT", "TRACE_AT", "TRACE_SIGNAL", "new_memory", "run_worker"]

PROGRESS_SLOT = -1
"""Number of the input slot in which a worker stores its progress."""

PROGRESS = struct.Struct("<qq")
"""Task and row of the sample in progress, at the start of the progress slot."""

MEMORY = struct.Struct("<qq")
"""Resident memory of the worker in bytes, before its first task and before its latest task. Stored after `PROGRESS`."""

TRACE_AT = PROGRESS.size + MEMORY.size
"""Offset of the worker's traceback in the file of the progress slot."""

TRACE_SIGNAL = signal.SIGUSR2
"""On this signal, a worker appends its traceback to the file of the progress slot, even while a function blocks the
interpreter.
"""


def new_memory(size: int) -> tuple[int, mmap.mmap]:
    """Create anonymous shared memory. The kernel frees it when the last process that maps it ends, even if that process
    is killed.
    """
    descriptor = os.memfd_create("penstock-map", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor, mmap.mmap(descriptor, size)


class _Slots:
    """Slots that this process maps: input slots from the parent, and output slots of this process."""

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

    def discard(self, taken: list[tuple[int, mmap.mmap, int | None]]) -> None:
        """Free the new slots among `taken`, because they were not announced to the parent."""
        for slot, _, descriptor in taken:
            if descriptor is not None:
                del self.outputs[slot]
                os.close(descriptor)


def _read(pipe: Connection, into: SimpleQueue[Any]) -> None:
    """Read the messages of the parent into a queue, each with the memory that the message refers to. Put None after the
    last message.
    """
    # End of file means that the parent has ended. This process must then end, too.
    with suppress(EOFError, OSError):
        while True:
            message, memory = pipe.recv(), None
            if message[0] == "input":
                descriptor = reduction.recv_handle(pipe)
                memory = mmap.mmap(descriptor, message[2])
                if message[1] == PROGRESS_SLOT:
                    os.lseek(descriptor, TRACE_AT, os.SEEK_SET)
                    faulthandler.register(TRACE_SIGNAL, file=descriptor, all_threads=False)
                else:
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
    end_with_parent()  # while a function runs, this process does not notice that the pipe is closed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the whole process group gets Ctrl-C, but the parent decides
    try:
        functions: Functions = pickle.loads(pickled)  # noqa: S301 - written by our parent
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


def _memory_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # not Linux, or /proc is hidden
        return 0


def _run(pipe: Connection, functions: Functions, slots: _Slots, message: Any) -> None:
    _, number, slot, fields, ragged, raw, lists, seeds, offered = message
    arrays = arrays_at(slots.inputs[slot], fields)
    pairs = {name: (arrays.pop(f"{name}/values"), arrays.pop(f"{name}/offsets")) for name in ragged}
    rows = Rows(arrays, lists, pairs, raw)
    progress = slots.inputs[PROGRESS_SLOT]
    first, _ = MEMORY.unpack_from(progress, PROGRESS.size)
    MEMORY.pack_into(progress, PROGRESS.size, first or _memory_bytes(), _memory_bytes())
    taken: list[tuple[int, mmap.mmap, int | None]] = []

    def room(size: int) -> mmap.mmap:
        taken.append(slots.output(size, offered))
        return taken[0][1]

    try:
        results = run(functions, rows, seeds, room, lambda row: PROGRESS.pack_into(progress, 0, number, row))
    except FunctionFailed as failure:
        slots.discard(taken)
        pipe.send(("failed", number, failure.row, failure.why, failure.trace))
        return
    finally:
        del arrays, pairs, rows
        PROGRESS.pack_into(progress, 0, -1, 0)
    used, memory, descriptor = taken[0] if taken else (None, b"", None)
    results.arrays.clear()
    answer = ("done", number, results, used, len(memory), descriptor is not None)
    try:
        pipe.send(answer)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        slots.discard(taken)
        pipe.send(("failed", number, 0, f"fn returned a list that cannot be pickled: {error}", ""))
        return
    if descriptor is not None:
        reduction.send_handle(pipe, descriptor, os.getppid())
        os.close(descriptor)
