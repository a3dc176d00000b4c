# SPDX-License-Identifier: Apache-2.0
"""Writes batch scripts for sbatch and qsub, and a Slurm prolog and epilog that give a job its own pool on request."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.job.step_commands import pool_up_flags, settings_flags

if TYPE_CHECKING:
    from penstock.job.export.request import ExportRequest

__all__ = ["pbs", "slurm", "slurm_epilog", "slurm_prolog"]


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _script(request: ExportRequest, directives: list[str], before: list[str]) -> str:
    for line in (*directives, *request.submit.setup):
        if "\n" in line:
            raise ConfigError(f"submit: must be a single line (got `{line}`)")
    argv = [
        *request.penstock(is_here=True),
        "run",
        str(request.file.absolute()),
        "--output",
        str(request.runs.absolute()),
    ]
    argv += ["--resume"] if request.resume else []
    # With `exec`, signals of the batch system reach Penstock itself, which then takes the pool down.
    return "\n".join(["#!/bin/sh", *directives, *before, *request.submit.setup, f"exec {shlex.join(argv)}", ""])


def slurm(request: ExportRequest) -> str:
    """Script for `sbatch FILE`. The job's launcher must be `slurm` or `mpi`.

    Slurm sends SIGTERM to the script two minutes before the time limit.

    Raises:
        ConfigError: The number of nodes is missing, or the launcher does not run inside an allocation.
    """
    _require_launcher(request, "slurm", "mpi")
    want = request.submit
    options = [f"--job-name={request.job.name}", f"--nodes={request.nodes}", f"--time={-(-request.limit_s // 60)}"]
    options += [f"--output={request.runs.absolute()}/{request.job.name}/%j.log", "--signal=B:TERM@120"]
    options += [f"--partition={want.queue}"] if want.queue else []
    options += [f"--account={want.account}"] if want.account else []
    options += [f"--gpus-per-node={want.gpus_per_node}"] if want.gpus_per_node else []
    options += [f"--cpus-per-task={want.cores_per_node}", "--ntasks-per-node=1"] if want.cores_per_node else []
    return _script(request, [f"#SBATCH {shlex.quote(option)}" for option in (*options, *want.args)], [])


def pbs(request: ExportRequest) -> str:
    """Script for `qsub FILE` of PBS Professional and OpenPBS. The job's launcher must be `pbs` or `mpi`.

    Raises:
        ConfigError: The number of nodes is missing, or the launcher does not run inside a job.
    """
    _require_launcher(request, "pbs", "mpi")
    want = request.submit
    chunk = f"{request.nodes}:ncpus={want.cores_per_node or 1}:mpiprocs=1"
    chunk += f":ngpus={want.gpus_per_node}" if want.gpus_per_node else ""
    options = [
        f"-N {request.job.name[:15]}",
        f"-l select={chunk}",
        "-l place=scatter:excl",
        f"-l walltime={_clock(request.limit_s)}",
    ]
    options += ["-j oe", f"-o {request.runs.absolute()}/{request.job.name}/pbs.log"]
    options += [f"-q {want.queue}"] if want.queue else []
    options += [f"-A {want.account}"] if want.account else []
    return _script(request, [f"#PBS {option}" for option in (*options, *want.args)], ['cd "$PBS_O_WORKDIR" || exit 3'])


def _require_launcher(request: ExportRequest, *launchers: str) -> None:
    if request.job.cluster.launcher not in launchers:
        raise ConfigError(
            f"cluster.launcher: {request.job.cluster.launcher} does not support the nodes of this job",
            hint=f"set launcher = {' or '.join(launchers)}",
        )


_COMMENT = "penstock"
_HEAD = """#!/bin/sh
# slurm.conf: {what}=THIS FILE. Runs on the controller, once a job, as SlurmUser, whose ssh reaches the nodes.
# Only jobs that ask get a pool: sbatch --comment={comment}
case "$SLURM_JOB_COMMENT" in {comment}*) ;; *) exit 0 ;; esac
export HOME="${{HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}}"
"""
_NODES = 'nodes="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"'
_POOL_FILE = '"/run/penstock-pool-$SLURM_JOB_ID.json"'


def _site_script(request: ExportRequest, what: str, body: list[str]) -> str:
    head = _HEAD.format(what=what, comment=_COMMENT)
    return head + "\n".join([*request.submit.setup, *body, ""])


def _ssh_command(request: ExportRequest, *verb: str) -> str:
    """Command line that runs a Penstock command over ssh. The command line contains `$nodes`, a variable that the
    script sets.
    """
    launcher = request.job.cluster
    settings = launcher.settings if launcher.launcher == "ssh" else {}
    given = settings_flags("--set", settings)
    return f'{shlex.join([*request.penstock(is_here=True), *verb, "--launcher", "ssh", *given])} --nodes "$nodes"'


def _pool_down_command(request: ExportRequest) -> str:
    return f'{shlex.join([*request.penstock(is_here=True), "pool", "down"])} --name "slurm-$SLURM_JOB_ID"'


def slurm_prolog(request: ExportRequest) -> str:
    """Write a `PrologSlurmctld` script that starts the pool of `[pool]` on the nodes of a Slurm job.

    The script writes the output of `pool up --json` to `/run/penstock-pool-JOB.json` on these nodes. If the script
    fails, it leaves nothing of the pool, and Slurm requeues the job.

    Raises:
        ConfigError: The job file has no pool.
    """
    part = request.job.pool
    if part is None:
        raise ConfigError("pool: missing; a PrologSlurmctld script requires a [pool] in the job file")
    return _site_script(
        request,
        "PrologSlurmctld",
        [
            _NODES,
            'status="$(mktemp)"',
            "trap 'rm -f \"$status\"' EXIT",
            f'{_ssh_command(request, "pool", "up", "--json", *pool_up_flags(part))} --name "slurm-$SLURM_JOB_ID" > "$status" || exit 1',
            f'{_ssh_command(request, "cluster", "copy")} "$status" {_POOL_FILE} || {{ {_pool_down_command(request)}; exit 1; }}',
        ],
    )


def slurm_epilog(request: ExportRequest) -> str:
    """Write an `EpilogSlurmctld` script that takes down the pool started by the prolog."""
    return _site_script(
        request,
        "EpilogSlurmctld",
        [
            _NODES,
            f"{_ssh_command(request, 'cluster', 'run')} -- rm -f {_POOL_FILE}",
            f"exec {_pool_down_command(request)}",
        ],
    )
