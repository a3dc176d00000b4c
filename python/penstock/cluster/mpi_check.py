# SPDX-License-Identifier: Apache-2.0
"""Checks that the ranks of a launcher form one MPI job, natively or in a container.

If a container's MPI is incompatible with the MPI of the host's mpirun, every rank silently becomes a separate job with
world size 1. The program runs, but all its figures are wrong.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import RankFailed
from penstock.node_program import node_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cluster.cluster import Cluster

__all__ = ["check_mpi"]

_TIMEOUT_S = 60.0


def check_mpi(
    cluster: Cluster,
    argv: Sequence[str],
    *,
    python: str = "",
    where: str = "",
    host_program: str = "mpirun",
    **options: Any,
) -> str | None:
    """Start a small MPI program with the same launcher, prefix and ranks as the command `argv`.

    Args:
        python: Interpreter for the program on the node or in the container.
        where: Name of the container, for the error.
        host_program: The launcher's program, whose version the error contains.
        options: Further arguments of `Cluster.run`, such as `on`, `ranks_per_node` and `rank_prefix`.
    Returns:
        Name of the MPI library; None if the command does not use MPI, or if the check cannot run (no Python).
    Raises:
        RankFailed: The ranks do not form one job.
    """
    program = node_program(Path(__file__).with_name("mpi_probe.py"))
    exits = cluster.run([python or "python3", "-c", program, *argv], timeout_s=_TIMEOUT_S, **options)
    found = [_answer(each.out) for each in exits]
    answers = [each for each in found if each is not None]
    if not answers:
        return None
    worlds = [each["world"] for each in answers]
    if len(answers) == len(exits) and set(worlds) == {len(exits)}:
        return str(answers[0]["library"])
    place = f"the MPI of {where}" if where else "the command's MPI"
    if None in worlds:
        ended = exits[next(rank for rank, each in enumerate(found) if each is not None and each["world"] is None)]
        what = f"MPI_Init ended with exit code {ended.code}{_reason(ended.err)}"
    else:
        every = "every rank reports" if len(set(worlds)) == 1 else "ranks report"
        what = f"{every} world size {', '.join(map(str, sorted(set(worlds))))} instead of {len(exits)}"
    library, host = str(answers[0]["library"]), _version(host_program)
    raise RankFailed(
        f"{place} ({library}) and the launcher ({host}) are incompatible: {what}",
        hint=f"use the same MPI family for the launcher and the command: {_other_launcher(host, library)}, or --ways inside",
    )


def _other_launcher(host: str, library: str) -> str:
    """Setting with which the launcher starts the ranks of a command with this MPI library."""
    if host.startswith("srun"):
        return "--set srun=--mpi=pmix for Open MPI, --set srun=--mpi=pmi2 for MPICH"
    # The local launcher starts no MPI jobs, so `host` is a sentence.
    prefix = "--launcher mpi " if host.startswith("launcher ") else ""
    return f"{prefix}--set program={'mpirun.openmpi' if 'Open MPI' in library else 'mpiexec.hydra'} for {library}"


def _reason(err: bytes) -> str:
    """Return the line of an MPI library's output that explains a failure: the first line about PMI, otherwise the last
    line.
    """
    lines = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "PMI" in line]
    return f": {(named or lines)[0 if named else -1][:200]}" if lines else ""


def _answer(out: bytes) -> dict[str, Any] | None:
    for line in reversed(out.decode(errors="replace").splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        return found if isinstance(found, dict) and "world" in found else None
    return None


def _version(program: str) -> str:
    """Name of a program, and the first line of its `--version` output. For Hydra, the name and the version."""
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return program
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if lines and lines[0].startswith("HYDRA"):
        version = next((line.split()[-1] for line in lines if line.startswith("Version")), "")
        return f"{program}, MPICH's Hydra {version}".strip()
    return f"{program}, {lines[0]}" if lines else program
