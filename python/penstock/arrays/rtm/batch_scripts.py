# SPDX-License-Identifier: Apache-2.0
"""Writes job scripts for Slurm and PBS job arrays, and programs that run a migration with Dask on Slurm or PBS.

Each task of a job array runs one worker until no shots remain, so the task compiles the operators only once. The number
of tasks can be smaller or larger than the number of shots.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SCHEDULERS", "ScriptRequest", "batch_script"]

SCHEDULERS = ("slurm", "pbs", "dask-slurm", "dask-pbs")

_NOTICE_S = 120
"""Number of seconds before the end of its task at which a worker stops claiming shots."""

_PASSED = ("DEVITO_", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")
"""Prefixes of the environment variables that the script exports. Secrets are not exported; nodes read them from their
own files.
"""


@dataclass(frozen=True)
class ScriptRequest:
    """Resources and settings of a script.

    Attributes:
        job_url: The migration job.
        tasks: Number of workers.
        cores: Number of cores of each task.
        memory_gb: Memory of each task in GB; None uses the site's default.
        limit_s: Time limit of a task, in seconds.
        concurrent: Maximum number of tasks that run at a time; None means no limit.
        queue, account: Queue (or partition), and account; None uses the user's default.
        stage, term_s: See `Worker`.
        local_dir: Folder on a fast local disk of each node, for compiled code and snapshots.
        keeps_snapshots: Store snapshots in a file below `local_dir`, instead of in memory.
        program: Command that starts Penstock on a node.
        setup: Shell lines that run first, such as `module load ...`.
        variables: Environment variables. The script exports only variables with Devito's settings and the store's
            address.
    """

    job_url: str
    tasks: int = 8
    cores: int = 8
    memory_gb: float | None = None
    limit_s: float = 7200.0
    concurrent: int | None = None
    queue: str | None = None
    account: str | None = None
    stage: str = "all"
    term_s: float = 60.0
    local_dir: str = "/tmp"  # noqa: S108 - the default of most nodes
    keeps_snapshots: bool = False
    program: str = "penstock"
    setup: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tasks", "cores"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1 (got {getattr(self, name)})", where=name)
        if self.concurrent is not None and not self.concurrent >= 1:
            raise ConfigError(f"concurrent: must be at least 1 (got {self.concurrent})", where="concurrent")
        if self.limit_s < 2 * _NOTICE_S:
            raise ConfigError(f"time: must be at least {2 * _NOTICE_S} s (got {self.limit_s:g} s)", where="time")
        for text in (self.job_url, self.queue or "", self.account or "", self.local_dir, self.program, *self.setup):
            if "\n" in text:
                raise ConfigError(f"script: must be a single line (got `{text}`)", where="script")


def batch_script(scheduler: str, request: ScriptRequest) -> str:
    """Write a script for `sbatch` (Slurm), `qsub` (PBS) or `python` (dask-slurm and dask-pbs).

    Raises:
        ConfigError: The scheduler is unknown.
    """
    makers = {"slurm": _slurm, "pbs": _pbs, "dask-slurm": _dask, "dask-pbs": _dask}
    if scheduler not in makers:
        raise ConfigError(f"scheduler: `{scheduler}` is not one of {', '.join(SCHEDULERS)}", where="scheduler")
    return makers[scheduler](request, scheduler)


def _slurm(request: ScriptRequest, _scheduler: str) -> str:
    throttle = "" if request.concurrent is None else f"%{request.concurrent}"
    options = [
        "--job-name=penstock-rtm", f"--array=0-{request.tasks - 1}{throttle}", "--nodes=1", "--ntasks=1",
        f"--cpus-per-task={request.cores}", f"--time={_clock(request.limit_s)}", "--requeue", "--open-mode=append",
        f"--signal=B:USR1@{_NOTICE_S}", "--output=penstock-rtm-%A_%a.log",
    ]  # fmt: skip
    options += [] if request.memory_gb is None else [f"--mem={request.memory_gb * 1000:.0f}M"]
    options += [f"--partition={request.queue}"] if request.queue else []
    options += [f"--account={request.account}"] if request.account else []
    # Slurm sends a signal to the batch shell, which forwards the signal to the worker and waits. The worker finishes
    # its shot, and exits with code 143.
    body = f"""
{_command(request)} &
worker=$!
trap 'kill -USR1 $worker' USR1
trap 'kill -TERM $worker' TERM
while :; do
  wait $worker
  code=$?
  kill -0 $worker 2>/dev/null || break
done
# 143: the time limit was reached and shots remain. The task is requeued, and continues.
if [ $code -eq 143 ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit $code"""
    return _shell(request, [f"#SBATCH {shlex.quote(option)}" for option in options], "$SLURM_CPUS_PER_TASK", body)


def _pbs(request: ScriptRequest, _scheduler: str) -> str:
    chunk = f"1:ncpus={request.cores}:ompthreads={request.cores}"
    chunk += "" if request.memory_gb is None else f":mem={request.memory_gb * 1000:.0f}mb"
    throttle = "" if request.concurrent is None else f"%{request.concurrent}"
    options = [
        "-N penstock-rtm", f"-J 0-{max(1, request.tasks - 1)}{throttle}", "-r y", f"-l select={chunk}",
        f"-l walltime={_clock(request.limit_s)}", "-j oe",
    ]  # fmt: skip
    options += [f"-q {request.queue}"] if request.queue else []
    options += [f"-A {request.account}"] if request.account else []
    # PBS sends SIGTERM before SIGKILL, and the worker then releases its claim. `exec` replaces the shell, so that
    # `timeout` and the worker receive the signal.
    limit = f"timeout --signal=USR1 {request.limit_s - _NOTICE_S:.0f} "
    body = f'cd "$PBS_O_WORKDIR" || exit 3\nexec {limit}{_command(request)}'
    return _shell(request, [f"#PBS {option}" for option in options], str(request.cores), body)


def _shell(request: ScriptRequest, directives: list[str], threads: str, body: str) -> str:
    lines = ["#!/bin/bash", *directives, *request.setup, f'export OMP_NUM_THREADS="{threads}"']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in _variables(request).items()]
    # Devito compiles in TMPDIR. If TMPDIR were on a shared file system, the nodes would wait for each other.
    lines += [f"export TMPDIR={shlex.quote(request.local_dir)}", body.strip("\n")]
    return "\n".join(lines) + "\n"


def _command(request: ScriptRequest) -> str:
    argv = ["array", "rtm", "shots", request.job_url, "--stage", request.stage, "--lease", f"{request.term_s:g}s"]
    argv += ["--snapshots-dir", request.local_dir] if request.keeps_snapshots else []
    return f"{request.program} {shlex.join(argv)} --no-wait"


def _variables(request: ScriptRequest) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(request.variables.items())
        if name.startswith(_PASSED) and "\n" not in value
    }


def _dask(request: ScriptRequest, scheduler: str) -> str:
    minutes = request.limit_s / 60
    cluster = "SLURMCluster" if scheduler == "dask-slurm" else "PBSCluster"
    # Workers end before the batch system would kill them, and at different times.
    lifetime = [f"{minutes - 10 if minutes > 20 else minutes / 2:.0f}m", f"{min(4, minutes / 8):.0f}m"]
    prologue = [
        *request.setup,
        f"export OMP_NUM_THREADS={request.cores}",
        f"export TMPDIR={shlex.quote(request.local_dir)}",
        *[f"export {name}={shlex.quote(value)}" for name, value in _variables(request).items()],
    ]
    arguments = {
        "queue": request.queue, "account": request.account, "cores": request.cores, "processes": 1,
        "memory": f"{request.memory_gb or 4 * request.cores:g}GB", "walltime": _clock(request.limit_s),
        "local_directory": request.local_dir,
        "worker_extra_args": ["--nthreads", "1", "--lifetime", lifetime[0], "--lifetime-stagger", lifetime[1]],
        "job_script_prologue": prologue,
    }  # fmt: skip
    arguments |= {"job_extra_directives": ["--requeue"] if scheduler == "dask-slurm" else ["-r y"]}
    listed = "\n".join(f"    {name}={value!r}," for name, value in arguments.items())
    snapshots = repr(request.local_dir) if request.keeps_snapshots else None
    return f'''#!/usr/bin/env python3
"""Run the shots of a migration with Dask. It needs dask-jobqueue, and may be stopped and repeated."""

import dask
from dask_jobqueue import {cluster}
from distributed import Client

from penstock.arrays.rtm.dask_workers import ALLOWED_FAILURES, run_with_dask

dask.config.set({{"distributed.scheduler.allowed-failures": ALLOWED_FAILURES}})
cluster = {cluster}(
{listed}
)

if __name__ == "__main__":
    # `scale` instead of `adapt`, because adaptive clusters cancel jobs before these get work.
    cluster.scale(jobs={request.tasks})
    with Client(cluster) as client:
        report = run_with_dask(
            {request.job_url!r},
            client=client,
            stage={request.stage!r},
            term_s={request.term_s!r},
            snapshots_dir={snapshots},
        )
    print(report)
    raise SystemExit(0 if report.is_complete else 1)
'''


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
