# SPDX-License-Identifier: Apache-2.0
"""Trace of a run's steps in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each rank is a process. The steps of a rank are complete events (`ph` X), and the parts of a step lie inside the step.
The clocks of all ranks start at the same exchange. Only the lengths of the parts are measured, so the parts are drawn
in a fixed order. For example, the optimiser's computation follows the communication, but is drawn before it.

Source:
    Trace Event Format, Google (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU):
    metadata events, complete events, and the JSON object format; times are in microseconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.results import as_fault, whole_file
from penstock.train.step_breakdown import aligned_rows, parts_of, shortest_communication

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.train.driver import Share

__all__ = ["check_trace", "trace_events", "write_trace"]

_NAMES = {
    "data_wait_s": "waiting for data",
    "host_to_device_s": "host to device",
    "compute_s": "compute",
    "slowest_rank_wait_s": "waiting for the slowest rank",
    "exposed_communication_s": "exposed communication",
}
# A part below 1 us is not drawn, because its length would be 0 in the file's unit.
_MIN_S = 1e-6


def check_trace(file: str) -> None:
    """Check, before a run, that its trace can be written. Creates the file's folder.

    Raises:
        Denied, NoSpace, SystemFault: The file cannot be written.
    """
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=Path(file).parent):
            pass
    except OSError as error:
        raise as_fault(error, file) from None


def write_trace(file: str, shares: Sequence[Share], facts: dict[str, Any]) -> None:
    """Write the steps of all ranks to a file, atomically. `facts` describe the run, and are shown as its metadata.

    Raises:
        Denied, NoSpace, SystemFault: The file cannot be written.
    """
    stride, _ = aligned_rows(shares)
    document = {
        "traceEvents": list(trace_events(shares)),
        "displayTimeUnit": "ms",
        "otherData": {**facts, "every_nth_step": stride},
    }
    with whole_file(Path(file)) as out:
        out.write(msgspec.json.encode(document))


def trace_events(shares: Sequence[Share]) -> Iterator[dict[str, Any]]:
    """Yield the events: a process name per rank, then its steps with their parts."""
    _, rows = aligned_rows(shares)
    least, _ = shortest_communication(rows)
    for rank, share in enumerate(shares):
        yield _metadata("process_name", rank, {"name": f"rank {rank} ({share.host})"})
        yield _metadata("process_sort_index", rank, {"sort_index": rank})
        yield _metadata("thread_name", rank, {"name": "training steps"})
        for row, communication_s in zip(rows[rank] if rows else [], least, strict=bool(rows)):
            at_s = row.began_s
            yield _complete(f"step {row.step}", "step", rank, at_s, row.length_s)
            for name, seconds in parts_of(row, communication_s).items():
                if name in _NAMES and seconds >= _MIN_S:
                    yield _complete(_NAMES[name], name.removesuffix("_s"), rank, at_s, seconds)
                at_s += seconds


def _metadata(name: str, rank: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": 0, "args": arguments}


def _complete(name: str, category: str, rank: int, began_s: float, length_s: float) -> dict[str, Any]:
    # Round the begin and the end of each event to nanoseconds, so that a part cannot outlast its step.
    start, end = round(began_s * 1e6, 3), round((began_s + length_s) * 1e6, 3)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": rank,
        "tid": 0,
        "ts": max(0.0, start),
        "dur": round(max(0.0, end - start), 3),
    }
