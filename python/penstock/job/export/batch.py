# SPDX-License-Identifier: Apache-2.0
"""Batch scripts: a job for sbatch or qsub, and a prolog and epilog by which Slurm gives every job that asks a pool of its own."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.job.commands import pool_words, settings_words

if TYPE_CHECKING:
    from penstock.job.export.request import Asked

__all__ = ["pbs", "slurm", "slurm_epilog", "slurm_prolog"]


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _script(asked: Asked, directives: list[str], before: list[str]) -> str:
    for line in (*directives, *asked.submit.setup):
        if "\n" in line:
            raise ConfigError(f"submit: `{line}` is more than one line")
    words = [*asked.penstock(is_here=True), "run", str(asked.file.absolute()), "--runs", str(asked.runs.absolute())]
    words += ["--resume"] if asked.resume else []
    # exec: the system's signals reach Penstock itself, which takes the pool down.
    return "\n".join(["#!/bin/sh", *directives, *before, *asked.submit.setup, f"exec {shlex.join(words)}", ""])


def slurm(asked: Asked) -> str:
    """For `sbatch FILE`. The job's launcher is `slurm` or `mpi`; SIGTERM comes two minutes before the limit.

    Raises:
        ConfigError: Nobody says how many nodes, or the launcher does not run inside an allocation.
    """
    _inside(asked, "slurm", "mpi")
    want = asked.submit
    options = [f"--job-name={asked.job.name}", f"--nodes={asked.nodes}", f"--time={-(-asked.limit_s // 60)}"]
    options += [f"--output={asked.runs.absolute()}/{asked.job.name}/%j.log", "--signal=B:TERM@120"]
    options += [f"--partition={want.queue}"] if want.queue else []
    options += [f"--account={want.account}"] if want.account else []
    options += [f"--gpus-per-node={want.gpus_per_node}"] if want.gpus_per_node else []
    options += [f"--cpus-per-task={want.cores_per_node}", "--ntasks-per-node=1"] if want.cores_per_node else []
    return _script(asked, [f"#SBATCH {shlex.quote(option)}" for option in (*options, *want.args)], [])


def pbs(asked: Asked) -> str:
    """For `qsub FILE` of PBS Professional and OpenPBS. The job's launcher is `pbs` or `mpi`.

    Raises:
        ConfigError: Nobody says how many nodes, or the launcher does not run inside a job.
    """
    _inside(asked, "pbs", "mpi")
    want = asked.submit
    chunk = f"{asked.nodes}:ncpus={want.cores_per_node or 1}:mpiprocs=1"
    chunk += f":ngpus={want.gpus_per_node}" if want.gpus_per_node else ""
    options = [
        f"-N {asked.job.name[:15]}",
        f"-l select={chunk}",
        "-l place=scatter:excl",
        f"-l walltime={_clock(asked.limit_s)}",
    ]
    options += ["-j oe", f"-o {asked.runs.absolute()}/{asked.job.name}/pbs.log"]
    options += [f"-q {want.queue}"] if want.queue else []
    options += [f"-A {want.account}"] if want.account else []
    return _script(asked, [f"#PBS {option}" for option in (*options, *want.args)], ['cd "$PBS_O_WORKDIR" || exit 3'])


def _inside(asked: Asked, *launchers: str) -> None:
    if asked.job.cluster.launcher not in launchers:
        raise ConfigError(
            f"cluster.launcher: {asked.job.cluster.launcher} does not know the nodes of such a job",
            hint=f"launcher = {' or '.join(launchers)}",
        )


_COMMENT = "penstock"
_HEAD = """#!/bin/sh
# slurm.conf: {what}=THIS FILE. Runs on the controller, once a job, as SlurmUser, whose ssh reaches the nodes.
# Only jobs that ask get a pool: sbatch --comment={comment}
case "$SLURM_JOB_COMMENT" in {comment}*) ;; *) exit 0 ;; esac
export HOME="${{HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}}"
"""
_NODES = 'nodes="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)"'
_TOLD = '"/run/penstock-pool-$SLURM_JOB_ID.json"'


def _site(asked: Asked, what: str, body: list[str]) -> str:
    head = _HEAD.format(what=what, comment=_COMMENT)
    return head + "\n".join([*asked.submit.setup, *body, ""])


def _by_ssh(asked: Asked, *verb: str) -> str:
    """A verb's words; the nodes come by a variable of the script's."""
    launcher = asked.job.cluster
    settings = launcher.settings if launcher.launcher == "ssh" else {}
    given = settings_words("--set", settings)
    return f'{shlex.join([*asked.penstock(is_here=True), *verb, "--launcher", "ssh", *given])} --nodes "$nodes"'


def _down(asked: Asked) -> str:
    return f'{shlex.join([*asked.penstock(is_here=True), "pool", "down"])} --name "slurm-$SLURM_JOB_ID"'


def slurm_prolog(asked: Asked) -> str:
    """A `PrologSlurmctld` that brings the pool of `[pool]` up on a job's nodes, and lays what `pool up --json` says of it into
    `/run/penstock-pool-JOB.json` there. Where it fails Slurm puts the job back, and nothing of the pool is left.

    Raises:
        ConfigError: The job file has no pool.
    """
    part = asked.job.pool
    if part is None:
        raise ConfigError("pool: a PrologSlurmctld is for a pool, and the job file has none")
    return _site(
        asked,
        "PrologSlurmctld",
        [
            _NODES,
            'told="$(mktemp)"',
            "trap 'rm -f \"$told\"' EXIT",
            f'{_by_ssh(asked, "pool", "up", "--json", *pool_words(part))} --name "slurm-$SLURM_JOB_ID" > "$told" || exit 1',
            f'{_by_ssh(asked, "cluster", "copy")} "$told" {_TOLD} || {{ {_down(asked)}; exit 1; }}',
        ],
    )


def slurm_epilog(asked: Asked) -> str:
    """An `EpilogSlurmctld` that takes down what the prolog brought up."""
    return _site(
        asked,
        "EpilogSlurmctld",
        [
            _NODES,
            f"{_by_ssh(asked, 'cluster', 'run')} -- rm -f {_TOLD}",
            f"exec {_down(asked)}",
        ],
    )
