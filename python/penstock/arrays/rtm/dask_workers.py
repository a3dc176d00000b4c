# SPDX-License-Identifier: Apache-2.0
"""Runs a migration with Dask. Dask starts workers and distributes shots; markers in the store record finished shots.

Tasks call a function of this module, so that each worker process builds its operators only once. A task returns only an
outcome, not the image.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.arrays.rtm.job import Job
from penstock.arrays.rtm.local_workers import pinned_threads
from penstock.arrays.rtm.memory import check_memory
from penstock.arrays.rtm.worker import LEASE_TERM_S, Stage, Worker, WorkerReport, stage_kinds
from penstock.errors import ConfigError, MissingPackage, RankFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ALLOWED_FAILURES", "run_with_dask", "shot_task"]

ALLOWED_FAILURES = 20
"""Number of workers that can die during a task before Dask gives up on the task. Dask's default, 3, is too low for a
queue whose jobs are often preempted.
"""


@lru_cache(maxsize=4)
def _worker(
    job_url: str, stage: Stage, term_s: float, snapshots_dir: str | None, timeout_s: float, *, checks_memory: bool
) -> Worker:
    job = Job.load(job_url, timeout_s=timeout_s)
    return Worker(job, stage=stage, term_s=term_s, snapshots_dir=snapshots_dir, checks_memory=checks_memory)


def shot_task(
    job_url: str,
    shot: int,
    stage: Stage = "all",
    term_s: float = LEASE_TERM_S,
    snapshots_dir: str | None = None,
    timeout_s: float = 600.0,
    *,
    checks_memory: bool = True,
) -> str:
    """Compute one shot in a Dask worker.

    Returns:
        `done`, `present`, `held`, `lost` or `failed: ERROR`; see `Outcome`.
    Raises:
        PenstockError: The store, the disk or Devito reported an error.
    """
    worker = _worker(job_url, stage, term_s, snapshots_dir, timeout_s, checks_memory=checks_memory)
    outcome = worker.run_shot(shot)
    return f"failed: {worker.report.failed.pop(shot)}" if outcome == "failed" else outcome


def run_with_dask(
    job_url: str | os.PathLike[str],
    *,
    workers: int = 2,
    client: Any = None,
    address: str | None = None,
    stage: Stage = "all",
    term_s: float = LEASE_TERM_S,
    snapshots_dir: str | os.PathLike[str] | None = None,
    checks_memory: bool = True,
    on_shot: Callable[[dict[str, Any]], None] | None = None,
    timeout_s: float = 600.0,
) -> WorkerReport:
    """Compute shots with Dask until all shots are finished.

    Args:
        job_url: URL of the job, which must refer to the same folder on every worker.
        workers: Number of processes of a `LocalCluster`, which is started if neither `client` nor `address` is given.
        client: Client of an existing cluster.
        address: Address of an existing scheduler, such as tcp://HOST:8786.
        stage, term_s, snapshots_dir: See `Worker`.
        checks_memory: Check that the available memory is sufficient for the workers. For a `LocalCluster`, one check
            covers all workers; otherwise, each worker checks its node.
        on_shot: Function that is called with `{"shot": ..., "outcome": ...}` for each finished shot.
        timeout_s: Time limit of each request, in seconds.
    Raises:
        MissingPackage: distributed is not installed.
        BudgetExceeded: The memory is too small for the workers of a `LocalCluster`.
        RankFailed: Dask gave up on a shot. Finished shots are stored.
    """
    if find_spec("distributed") is None:
        raise MissingPackage(
            "Dask workers require distributed, which is not installed",
            hint="pip install distributed",
            name="distributed",
        )
    if workers < 1:
        raise ConfigError(f"workers: must be at least 1 (got {workers})", where="workers")
    job = Job.load(job_url, timeout_s=timeout_s)
    kinds = stage_kinds(job, stage)
    if checks_memory and client is None and address is None:
        check_memory(job, kinds, workers=workers, on_disk=snapshots_dir is not None)
        checks_memory = False
    folder = None if snapshots_dir is None else os.fspath(snapshots_dir)
    with _client(client, address, workers) as found:
        report = _drain(found, job, kinds, (stage, term_s, folder, timeout_s), on_shot, checks_memory=checks_memory)
    report.remaining = len(_unfinished(job, kinds))
    return report


def _unfinished(job: Job, kinds: Any) -> set[int]:
    return {shot for kind in kinds for shot in set(range(job.survey.shots)) - job.done(kind)}


def _drain(
    client: Any,
    job: Job,
    kinds: Any,
    options: tuple[Any, ...],
    on_shot: Callable[[dict[str, Any]], None] | None,
    *,
    checks_memory: bool,
) -> WorkerReport:
    import distributed

    report = WorkerReport()

    def submit(shot: int) -> Any:
        future = client.submit(
            shot_task, job.location.url, shot, *options, checks_memory=checks_memory, pure=False,
            key=f"shot-{shot}-{time.monotonic_ns()}",
        )  # fmt: skip
        waiting[future.key] = shot
        return future

    waiting: dict[str, int] = {}
    left = sorted(_unfinished(job, kinds))
    if "model" not in kinds and "model" in job.kinds:
        ready = job.done("model")
        report.without_gather = len(set(left) - ready)
        left = [shot for shot in left if shot in ready]
    as_completed: Any = distributed.as_completed
    completed = as_completed([submit(shot) for shot in left], loop=client.loop, raise_errors=False)
    for future in completed:
        shot = waiting.pop(future.key)
        try:
            outcome = future.result()
        except Exception as error:
            raise RankFailed(
                f"shot {shot}: {type(error).__name__}: {error}",
                hint="repeat the command to migrate the remaining shots",
            ) from error
        if outcome in ("held", "lost"):
            # If the worker that claimed the shot died on another host, the claim is valid until its lease expires.
            time.sleep(0.2)
            completed.add(submit(shot))
            continue
        if outcome.startswith("failed"):
            report.failed[shot] = outcome.partition(": ")[2]
        elif outcome == "done":
            for kind in kinds:
                report.computed.setdefault(kind, []).append(shot)
        if on_shot is not None:
            on_shot({"shot": shot, "outcome": outcome.partition(":")[0]})
    return report


@contextmanager
def _client(given: Any, address: str | None, workers: int) -> Iterator[Any]:
    import dask
    import distributed

    make: Any = distributed.Client
    if given is not None:
        yield given
    elif address is not None:
        with make(address, set_as_default=False) as client:
            yield client
    else:
        cluster_of: Any = distributed.LocalCluster
        threads = max(1, len(os.sched_getaffinity(0)) // workers)
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": ALLOWED_FAILURES}),
            cluster_of(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                env=pinned_threads(threads),
            ) as cluster,
            make(cluster, set_as_default=False) as client,
        ):
            yield client
