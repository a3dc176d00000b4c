# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark phase in the core and converts its report to a row.

Contains the loop over points and phases, and the report fields that all benchmarks share. Independent of files and
objects.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock import _native
from penstock.bench.rows import End, Row, Sample
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Hooks", "Phase", "collect", "end_of", "facts_of", "raw_of", "report_of", "series_of"]

_LOOK_S = 0.1
# Maximum wait, in seconds, for reads and writes in flight after a phase is cancelled.
_END_S = 10.0
_Point = TypeVar("_Point")


class Phase(Protocol):
    """Interface of a running phase."""

    def progress(self) -> tuple[int, int, int]: ...
    def wait(self, timeout_s: float) -> str | None: ...
    def cancel(self) -> None: ...


def _at_once(_what: str) -> float | None:
    return None


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a benchmark: for its rows, its progress and the start of each phase.

    Attributes:
        on_row: Called with each completed row.
        on_progress: Called ten times per second with the phase, its workers, and three counts of completed work (files or
            requests, reads or writes, bytes). An exception ends the phase.
        start: Called with the name of a phase that is ready to begin. Returns the start time in seconds since the Unix
            epoch on this host's clock, or None to start immediately.
    """

    on_row: Callable[[Row], None] = lambda _row: None
    on_progress: Callable[[str, int, tuple[int, int, int]], None] = lambda _name, _workers, _done: None
    start: Callable[[str], float | None] = _at_once


def collect(points: Iterable[_Point], rows_of: Callable[[_Point], Iterator[Row]], hooks: Hooks) -> list[Row]:
    """Measure all points, one after another, and return the rows. Each row is passed to `hooks.on_row` when it is
    complete.
    """
    rows: list[Row] = []
    for point in points:
        for row in rows_of(point):
            rows.append(row)
            hooks.on_row(row)
    return rows


def report_of(begin: Callable[[], Phase], name: str, workers: int, hooks: Hooks) -> dict[str, Any]:
    """Start a phase at its agreed time and wait for its report. An exception ends the phase.

    Returns:
        The core's report. If a start time was agreed, `start_late_s` is the delay of the actual start. A late host
        starts
        immediately.
    """
    agreed = hooks.start(name)
    while agreed is not None and (left := agreed - time.time()) > 0:
        hooks.on_progress(name, workers, (0, 0, 0))
        time.sleep(min(left, _LOOK_S))
    phase = begin()
    try:
        while (report := phase.wait(_LOOK_S)) is None:
            hooks.on_progress(name, workers, phase.progress())
    except BaseException:
        phase.cancel()
        _ended(phase)
        raise
    found: dict[str, Any] = json.loads(report)
    if agreed is not None:
        found["start_late_s"] = found["started_s"] - agreed
    return found


def _ended(phase: Phase) -> None:
    """Wait until a cancelled phase has stopped, so that the caller can clean up without a race."""
    until = time.monotonic() + _END_S
    with suppress(PenstockError):
        while phase.wait(_LOOK_S) is None and time.monotonic() < until:
            pass


def end_of(
    seconds: float, cpu_percent: float | None, *, entries: int | None, ios: int | None, moved: int | None
) -> End:
    """Build the `End` of a phase's first or last worker; a count that the phase does not have is None."""

    def rate(count: int | None) -> float | None:
        return count / seconds if count is not None and seconds > 0 else None

    return End(
        time_s=seconds,
        entries=entries,
        ios=ios,
        bytes=moved,
        entries_per_s=rate(entries),
        ios_per_s=rate(ios),
        bytes_per_s=rate(moved),
        cpu=cpu_percent / 100 if cpu_percent is not None else None,
    )


def series_of(samples: list[dict[str, Any]], *, entries: str, ios: str | None = None) -> tuple[Sample, ...]:
    """Convert cumulative samples to rates per interval. `entries` and `ios` are the names of the counters in the core's
    samples.
    """
    made, before = [], {"t_s": 0.0, "bytes": 0, "throttles": 0, entries: 0, **({ios: 0} if ios else {})}
    for sample in samples:
        seconds = sample["t_s"] - before["t_s"]
        made.append(
            Sample(
                at_s=sample["t_s"],
                # The byte count may decrease, because the core subtracts the bytes of failed attempts.
                bytes_per_s=max(0, sample["bytes"] - before["bytes"]) / seconds,
                entries_per_s=(sample[entries] - before[entries]) / seconds,
                ios_per_s=(sample[ios] - before[ios]) / seconds if ios else None,
                throttles=sample.get("throttles", 0) - before.get("throttles", 0),
                workers=sample.get("workers"),
            )
        )
        before = sample
    return tuple(made)


def facts_of(report: dict[str, Any]) -> dict[str, Any]:
    """Row fields that are filled in the same way from every report."""
    return {
        "open_loop_per_s": report["offered_per_s"],
        "cpu_s": report["cpu"]["user_s"] + report["cpu"]["system_s"],
        "cores": report["cores"],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report["started_s"])),
        "source": f"penstock {_native.__version__}",
    }


def raw_of(report: dict[str, Any]) -> dict[str, str]:
    """Report fields that have no field in a row."""
    raw: dict[str, str] = {}
    if report["ended_by"]:
        raw["ended_by"] = report["ended_by"]
    if report.get("start_late_s") is not None:
        raw["start_late_s"] = f"{report['start_late_s']:.6f}"
    return raw
