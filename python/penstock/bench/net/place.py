# SPDX-License-Identifier: Apache-2.0
"""Place of a rank: its host, its cores with their sockets and NUMA nodes, and its GPU. Also finds the relation of two
ranks.

Read from Linux's /sys. What the system does not report is left out, never guessed.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cluster import inventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ranks import Rank

__all__ = ["Place", "Relation", "read_place", "relation"]

SYS = Path("/sys")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank runs.

    Attributes:
        host: Name of the host as its kernel reports it. Ranks with equal names share a machine.
        node: Name of the node in the launcher.
        cores: Cores that the rank may use.
        sockets, numa: Sockets (physical packages) and NUMA nodes of these cores.
        nics: Network interfaces that are up, with their Mbit/s where reported, MTU and NUMA node.
        gpus: NUMA node of each GPU by PCI address.
        topology: NUMA nodes of the machine, as `cluster.inventory` lists them.
    """

    rank: int
    host: str
    node: str
    local_rank: int
    cores: tuple[int, ...] = ()
    sockets: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()
    nics: dict[str, dict[str, int | None]] = {}
    gpus: dict[str, int | None] = {}
    gpu: str | None = None
    topology: tuple[dict[str, object], ...] = ()
    core_count: int = 0


class Relation:
    """Names of the relations of two ranks, nearest first."""

    SOCKET = "within a socket"
    NODE = "between sockets of a node"
    UNBOUND = "within a node (ranks not bound to one socket)"
    NODES = "between nodes"


def read_place(rank: Rank, node: str, *, gpu: str | None = None) -> Place:
    """Read the place of this process."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    nics = {}
    for name, speed in inventory.nics().items():
        device = SYS / "class/net" / name
        nics[name] = {"mbit_per_s": speed, "mtu": _number(device / "mtu"), "numa": _numa(device / "device")}
    gpus = {
        card.parent.name: _numa(SYS / "bus/pci/devices" / card.parent.name)
        for card in sorted(inventory.GPUS.glob("*/information"))
    }
    topology = tuple(inventory.numa())
    return Place(
        rank=rank.rank, host=socket.gethostname(), node=node or socket.gethostname(), local_rank=rank.local_rank,
        cores=cores, sockets=_of_cores(cores, _socket), numa=_of_cores(cores, _numa_of_core), nics=nics, gpus=gpus,
        gpu=gpu, topology=topology, core_count=os.cpu_count() or 1,
    )  # fmt: skip


def relation(a: Place, b: Place) -> str:
    """Relation of two ranks, as one of the names of `Relation`."""
    if a.host != b.host:
        return Relation.NODES
    if len(a.sockets) == 1 and len(b.sockets) == 1:
        return Relation.SOCKET if a.sockets == b.sockets else Relation.NODE
    return Relation.UNBOUND


def _of_cores(cores: tuple[int, ...], read: Callable[[int], int | None]) -> tuple[int, ...]:
    return tuple(sorted({found for core in cores if (found := read(core)) is not None}))


def _socket(core: int) -> int | None:
    return _number(SYS / f"devices/system/cpu/cpu{core}/topology/physical_package_id")


def _numa_of_core(core: int) -> int | None:
    for entry in (SYS / f"devices/system/cpu/cpu{core}").glob("node[0-9]*"):
        if found := re.fullmatch(r"node(\d+)", entry.name):
            return int(found[1])
    return None


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _numa(device: Path) -> int | None:
    found = _number(device / "numa_node")
    return None if found is None or found < 0 else found
