# SPDX-License-Identifier: Apache-2.0
"""Finds the nodes of the batch job in which this process runs (Slurm, PBS, Azure Batch). Starts nothing on them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["allocated_hosts", "pbs_hosts", "slurm_hosts"]

_COMMAND_TIMEOUT_S = 20
# Read limit for the node file.
_MAX_BYTES = 16 << 20


def slurm_hosts(environment: Mapping[str, str]) -> list[str]:
    """Hosts of a Slurm allocation.

    Raises:
        ConfigError: This process is not in a Slurm job, or Slurm cannot expand the list of hosts.
    """
    listed = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not listed:
        raise ConfigError(
            "launcher slurm: this process is not in a Slurm allocation",
            hint="run penstock run job.toml --submit, or salloc -N 4 penstock run job.toml",
        )
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_COMMAND_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"launcher slurm: scontrol could not expand {listed}: {error}") from error
    return done.stdout.split()


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
