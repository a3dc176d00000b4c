# SPDX-License-Identifier: Apache-2.0
"""From points to rows: caches dropped before each phase, the core's phase, and its report as a row."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import _native
from penstock.bench.caches import drop
from penstock.bench.rows import End, Latency, Row, Sample
from penstock.bench.storage.ground import Ground
from penstock.bench.storage.spec import PHASES, Point, StorageBench, kind_of, refuse_impossible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.bench.results import CacheState

    Look = Callable[[str, Point, tuple[int, int, int]], None]

__all__ = ["run"]

_LOOK_S = 0.1
# The core's phases behind each of ours, with elbencho's words for them.
_STEPS = {
    "mkdirs": (("mkdirs", "MKDIRS"),),
    "write": (("write", "WRITE"),),
    "read": (("read", "READ"),),
    "stat": (("stat", "STAT"),),
    "delete": (("delete", "RMFILES"), ("rmdirs", "RMDIRS")),
}


def run(
    path: Path,
    bench: StorageBench,
    points: tuple[Point, ...],
    *,
    told: Callable[[Row], None] | None = None,
    look: Look | None = None,
) -> list[Row]:
    """Measure every point, one after the other.

    Args:
        told: Called with each row as soon as there is one.
        look: Called ten times a second with the phase, its point, and entries, reads or writes and bytes done so far.
    Raises:
        ConfigError, NoSpace, BudgetExceeded: What cannot be done, before anything is.
        PreconditionFailed: The folder holds what is not ours.
        Corrupt: Content that is not what was written.
        Interrupted: Ctrl-C. As after any error, what this run made is gone.
    """
    refuse_impossible(path, bench, points)
    kind = kind_of(path)
    rows: list[Row] = []
    with ExitStack() as stack:
        ground = stack.enter_context(Ground(path)) if kind == "dir" else None
        for point in points:
            for repeat in range(bench.repeats):
                for row in _point(path, kind, ground, bench, point, look):
                    rows.append(msgspec.structs.replace(row, repeat=repeat))
                    if told:
                        told(rows[-1])
    return rows


def _point(
    path: Path,
    kind: str,
    ground: Ground | None,
    bench: StorageBench,
    point: Point,
    look: Look | None,
) -> Iterator[Row]:
    phases = [phase for phase in PHASES if phase in bench.phases]
    makes = "mkdirs" in phases or "write" in phases
    place = ground.tree(point, is_made=makes) if ground else path
    was_touched = False
    for phase in phases:
        if phase == "write" and ground and "mkdirs" not in phases:
            _phase(bench.native(place, point, "mkdirs"), "mkdirs", point, None)
        for step, operation in _STEPS[phase]:
            is_data = phase in {"write", "read"}
            cache = drop(place, wanted=bench.drop_caches, direct=bench.direct and is_data, was_written=was_touched)
            spec = bench.native(place, point, step)
            report = _phase(spec, step, point, look)
            yield _row(report, operation, kind, bench, point, cache)
        was_touched = True
    if ground and "delete" in phases:
        ground.is_gone(place)


def _phase(spec: dict[str, Any], name: str, point: Point, look: Look | None) -> dict[str, Any]:
    phase = _native.StoragePhase(json.dumps(spec), name)
    try:
        while (report := phase.wait(_LOOK_S)) is None:
            if look:
                look(name, point, phase.progress())
    except BaseException:
        phase.cancel()
        raise
    found: dict[str, Any] = json.loads(report)
    return found


def _row(
    report: dict[str, Any], operation: str, kind: str, bench: StorageBench, point: Point, cache: CacheState
) -> Row:
    is_data = operation in {"WRITE", "READ"}
    raw: dict[str, str] = {"shared paths": str(int(kind != "dir")), "engine": bench.engine}
    if point.of_files is not None:
        raw["files_published"] = str(point.of_files)
    if report["ended_by"]:
        raw["ended_by"] = report["ended_by"]
    if operation == "WRITE":
        raw["durable"] = "fsync" if bench.fsync else "not durable: no fsync in the clock"
    if report["verified_bytes"]:
        raw["verified_bytes"] = str(report["verified_bytes"])
    if report["start_late_s"] is not None:
        raw["start_late_s"] = f"{report['start_late_s']:.6f}"
    has_files = kind == "dir"
    return Row(
        operation=operation,
        path_type=kind,
        threads=point.threads,
        io_depth=point.io_depth if is_data else 1,
        directories=point.directories if has_files else None,
        files=point.files if has_files else None,
        file_size_bytes=point.file_size_bytes or report["last"]["bytes"] or None,
        block_size_bytes=point.block_size_bytes if is_data else None,
        direct=bench.direct and is_data,
        random=bench.pattern == "random" and is_data,
        first=_end(report["first"], is_data=is_data),
        last=_end(report["last"], is_data=is_data),
        entry_latency=Latency.of(report["entry_latency"]),
        io_latency=Latency.of(report["io_latency"]),
        service_latency=Latency.of(report["service_latency"]),
        open_loop_per_s=report["offered_per_s"],
        series=_series(report["series"]),
        cache=cache,
        cpu_s=report["cpu"]["user_s"] + report["cpu"]["system_s"],
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report["started_s"])),
        source=f"penstock {_native.__version__}",
        invalid=("nothing was done in the time given",)
        if not report["last"]["entries"] + report["last"]["ios"]
        else (),
        raw=raw,
    )


def _end(end: dict[str, Any], *, is_data: bool) -> End:
    seconds = end["seconds"]

    def rate(count: int) -> float | None:
        return count / seconds if seconds > 0 else None

    return End(
        time_s=seconds,
        entries=end["entries"] or None,
        ios=end["ios"] if is_data else None,
        bytes=end["bytes"] if is_data else None,
        entries_per_s=rate(end["entries"]) if end["entries"] else None,
        ios_per_s=rate(end["ios"]) if is_data else None,
        bytes_per_s=rate(end["bytes"]) if is_data else None,
        cpu=end["cpu_percent"] / 100 if end["cpu_percent"] is not None else None,
    )


def _series(samples: list[dict[str, Any]]) -> tuple[Sample, ...]:
    made, before = [], {"t_s": 0.0, "bytes": 0, "entries": 0, "ios": 0}
    for sample in samples:
        seconds = sample["t_s"] - before["t_s"]
        made.append(
            Sample(
                at_s=sample["t_s"],
                bytes_per_s=(sample["bytes"] - before["bytes"]) / seconds,
                entries_per_s=(sample["entries"] - before["entries"]) / seconds,
                ios_per_s=(sample["ios"] - before["ios"]) / seconds,
            )
        )
        before = sample
    return tuple(made)
