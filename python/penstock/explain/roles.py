# SPDX-License-Identifier: Apache-2.0
"""Finds what each process of a tree does: which processes train, which load samples, and which only start other
processes.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.explain.attribution import Attributed, ThreadTime, attribute, blocked_class, correct
from penstock.ranks import detect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.explain.observe import Observation
    from penstock.explain.tree import ProcessRecord, ThreadRecord

__all__ = ["Roles", "assign"]

_SERVICES = ("resource_tracker", "forkserver", "torch/_inductor/compile_worker")
_COLLECTIVE_THREADS = ("pt_gloo", "gloo", "pt_nccl", "nccl")


@dataclass(slots=True)
class Roles:
    """Role of each process by pid, and one attribution for each consumer."""

    by_pid: dict[int, str] = field(default_factory=dict)
    consumers: list[Attributed] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)
    without_stacks: bool = False


def assign(seen: Observation) -> Roles:
    """Correct the threads by the kernel's readings, find the roles, and divide the time of each consumer."""
    threads = {pid: dict(found) for pid, found in seen.threads.items() if pid in seen.records}
    for pid, found in threads.items():
        for tid, thread in found.items():
            known = seen.records[pid].threads.get(tid)
            if known is not None:
                correct(thread, known.looks, known.calls, known.cpu_share(seen.since_s))
    roles = Roles()
    for pid, record in seen.records.items():
        roles.by_pid[pid] = _role(pid, record, threads.get(pid, {}))
    consumers = [pid for pid, role in roles.by_pid.items() if role == "consumer"]
    if not consumers:
        consumers = _by_looks(seen, threads, roles)
    distributed = {pid: _rank_of(seen.records[pid], roles) for pid in consumers}
    endpoints = seen.connections.endpoints(seen.seen_s)
    received = sum(one.received_bytes for one in endpoints)
    receiving = sum(one.receiving_share * one.received_bytes for one in endpoints) / received if received else 0.5
    for pid in consumers:
        mine = threads[pid]
        main = mine.get(pid) or max(mine.values(), key=lambda one: one.total)
        loaders = [(thread, False) for thread in mine.values() if thread is not main]
        for other, role in roles.by_pid.items():
            if role == "worker" and _ancestor(other, seen.records, consumers) == pid:
                loaders += [(thread, True) for thread in threads.get(other, {}).values()]
        roles.consumers.append(
            attribute(
                pid,
                main,
                loaders,
                is_distributed=distributed[pid],
                receiving_share=receiving,
                rank=roles.ranks.get(pid),
            )
        )
    return roles


def _role(pid: int, record: ProcessRecord, threads: Mapping[int, ThreadTime]) -> str:
    if any(word in record.command for word in _SERVICES):
        return "other"
    main = threads.get(pid)
    if main is None or not sum(main.samples.values()):
        return "other"
    everything = sum(main.samples.values())
    if main.flags["is_worker"] > 0.5 * everything:
        return "worker"
    if main.total <= 0.02 * everything or main.flags["is_launcher"] > 0.5 * everything:
        return "launcher"
    return "consumer"


def _ancestor(pid: int, records: Mapping[int, ProcessRecord], wanted: list[int]) -> int | None:
    """The nearest ancestor of a process among `wanted`. For a reparented process, this is the only pid in `wanted`, if
    there is only one.
    """
    visited = set()
    while pid in records and pid not in visited:
        visited.add(pid)
        pid = records[pid].parent
        if pid in wanted:
            return pid
    return wanted[0] if len(wanted) == 1 else None


def _rank_of(record: ProcessRecord, roles: Roles) -> bool:
    """Whether the process belongs to a group of ranks; stores its rank in `roles`."""
    with suppress(ConfigError):
        found = detect(dict(pair.split("=", 1) for pair in record.environment.split("\0") if "=" in pair))
        if found.world > 1:
            roles.ranks[record.pid] = found.rank
            return True
    return any(thread.comm.startswith(_COLLECTIVE_THREADS) for thread in record.threads.values())


def _by_looks(seen: Observation, threads: dict[int, dict[int, ThreadTime]], roles: Roles) -> list[int]:
    """Without stacks: choose the process that used most CPU as the consumer, and divide its threads' time by their
    blocked calls.
    """
    records = [record for record in seen.records.values() if roles.by_pid[record.pid] != "worker" and record.threads]
    if not records:
        return []
    busiest = max(records, key=lambda record: delta.cpu_ticks if (delta := record.delta(seen.since_s)) else 0)
    roles.without_stacks = True
    roles.by_pid[busiest.pid] = "consumer"
    made = {tid: _from_looks(busiest.pid, thread) for tid, thread in busiest.threads.items() if thread.looks}
    if not made:
        return []
    threads[busiest.pid] = made
    return [busiest.pid]


def _from_looks(pid: int, thread: ThreadRecord) -> ThreadTime:
    found = ThreadTime(pid, thread.tid, thread.comm, thread.comm or "main")
    samples: Counter[str] = Counter()
    for (name, target), count in thread.calls.items():
        kind = blocked_class(name, target)
        # A sleep can emulate a step. All other blocked calls wait for a thread or a process.
        samples[kind or ("model" if name in ("nanosleep", "clock_nanosleep") else "wait")] += count
    samples["model"] += max(0, thread.looks - sum(thread.calls.values()))
    found.samples = samples
    return found
