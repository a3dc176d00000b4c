# SPDX-License-Identifier: Apache-2.0
"""Runs one job over several paths: derives a job for each path from the same file, then compares their times.

`pool` and `pool:ENGINE` stage into a pool; `staged` copies the whole dataset to every node's own disk; `stream` reads
the source directly; `fuse:CLIENT` reads it through a client's mount.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.job.runner import Execution, StepRow
    from penstock.job.spec import Job

__all__ = ["PathResult", "for_path", "run", "staged_leftover", "summarize", "to_json"]

_MAX_NAME_CHARS = 40


class PathResult(msgspec.Struct, frozen=True):
    """Times of one path in seconds: before the ranks (pool, stage), of the ranks, and the total; or the reason why they
    are missing.

    `over_fastest` is the total over that of the fastest completed path.
    """

    path: str
    before_s: float
    ranks_s: float
    total_s: float
    over_fastest: float | None = None
    fault: str | None = None


def for_path(job: Job, path: str) -> Job:
    """The job with one of its paths.

    Raises:
        ConfigError: The path is unknown, or the job file lacks a section for it.
    """
    from penstock.job.spec import PoolSection

    kind, _, which = path.partition(":")
    name = f"{job.name}-{re.sub(r'[^A-Za-z0-9]+', '-', path).strip('-')}"
    if len(name) > _MAX_NAME_CHARS:
        raise ConfigError(
            f"paths: `{name}` is too long for a name: {_MAX_NAME_CHARS} at most", hint="a shorter name of the job"
        )
    if job.stage is None:
        raise ConfigError("paths: there is no [stage], whose source all paths begin at", where="paths")
    base = msgspec.structs.replace(job, name=name, paths=(), pool=None)
    stage = job.stage
    if kind == "stream" and not which:
        argv = tuple(arg.replace("{data}", stage.source) for arg in job.run.argv)
        return msgspec.structs.replace(base, stage=None, run=msgspec.structs.replace(job.run, argv=argv))
    if job.pool is None:
        raise ConfigError(f"paths: `{path}` wants the disk that a [pool] names", where="paths")
    if kind == "staged" and not which:
        whole = (*stage.args, "--node", "0", "--nodes", "1")
        there = msgspec.structs.replace(stage, destination=_staged_dir(job, name), args=whole)
        return msgspec.structs.replace(base, stage=there)
    if kind == "pool":
        # The file's settings belong to the engine that it names.
        kept = job.pool.settings if which in ("", job.pool.engine) else {}
        pool = msgspec.structs.replace(job.pool, engine=which or job.pool.engine, settings=kept)
        return msgspec.structs.replace(base, pool=pool)
    if kind == "fuse" and which:
        settings = {"client": which, "source": stage.source}
        pool = PoolSection(disk=job.pool.disk, engine="fuse", settings=settings, deadline=job.pool.deadline)
        return msgspec.structs.replace(base, pool=pool, stage=None)
    raise ConfigError(f"paths: `{path}` is none of pool, pool:ENGINE, staged, stream, fuse:CLIENT", where="paths")


def _staged_dir(job: Job, name: str) -> str:
    assert job.pool is not None
    return f"{job.pool.disk.rstrip('/')}{_dir_below_disk(name)}"


def _dir_below_disk(name: str) -> str:
    """Folder name below the disk, equal to a pool's, so that `pool audit` and `pool down` find it after a crash."""
    return f"/penstock-pool-{name}/data"


def staged_leftover(job: Job) -> str | None:
    """The disk on every node with a folder that is removed after this path; None without one."""
    there = job.stage.destination if job.stage is not None and job.pool is None else None
    return (
        there.removesuffix(_dir_below_disk(job.name)) if there and there.endswith(_dir_below_disk(job.name)) else None
    )


def run(job: Job, execution_of: Callable[[Job], Execution], *, resume: bool) -> tuple[list[PathResult], bool]:
    """Run the job over all of its paths, one after the other; returns their results, and whether all completed.

    A path that fails is reported in its row, and the next one runs. `resume` continues paths that have begun.
    """
    steps: dict[str, Sequence[StepRow]] = {}
    faults: dict[str, str] = {}
    executions = {path: execution_of(for_path(job, path)) for path in job.paths}
    for one in executions.values():
        if not resume:
            one.refuse_if_begun()
    for path, one in executions.items():
        try:
            steps[path] = one.run(resume=resume and one.has_begun())
            if one.is_partial:
                faults[path] = f"{', '.join(one.lost)} lost, and nobody ran those ranks again"
        except PenstockError as error:
            steps[path], faults[path] = one.steps(), str(error)
    return summarize(steps, faults), not faults


def summarize(steps: Mapping[str, Sequence[StepRow]], faults: Mapping[str, str]) -> list[PathResult]:
    """Results of the paths in their order, compared with the fastest completed one."""
    rows = []
    for path, done in steps.items():
        took: dict[str, float] = {row.name: row.seconds for row in done}
        before = sum(took.get(name, 0.0) for name in ("provision", "pool up", "stage"))
        ranks = took.get("ranks", 0.0)
        rows.append(PathResult(path, before, ranks, before + ranks, fault=faults.get(path)))
    fastest = min((row.total_s for row in rows if row.fault is None), default=0.0)
    return [
        row
        if row.fault is not None or fastest <= 0
        else msgspec.structs.replace(row, over_fastest=row.total_s / fastest)
        for row in rows
    ]


def to_json(rows: Sequence[PathResult]) -> list[dict[str, Any]]:
    """The results as plain data for JSON."""
    return [msgspec.to_builtins(row) for row in rows]
