# SPDX-License-Identifier: Apache-2.0
"""Runs stages: starts the core's job, waits for it or for the leader of the node, and returns the summary."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.deprecation import renamed_parameters
from penstock.errors import Interrupted, of_code
from penstock.stage.spec import ALIASES, RENAMED, StageSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._native import StageJob

__all__ = ["raise_for_failures", "run", "run_as", "start", "wait"]

# Interval in seconds at which a waiting Python thread checks for Ctrl-C.
_INTERVAL_S = 0.1
# Maximum time in which an interrupted stage records completed files and removes unfinished parts from a store.
_GRACE_S = 6.0


def start(spec: StageSpec) -> StageJob:
    """Start a stage and return immediately. The job has `.progress()`, `.wait(timeout_s)` and `.cancel()`."""
    return spec.request().start()


@renamed_parameters({"look": "on_progress", "look_s": "interval_s"})
def wait(
    job: StageJob, *, on_progress: Callable[[dict[str, int]], None] | None = None, interval_s: float = _INTERVAL_S
) -> dict[str, Any]:
    """Wait for a job and return its summary. Every `interval_s`, call `on_progress` with the progress.

    Ctrl-C stops the job. Completed files are recorded, so that the same stage can continue later.
    """
    try:
        while (text := job.wait(interval_s)) is None:
            if on_progress is not None:
                on_progress(job.progress())
    except KeyboardInterrupt:
        job.cancel()
        with suppress(Interrupted):
            job.wait(_GRACE_S)
        raise
    summary: dict[str, Any] = json.loads(text)
    return summary


def run_as(spec: StageSpec) -> dict[str, Any]:
    """Run a stage and return its summary. Only the first rank of a node stages, and all other ranks of the node wait
    for it.
    """
    request = spec.request()
    if spec.rank.local_rank == 0 or spec.dry_run:
        return wait(request.start())
    limits = {} if spec.wait_timeout_s is None else {"start_s": spec.wait_timeout_s, "silence_s": spec.wait_timeout_s}
    summary: dict[str, Any] = json.loads(request.wait_for_leader(**limits))
    return summary


@renamed_parameters(RENAMED, aliases=ALIASES)
def run(source: str, destination: str, **options: Any) -> dict[str, Any]:
    """Stage and return the summary. `failed` in the summary lists the objects that could not be staged. Options are
    fields of `StageSpec`.
    """
    return run_as(StageSpec(source, destination, **options))


def raise_for_failures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary unchanged if every object was staged.

    Raises:
        PenstockError: The error of the first failed object, with the number of failed objects.
    """
    if not summary["failed"]:
        return summary
    first = summary["failed"][0]
    error = of_code(first["code"], first["error"])
    error.add_note(
        f"{len(summary['failed']):,} of {summary['objects']:,} objects of node {summary['node']} are not staged"
    )
    raise error
