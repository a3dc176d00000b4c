# SPDX-License-Identifier: Apache-2.0
"""Checks, before a shot is claimed, that there is enough memory for a job's workers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from penstock.arrays.rtm.shot_grid import shot_grid
from penstock.errors import BudgetExceeded
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.arrays.rtm.job import Job, Kind
    from penstock.rtm.survey import Survey

__all__ = ["check_memory", "memory_available", "worker_bytes"]

PROCESS_BYTES = 200_000_000
"""Memory in bytes of a process with Python and Devito before its first array (reference/arrays, section 5)."""

_MEMINFO, _OWN_GROUPS, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Names of a control group's files or fields (limit, usage, file pages, shared pages), for versions 2 and 1.
_FILES_V2 = ("memory.max", "memory.current", "file", "shmem")
_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")


def worker_bytes(job: Job, kinds: Sequence[Kind], *, on_disk: bool = False, snapshot_factor: int | None = None) -> int:
    """Return the memory that one worker needs for its largest shot, in bytes.

    Args:
        job: The job.
        kinds: Stages that the worker computes.
        on_disk: Whether snapshots are stored in a file.
        snapshot_factor: Snapshot factor; by default the survey's snapshot factor.
    """
    survey = _largest(job)
    if snapshot_factor is not None:
        survey = replace(survey, snapshot_factor=snapshot_factor)
    plan, whole = survey.plan, job.survey
    needs = [plan.model_memory_bytes]
    if "migrate" in kinds:
        if job.method == "revolver":
            needs.append(plan.revolver_memory_bytes)
        else:
            needs.append(plan.disk_memory_bytes if on_disk else plan.memory_bytes)
    # Memory in addition to the propagation. Devito needs three float64 arrays to set a model. The results are an image
    # and an illumination of the whole grid, and two gathers.
    set_model = 3 * 8 * plan.grid_points
    results = 2 * 4 * math.prod(whole.shape) + 2 * 4 * whole.samples * len(whole.receivers_km)
    return PROCESS_BYTES + max(needs) + set_model + results


def check_memory(job: Job, kinds: Sequence[Kind], *, workers: int = 1, on_disk: bool = False) -> None:
    """Check that the available memory is sufficient for the workers on this machine.

    Raises:
        BudgetExceeded: The memory is too small. The hint lists settings that need less memory.
    """
    each, available = worker_bytes(job, kinds, on_disk=on_disk), memory_available()
    if available is None or workers * each <= available:
        return
    survey = _largest(job)
    has_snapshots = "migrate" in kinds and job.method == "snapshots" and not on_disk
    snapshots = f", including snapshots of {format_bytes(survey.plan.snapshot_bytes)}" if has_snapshots else ""
    counted = "1 worker needs" if workers == 1 else f"{workers} workers need"
    hints = []
    if has_snapshots:
        factor = survey.max_snapshot_factor
        if factor > survey.snapshot_factor:
            fewer = worker_bytes(job, kinds, snapshot_factor=factor)
            if workers * fewer <= available:
                hints.append(
                    f"prepare the job with --snapshot-factor {factor} instead of {survey.snapshot_factor}"
                    f" ({format_bytes(fewer)} each)"
                )
        small = worker_bytes(job, kinds, on_disk=True)
        if workers * small <= available:
            hints.append(
                f"pass --snapshots-dir DIR on a local disk with {format_bytes(workers * survey.plan.snapshot_bytes)} free"
                f" ({format_bytes(small)} of memory each)"
            )
    if 1 <= available // each < workers:
        hints.append(f"pass --workers {available // each}")
    if not hints:
        hints.append("prepare the job with a smaller --aperture, or use a machine with more memory")
    error = BudgetExceeded(
        f"memory: {counted} {format_bytes(workers * each)} ({format_bytes(each)} each{snapshots}),"
        f" but only {format_bytes(available)} is available",
        hint="; or ".join([*hints, "pass --no-memory-check"]),
        where="workers",
    )
    error.need, error.budget = workers * each, available
    raise error


def memory_available() -> int | None:
    """Return the number of bytes of memory that this process can use: the minimum of the limits of the machine and its
    control groups. None if it is unknown.

    Clean file pages count as available. The core's store crate has the same function, but Python cannot call that
    function.
    """
    try:
        machine = _fields(_MEMINFO).get("MemAvailable:")
        groups = _OWN_GROUPS.read_text()
    except OSError:
        return None
    found = [left for left in _group_bytes(groups) if left is not None]
    return min([machine * 1024, *found]) if machine is not None else min(found, default=None)


def _group_bytes(groups: str) -> Iterator[int | None]:
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and "memory" not in kinds.split(","):
            continue
        root, files = (_GROUPS / "memory", _FILES_V1) if kinds else (_GROUPS, _FILES_V2)
        own = PurePosixPath(path.lstrip("/"))
        # In a container, this can be the path on the host, of which only the root exists in the container.
        for folder in (own, *own.parents):
            yield _left(root / folder, files)


def _left(folder: Path, files: tuple[str, str, str, str]) -> int | None:
    limit_file, used_file, cache, shared = files
    try:
        limit, used = int((folder / limit_file).read_text()), int((folder / used_file).read_text())
        counts = _fields(folder / "memory.stat")
    except (OSError, ValueError):  # such as the limit `max`
        return None
    clean = max(0, counts.get(cache, 0) - counts.get(shared, 0))
    return max(0, limit - max(0, used - clean))


def _fields(file: Path) -> dict[str, int]:
    """Parse a file whose lines have the form `NAME NUMBER ...`."""
    words = [line.split() for line in file.read_text().splitlines()]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}


def _largest(job: Job) -> Survey:
    """Return the survey of the largest part of the grid that is computed for a shot."""
    if job.aperture_km is None:
        return job.survey
    grids = (shot_grid(job.survey, shot, job.aperture_km).survey for shot in range(job.survey.shots))
    return max(grids, key=lambda survey: math.prod(survey.padded_shape))
