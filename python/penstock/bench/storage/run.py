# SPDX-License-Identifier: Apache-2.0
"""Runs the points of a storage benchmark: drops caches before each phase, runs the phase in the core, and converts its
report to a row.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import _native
from penstock.bench.page_cache import drop
from penstock.bench.phases import Hooks, Phase, collect, end_of, facts_of, raw_of, report_of, series_of
from penstock.bench.rows import Latency, Row
from penstock.bench.storage import gpu
from penstock.bench.storage.scratch_dir import ScratchDir
from penstock.bench.storage.spec import PHASES, Point, StorageBench, kind_of, refuse_impossible
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.bench.results import CacheState
    from penstock.bench.rows import End

__all__ = ["run"]

# Steps of each phase: the core's phase and the operation name that elbencho uses.
_STEPS = {
    "mkdirs": (("mkdirs", "MKDIRS"),),
    "write": (("write", "WRITE"),),
    "read": (("read", "READ"),),
    "stat": (("stat", "STAT"),),
    "delete": (("delete", "RMFILES"), ("rmdirs", "RMDIRS")),
}


def run(
    path: Path, bench: StorageBench, points: tuple[Point, ...], hooks: Hooks | None = None, *, session: str = ""
) -> list[Row]:
    """Measure all points, one after another.

    Args:
        session: Identifier of this run in the folder's marker file.
    Raises:
        ConfigError, NoSpace, BudgetExceeded: The benchmark cannot run; raised before the first phase.
        PreconditionFailed: The folder contains foreign files.
        Corrupt: The read content differs from the written content.
        Interrupted: Ctrl-C. As after any error, the files of this run are removed.
    """
    hooks = hooks or Hooks()
    refuse_impossible(path, bench, points)
    kind = kind_of(path)
    if bench.gpu is not None:
        gpu.probe(bench.gpu, uses_cufile=bench.cufile)
    with ExitStack() as stack:
        scratch = stack.enter_context(ScratchDir(path, session)) if kind == "dir" else None

        def rows_of(point: Point) -> Iterator[Row]:
            for repeat in range(bench.repeats):
                for row in _point(path, kind, scratch, bench, point, hooks):
                    yield msgspec.structs.replace(row, repeat=repeat)

        return collect(points, rows_of, hooks)


def _point(
    path: Path, kind: str, scratch: ScratchDir | None, bench: StorageBench, point: Point, hooks: Hooks
) -> Iterator[Row]:
    phases = [phase for phase in PHASES if phase in bench.phases]
    makes = "mkdirs" in phases or "write" in phases
    place = scratch.tree(point, is_made=makes) if scratch else path
    was_touched = False
    for phase in phases:
        if phase == "write" and scratch and "mkdirs" not in phases:
            _phase(bench.native(place, point, "mkdirs", None), "mkdirs", point, Hooks())
        for step, operation in _STEPS[phase]:
            is_data = phase in {"write", "read"}
            cache = drop(place, wanted=bench.drop_caches, direct=bench.direct and is_data, was_written=was_touched)
            spec = bench.native(place, point, step, bench.start_at_s)
            report = _phase(spec, step, point, hooks, bench if is_data else None)
            row = _row(report, operation, kind, bench, point, cache)
            after = phases[phases.index(phase) + 1 :]
            if phase == "write" and after and report["ended_by"] and not _is_written(place, point, kind, bench):
                if hooks.start is not Hooks.start:
                    # Raise an error instead of skipping the phases: other hosts may have written all files and wait for
                    # this host's next phase.
                    raise ConfigError(
                        "the limit ended the write phase before all data was written",
                        hint="raise the limit, or write less data",
                    )
                row.raw["not_run"] = ",".join(after)
                if scratch:
                    scratch.discard(place)
                yield row
                return
            yield row
        was_touched = True
    if scratch and "delete" in phases:
        scratch.is_gone(place)


def _is_written(place: Path, point: Point, kind: str, bench: StorageBench) -> bool:
    """Whether the write phase wrote all data although a limit ended the phase. In a folder, every file must have its
    full size. A single file or device always has its size; unwritten parts matter only if the content is verified.
    """
    if kind != "dir":
        return bench.salt is None
    sizes = (path.stat().st_size for path in place.rglob("*") if path.is_file())
    whole = sum(size == point.file_size_bytes for size in sizes)
    return whole == point.total_files


def _phase(
    spec: dict[str, Any], name: str, point: Point, hooks: Hooks, of_data: StorageBench | None = None
) -> dict[str, Any]:
    def begin() -> Phase:
        if of_data is None or of_data.gpu is None:
            return _native.StoragePhase(json.dumps(spec), name)
        return gpu.GpuPhase(spec, name, gpu=of_data.gpu, uses_cufile=of_data.cufile)

    return report_of(begin, name, point.threads, hooks)


def _row(
    report: dict[str, Any], operation: str, kind: str, bench: StorageBench, point: Point, cache: CacheState
) -> Row:
    is_data = operation in {"WRITE", "READ"}
    raw: dict[str, str] = {"shared paths": str(int(kind != "dir")), "engine": bench.engine}
    if point.of_files is not None:
        raw["files_published"] = str(point.of_files)
    raw |= raw_of(report)
    if operation == "WRITE":
        raw["durable"] = "fsync" if bench.fsync else "not durable: the measured time includes no fsync"
    if is_data and bench.gpu is not None:
        raw["gpu"] = "cuFile" if bench.cufile else "pinned memory"
    if report["verified_bytes"]:
        raw["verified_bytes"] = str(report["verified_bytes"])
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
        series=series_of(report["series"], entries="entries", ios="ios"),
        cache=cache,
        invalid=("nothing was done within the time limit",)
        if not report["last"]["entries"] + report["last"]["ios"]
        else (),
        raw=raw,
        **facts_of(report),
    )


def _end(end: dict[str, Any], *, is_data: bool) -> End:
    return end_of(
        end["seconds"],
        end["cpu_percent"],
        entries=end["entries"] or None,
        ios=end["ios"] if is_data else None,
        moved=end["bytes"] if is_data else None,
    )
