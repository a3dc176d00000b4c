# SPDX-License-Identifier: Apache-2.0
"""Runs one job over several paths: derives a job for each path from the same file, then compares the durations.

`pool` and `pool:ENGINE` stage into a pool. `staged` copies the whole dataset to every node's own disk. `stream` reads
the source directly. `fuse:CLIENT` reads the source through a FUSE mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import PenstockError
from penstock.job.spec import for_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.job.run_steps import Execution, StepRow
    from penstock.job.spec import Job

__all__ = ["PathResult", "run", "summarize", "to_json"]


class PathResult(msgspec.Struct, frozen=True):
    """Durations of one path in seconds, or the reason why the path failed.

    Attributes:
        before_s: Duration of the steps before the ranks: provision, pool up, stage.
        over_fastest: Total duration divided by the total of the fastest completed path.
        fault: Reason of the failure; None if the path completed.
    """

    path: str
    before_s: float
    ranks_s: float
    total_s: float
    over_fastest: float | None = None
    fault: str | None = None


def run(job: Job, execution_of: Callable[[Job], Execution], *, resume: bool) -> tuple[list[PathResult], bool]:
    """Run the job over each of its paths in turn; return the results, and whether all paths completed.

    If a path fails, its result contains the reason, and the next path runs. `resume` continues paths that have begun.
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
                faults[path] = f"{', '.join(one.lost)} lost, and their ranks were not rerun"
        except PenstockError as error:
            steps[path], faults[path] = one.steps(), str(error)
    return summarize(steps, faults), not faults


def summarize(steps: Mapping[str, Sequence[StepRow]], faults: Mapping[str, str]) -> list[PathResult]:
    """Return one result per path, in the order of the paths, compared with the fastest completed path."""
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
    """Convert the results to plain data for JSON."""
    return [msgspec.to_builtins(row) for row in rows]
