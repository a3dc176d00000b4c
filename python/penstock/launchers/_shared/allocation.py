# SPDX-License-Identifier: Apache-2.0
"""Finds the nodes of the batch job in which this process runs (Slurm, PBS, Azure Batch). Starts nothing on them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["allocated_hosts", "pbs_hosts", "require_slurm_job", "slurm_hosts"]

_COMMAND_TIMEOUT_S = 20
# Read limit for the node file.
_MAX_BYTES = 16 << 20
_HOSTS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(,[A-Za-z0-9][A-Za-z0-9_.-]*)*")
_NO_SLURM_JOB = "launcher slurm: this process is not in a Slurm allocation"
_SLURM_HINT = "run salloc -N 4 COMMAND; a dry run also works outside a job with --nodes HOST,HOST"


def slurm_hosts(environment: Mapping[str, str], nodes: str = "") -> list[str]:
    """Hosts of a Slurm allocation, or of the list `nodes`, such as `h1,h2` or `h[1-2]`.

    Raises:
        ConfigError: This process is not in a Slurm job, or Slurm cannot expand the list of hosts.
    """
    listed = nodes or _slurm_list(environment)
    if not listed:
        raise ConfigError(_NO_SLURM_JOB, hint=_SLURM_HINT)
    if _HOSTS.fullmatch(listed):
        return listed.split(",")
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return done.stdout.split()
        reason = done.stderr.strip() or f"exit code {done.returncode}"
    except OSError as error:
        reason = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_COMMAND_TIMEOUT_S} s"
    raise ConfigError(f"launcher slurm: scontrol could not expand {listed}: {reason}")


def require_slurm_job(environment: Mapping[str, str]) -> None:
    """Raise ConfigError if this process is not in a Slurm job."""
    if not _slurm_list(environment):
        raise ConfigError(_NO_SLURM_JOB, hint=_SLURM_HINT)


def _slurm_list(environment: Mapping[str, str]) -> str:
    return environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""


def pbs_hosts(environment: Mapping[str, str]) -> list[str]:
    """Hosts of a PBS job without duplicates. The node file lists a host once per slot.

    Raises:
        ConfigError: This process is not in a PBS job, or the job's node file is empty.
    """
    place = environment.get("PBS_NODEFILE")
    if not place:
        raise ConfigError(
            "launcher pbs: this process is not in a PBS job (PBS_NODEFILE is not set)",
            hint="run penstock run job.toml --submit, or qsub a script made by --export pbs",
        )
    try:
        with Path(place).open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError as error:
        raise ConfigError(f"launcher pbs: PBS_NODEFILE: {place}: {error.strerror}", where="PBS_NODEFILE") from error
    found = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not found:
        raise ConfigError(f"launcher pbs: PBS_NODEFILE: {place} contains no host", where="PBS_NODEFILE")
    return found


def allocated_hosts(environment: Mapping[str, str]) -> list[str]:
    """Hosts of the batch job in which this process runs: PBS, Azure Batch or Slurm, in this order.

    Raises:
        ConfigError: This process does not run in a batch job.
    """
    if environment.get("PBS_NODEFILE"):
        return pbs_hosts(environment)
    if environment.get("AZ_BATCH_HOST_LIST"):
        return [name for name in environment["AZ_BATCH_HOST_LIST"].split(",") if name]
    return slurm_hosts(environment)
