# SPDX-License-Identifier: Apache-2.0
"""Determines the rank of this process in its job from the variables that launchers set.

Launchers nest (torchrun inside srun, mpirun inside a Slurm or PBS batch script), so the innermost launcher has
precedence:

1. torchrun: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK`
2. Horovod: `HOROVOD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE`, `_CROSS_RANK`, `_CROSS_SIZE`
3. Open MPI: `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE`
4. MVAPICH: `MV2_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE`
5. Flux: `FLUX_TASK_RANK`, `FLUX_JOB_SIZE`, `FLUX_TASK_LOCAL_ID`, `FLUX_JOB_NNODES`
6. PMI (MPICH, Hydra, Intel MPI, PALS), unless Slurm's variables contain the same rank (they have more details)
7. Slurm steps: `SLURM_PROCID`, `SLURM_NODEID`, `SLURM_NNODES`, `SLURM_LOCALID`
8. PBS: the hosts listed in the file `PBS_NODEFILE`, and pbsdsh's `PBS_NODENUM` or this host's name in the list
9. none: one process on one node. This includes an interactive shell inside `salloc`, which has no `SLURM_PROCID`.

Incomplete or contradictory variables raise a `ConfigError` with their names, because a wrong guess would omit data. If
the outer launcher's number of nodes differs from the inner launcher's, the inner number is used, and a note reports the
difference.
"""

from __future__ import annotations

import platform
import socket
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Rank",
    "await_server",
    "detect",
    "global_rank",
    "in_batch_job",
    "local_rendezvous",
    "place",
    "rendezvous_port",
]

_HINT = "give --node I --nodes N, or start every rank with one launcher"


@dataclass(frozen=True, slots=True)
class Rank:
    """Position of one process in a job. `launch_id` is the same on all ranks of a launch and differs between launches;
    it may be None.
    """

    node: int = 0
    nodes: int = 1
    local_rank: int = 0
    rank: int = 0
    world: int = 1
    launch_id: str | None = None
    launcher: str = "none"
    note: str | None = None


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    # Slurm writes `2(x3)` into some per-node lists, but none of those lists is read here.
    if not text.strip().isdecimal():
        raise ConfigError(f"{name}: `{text}` is not a whole number", where=name, hint=_HINT)
    return int(text)


def _need(env: Mapping[str, str], launcher: str, seen: str, *names: str) -> int:
    """Return the value of the first of `names` that is set. If none is set, the error contains all names."""
    for name in names:
        if name in env:
            return _number(env, name)
    raise ConfigError(
        f"{' or '.join(names)}: not set, although {seen} is set; the variables of {launcher} are incomplete",
        where=names[0],
        hint=_HINT,
    )


def _below(value: int, limit: int, value_name: str, limit_name: str) -> None:
    if value >= limit:
        raise ConfigError(
            f"{value_name}: {value} must be less than {limit_name}, which is {limit}",
            where=value_name,
            hint=_HINT,
        )


def _blocks(
    rank: int, world: int, local_rank: int, local_size: int, names: tuple[str, str, str, str]
) -> tuple[int, int]:
    """Return the node and the number of nodes if the launcher numbers ranks node by node. Otherwise, raise ConfigError
    on at least one rank.
    """
    rank_name, world_name, local_rank_name, local_size_name = names
    _below(rank, world, rank_name, world_name)
    _below(local_rank, local_size, local_rank_name, local_size_name)
    if world % local_size or rank % local_size != local_rank:
        raise ConfigError(
            f"{local_rank_name}: rank {rank} of {world} has local rank {local_rank} of {local_size}, so the nodes do "
            "not have equal blocks of consecutive ranks, and the number of this node is unknown",
            where=local_rank_name,
            hint=_HINT,
        )
    return rank // local_size, world // local_size


def _torchrun(env: Mapping[str, str]) -> Rank | None:
    if "RANK" not in env and "TORCHELASTIC_RUN_ID" not in env:
        return None
    if "TORCHELASTIC_RUN_ID" not in env and "WORLD_SIZE" not in env and "LOCAL_RANK" not in env:
        return None  # a RANK without the other variables does not come from a launcher
    rank = _need(env, "torchrun", "TORCHELASTIC_RUN_ID", "RANK")
    world = _need(env, "torchrun", "RANK", "WORLD_SIZE")
    _below(rank, world, "RANK", "WORLD_SIZE")
    parts = [
        env[n]
        for n in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        if env.get(n)
    ]
    launch_id = "torchrun-" + "-".join(parts) if len(parts) > 1 else None
    if world == 1:
        return Rank(launch_id=launch_id, launcher="torchrun")
    local_rank = _need(env, "torchrun", "RANK", "LOCAL_RANK")
    if "GROUP_RANK" in env and ("GROUP_WORLD_SIZE" in env or "LOCAL_WORLD_SIZE" in env):
        node = _number(env, "GROUP_RANK")
        if "GROUP_WORLD_SIZE" in env:
            nodes, nodes_name = _number(env, "GROUP_WORLD_SIZE"), "GROUP_WORLD_SIZE"
        else:
            local_size = max(_number(env, "LOCAL_WORLD_SIZE"), 1)
            nodes, nodes_name = -(-world // local_size), "WORLD_SIZE / LOCAL_WORLD_SIZE"
        _below(node, nodes, "GROUP_RANK", nodes_name)
    else:
        local_size = _need(env, "torchrun", "RANK", "LOCAL_WORLD_SIZE")
        node, nodes = _blocks(
            rank, world, local_rank, local_size, ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        )
    if "LOCAL_WORLD_SIZE" in env:
        _below(local_rank, _number(env, "LOCAL_WORLD_SIZE"), "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Rank(node, nodes, local_rank, rank, world, launch_id, "torchrun")


def _horovod(env: Mapping[str, str]) -> Rank | None:
    if "HOROVOD_RANK" not in env and "HOROVOD_SIZE" not in env:
        return None

    def need(name: str, seen: str) -> int:
        return _need(env, "Horovod", seen, name)

    rank, world = need("HOROVOD_RANK", "HOROVOD_SIZE"), need("HOROVOD_SIZE", "HOROVOD_RANK")
    local_rank = need("HOROVOD_LOCAL_RANK", "HOROVOD_RANK")
    _below(rank, world, "HOROVOD_RANK", "HOROVOD_SIZE")
    if "HOROVOD_CROSS_RANK" in env or "HOROVOD_CROSS_SIZE" in env:
        node, nodes = need("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"), need("HOROVOD_CROSS_SIZE", "HOROVOD_CROSS_RANK")
        _below(node, nodes, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    else:
        names = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
        node, nodes = _blocks(rank, world, local_rank, need("HOROVOD_LOCAL_SIZE", "HOROVOD_RANK"), names)
    return Rank(node, nodes, local_rank, rank, world, _slurm_launch(env), "horovod")


def _open_mpi(env: Mapping[str, str]) -> Rank | None:
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    seen = next((name for name in names if name in env), None)
    if seen is None:
        return None
    rank, world, local_rank, local_size = (_need(env, "Open MPI", seen, name) for name in names)
    node, nodes = _blocks(rank, world, local_rank, max(local_size, 1), names)
    job = next(
        (env[n] for n in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri") if env.get(n)), None
    )
    return Rank(node, nodes, local_rank, rank, world, f"ompi-{job}" if job else _slurm_launch(env), "openmpi")


def _mvapich(env: Mapping[str, str]) -> Rank | None:
    names = ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")
    seen = next((name for name in names if name in env), None)
    if seen is None:
        return None
    rank, world, local_rank, local_size = (_need(env, "MVAPICH", seen, name) for name in names)
    node, nodes = _blocks(rank, world, local_rank, max(local_size, 1), names)
    job = env.get("MPIRUN_ID") or env.get("PMI_JOBID")
    return Rank(node, nodes, local_rank, rank, world, f"mvapich-{job}" if job else _slurm_launch(env), "mvapich")


def _flux(env: Mapping[str, str]) -> Rank | None:
    if "FLUX_TASK_RANK" not in env:
        return None

    def need(name: str) -> int:
        return _need(env, "Flux", "FLUX_TASK_RANK", name)

    rank, world = need("FLUX_TASK_RANK"), need("FLUX_JOB_SIZE")
    local_rank, nodes = need("FLUX_TASK_LOCAL_ID"), need("FLUX_JOB_NNODES")
    if nodes < 1 or world % nodes:
        raise ConfigError(
            f"FLUX_JOB_SIZE: {world} tasks are not spread evenly over {nodes} nodes, so the number of this node is unknown",
            where="FLUX_JOB_SIZE",
            hint=_HINT,
        )
    names = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE / FLUX_JOB_NNODES")
    node, nodes = _blocks(rank, world, local_rank, world // nodes, names)
    job = env.get("FLUX_JOB_ID")
    return Rank(node, nodes, local_rank, rank, world, f"flux-{job}" if job else None, "flux")


def _pmi(env: Mapping[str, str]) -> Rank | None:
    if "PMI_RANK" not in env and "PALS_RANKID" not in env:
        return None
    if env.get("SLURM_PROCID") == env.get("PMI_RANK") and env.get("SLURM_NTASKS") == env.get("PMI_SIZE"):
        return None  # srun --mpi=pmi2: Slurm's variables have the same rank, and the node too
    rank = _need(env, "PMI", "PALS_RANKID", "PMI_RANK", "PALS_RANKID")
    world = _need(env, "PMI", "PMI_RANK", "PMI_SIZE", "PALS_SIZE")
    _below(rank, world, "PMI_RANK", "PMI_SIZE")
    job = next((env[n] for n in ("PALS_APID", "PMI_JOBID", "PBS_JOBID") if env.get(n)), None)
    launch_id = f"pmi-{job}" if job else _slurm_launch(env)
    if world == 1:
        return Rank(launch_id=launch_id, launcher="pmi")
    local_rank = _need(env, "PMI", "PMI_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK")
    local_size = _need(env, "PMI", "PMI_RANK", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE")
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    node, nodes = _blocks(rank, world, local_rank, max(local_size, 1), names)
    if "PALS_NODEID" in env and _number(env, "PALS_NODEID") != node:
        raise ConfigError(
            f"PALS_NODEID: {env['PALS_NODEID']} contradicts rank {rank} of {world} with {local_size} ranks per node",
            where="PALS_NODEID",
            hint=_HINT,
        )
    return Rank(node, nodes, local_rank, rank, world, launch_id, "pmi")


def _slurm_launch(env: Mapping[str, str]) -> str | None:
    job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID")
    if not job:
        return None
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or "-"
    return f"slurm-{job}.{step}.{env.get('SLURM_RESTART_COUNT') or 0}"


def _slurm(env: Mapping[str, str]) -> Rank | None:
    if "SLURM_PROCID" not in env:
        return None
    rank = _number(env, "SLURM_PROCID")
    world = _need(env, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    node = _need(env, "Slurm", "SLURM_PROCID", "SLURM_NODEID")
    nodes = _need(env, "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    local_rank = _need(env, "Slurm", "SLURM_PROCID", "SLURM_LOCALID")
    _below(rank, world, "SLURM_PROCID", "SLURM_NTASKS")
    _below(node, nodes, "SLURM_NODEID", "SLURM_NNODES")
    if local_rank > rank:
        raise ConfigError(
            f"SLURM_LOCALID: {local_rank} contradicts SLURM_PROCID of {rank}", where="SLURM_LOCALID", hint=_HINT
        )
    note = None
    if nodes > 1 and rank == 0 and not (env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID")):
        # A batch script also has SLURM_PROCID=0 but runs only on the first node, so the other nodes would get no data.
        note = (
            f"this is node 0 of {nodes}; in a batch script put `srun` before penstock so that every node does its share"
        )
    return Rank(node, nodes, local_rank, rank, world, _slurm_launch(env), "slurm", note)


# Maximum size of a host list, which usually has about a page of text.
_MAX_BYTES = 16 << 20


def _pbs_lines(env: Mapping[str, str]) -> list[str]:
    """Read the lines of PBS's host list, which contains each host once per slot. The result is empty if the list cannot
    be read.
    """
    try:
        with Path(env["PBS_NODEFILE"]).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_BYTES)
    except (KeyError, OSError):
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _pbs(env: Mapping[str, str], host: str) -> Rank | None:
    if "PBS_NODEFILE" not in env:
        return None
    lines = _pbs_lines(env)
    hosts = list(dict.fromkeys(lines))
    if not hosts:
        raise ConfigError(f"PBS_NODEFILE: `{env['PBS_NODEFILE']}` contains no host", where="PBS_NODEFILE", hint=_HINT)
    number = _number(env, "PBS_NODENUM") if "PBS_NODENUM" in env else None
    named = [at for at, name in enumerate(hosts) if name == host or name.split(".")[0] == host.split(".")[0]]
    if number is not None and len(named) == 1 and number != named[0] and number < len(lines):
        # PBS_NODENUM sometimes counts slots instead of hosts. In this case, use the position of this host's name.
        number = named[0]
    node = number if number is not None else named[0] if len(named) == 1 else None
    if node is None:
        raise ConfigError(
            f"PBS_NODEFILE: this host, {host}, is not among the {len(hosts)} hosts of the file",
            where="PBS_NODEFILE",
            hint=_HINT,
        )
    _below(node, len(hosts), "PBS_NODENUM", "PBS_NODEFILE's hosts")
    local_rank, rank, world = 0, node, len(hosts)
    if "PBS_VNODENUM" in env:  # pbsdsh starts one task per slot
        slot = _number(env, "PBS_VNODENUM")
        _below(slot, len(lines), "PBS_VNODENUM", "PBS_NODEFILE's lines")
        rank, world, local_rank = slot, len(lines), lines[:slot].count(lines[slot])
        node = hosts.index(lines[slot])
    job = env.get("PBS_JOBID")
    note = None
    if len(hosts) > 1 and env.get("PBS_ENVIRONMENT") and "PBS_VNODENUM" not in env and node == 0:
        note = (
            f"this is node 0 of {len(hosts)}; in a PBS script put `pbsdsh` or `mpiexec` before penstock so that every"
            " node does its share"
        )
    return Rank(node, len(hosts), local_rank, rank, world, f"pbs-{job}" if job else None, "pbs", note)


def _from_outer(env: Mapping[str, str], found: Rank) -> Rank:
    """Return the rank. If the surrounding allocation has a different number of nodes, add a note."""
    if found.launcher in ("slurm", "pbs") or found.note or found.rank:
        return found
    slurm = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or ""
    outer, nodes = ("Slurm", int(slurm)) if slurm.isdecimal() else ("PBS", len(set(_pbs_lines(env))))
    if nodes in (0, found.nodes):
        return found
    note = (
        f"{outer} gave this job {nodes} node{'s' if nodes > 1 else ''}, but {found.launcher} started its ranks on {found.nodes};"
        f" using {found.nodes}, since the ranks' own launcher knows which of them run (--node and --nodes override both)"
    )
    return replace(found, note=note)


def detect(env: Mapping[str, str], *, host: str | None = None) -> Rank:
    """Determine the rank of this process in its job from its launcher's variables. `host` overrides this host's name.

    Raises:
        ConfigError: The variables contradict each other or are incomplete; the message names them.
    """
    for read in (_torchrun, _horovod, _open_mpi, _mvapich, _flux, _pmi, _slurm):
        found = read(env)
        if found is not None:
            return _from_outer(env, found)
    return _pbs(env, host or platform.node()) or Rank()


def global_rank(env: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank and the number of ranks. Unlike `detect`, this requires only `RANK` and `WORLD_SIZE`, as torch's
    `env://` does. If only one of the two is set, that is an error, because every process of such a job would otherwise
    read the whole dataset. A `RANK` that is not a number, or a `WORLD_SIZE` of 1, does not count as a job.

    Raises:
        ConfigError: The variables contradict each other or are incomplete; the message names them.
    """
    hint = "pass rank= and world=, or start every rank with one launcher"
    try:
        found = detect(env)
    except ConfigError as error:
        if "RANK" in env and "WORLD_SIZE" in env and not env.keys() & {"LOCAL_WORLD_SIZE", "GROUP_RANK"}:
            rank, world = _number(env, "RANK"), _number(env, "WORLD_SIZE")
            _below(rank, world, "RANK", "WORLD_SIZE")
            return rank, world
        raise ConfigError(str(error), where=error.where, hint=hint) from None
    if found.launcher == "none":
        for seen, missing, single in (("RANK", "WORLD_SIZE", ""), ("WORLD_SIZE", "RANK", "1")):
            value = env.get(seen, "").strip()
            if missing not in env and value.isdecimal() and value != single:
                raise ConfigError(
                    f"{missing}: not set, although {seen} is {value}; a process of a job needs both",
                    where=missing,
                    hint=f"{hint}, or unset {seen} if this process is not part of a job",
                )
    return found.rank, found.world


def place(env: Mapping[str, str], node: int | None, nodes: int | None) -> Rank:
    """Like `detect`, but `--node` and `--nodes` override the launcher's node numbers. The launcher's local rank is
    kept.

    Raises:
        ConfigError: Only one of the two is given, or `node` is not below `nodes`.
    """
    if node is None and nodes is None:
        return detect(env)
    if node is None or nodes is None:
        given, missing = ("--node", "--nodes") if nodes is None else ("--nodes", "--node")
        raise ConfigError(f"{missing}: not set, although {given} is set", where=missing, hint="give both or neither")
    if nodes < 1:
        raise ConfigError(f"--nodes: must be at least 1 (got {nodes})", where="--nodes")
    if not 0 <= node < nodes:
        raise ConfigError(f"--node: must be from 0 to --nodes - 1 (got {node} of {nodes} nodes)", where="--node")
    try:
        found = detect(env)
    except ConfigError:
        found = Rank()  # the flags were probably given because the variables are wrong
    return replace(found, node=node, nodes=nodes, note=None)


def in_batch_job(env: Mapping[str, str]) -> bool:
    """Whether the variables of a batch job name its nodes: Slurm, PBS or Azure Batch."""
    names = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE", "AZ_BATCH_HOST_LIST")
    return any(env.get(name) for name in names)


def rendezvous_port() -> int:
    """A port from 20000 to 31999 for the rendezvous of a new job's ranks, derived from the time in milliseconds. The
    function does not check that the port is free on the first node; if it is in use, rank 0 reports that.
    """
    return 20000 + time.time_ns() // 1_000_000 % 12000


def local_rendezvous(rank: Rank) -> tuple[str, int] | None:
    """Address and port where the ranks of a launch on one node meet; None if the launch has several nodes.

    All ranks compute the same port from `launch_id`, so that two launches on one node rarely have the same port. The
    range is that of `rendezvous_port`. Without a `launch_id`, the port is 29500, torch's default.
    """
    if rank.nodes > 1:
        return None
    return "127.0.0.1", 29500 if rank.launch_id is None else 20000 + zlib.crc32(rank.launch_id.encode()) % 12000


_CONNECT_POLL_S = 0.1


def await_server(address: str, port: int, until_s: float) -> None:
    """Wait until a server accepts connections at an address. `until_s` is a time of `time.monotonic`.

    Call this before a `TCPStore` of torch connects: torch retries a failed connection for up to twice its timeout, and
    prints C++ stack traces.

    Raises:
        OSError: No server accepts connections by the deadline.
    """
    while True:
        left_s = until_s - time.monotonic()
        try:
            with socket.create_connection((address, port), timeout=max(left_s, _CONNECT_POLL_S)):
                return
        except OSError:
            if left_s <= _CONNECT_POLL_S:
                raise
        time.sleep(_CONNECT_POLL_S)
