# SPDX-License-Identifier: Apache-2.0
"""Turns an observation into a result: verdict, evidence, ceilings, cost and remedies. Reads no process."""

from __future__ import annotations

import os
import platform
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.explain.arguments import redact_arguments
from penstock.explain.attribution import blocked_class
from penstock.explain.observe import permission_note
from penstock.explain.remedies import remedies, step_model
from penstock.explain.result import (
    CLASS_TEXTS,
    CLASSES,
    Ceiling,
    Cost,
    Evidence,
    Explanation,
    FileSystem,
    Overhead,
    ProcessFacts,
    Program,
    TimeShare,
)
from penstock.explain.roles import Roles, assign
from penstock.explain.verdict import Figures, judge, mean_shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.bench.diskstats import Counters
    from penstock.explain.observe import Observation
    from penstock.explain.result import Endpoint, Verdict
    from penstock.explain.tree import ProcessRecord

__all__ = ["Price", "conclude"]

_MAX_PROCESSES = 64
_MAX_LISTED = 16


class Price(NamedTuple):
    """Price of the waiting nodes, and its source."""

    usd_per_hour: float
    source: str


def conclude(
    seen: Observation,
    *,
    argv: Sequence[str],
    pid: int,
    attached: bool,
    exit_code: int | None,
    started: str,
    price: Price | None = None,
) -> Explanation:
    """Build the result of an observation."""
    roles = assign(seen)
    endpoints = seen.connections.endpoints(seen.seen_s)
    systems = _file_systems(seen)
    cores_used = sum(_cores(record, seen.since_s) for record in seen.records.values())
    cores = os.cpu_count() or 1
    figures = _figures(seen, roles, endpoints, systems)
    figures.other_cores_share = max(0.0, seen.machine_busy_cores - cores_used) / cores
    verdict = judge(roles.consumers, figures)
    critical = mean_shares(roles.consumers)
    model = step_model(
        critical,
        is_overlapped=any(one.loaders.shares for one in roles.consumers) and verdict.kind != "no-workers",
        loaders=max((one.loaders.threads for one in roles.consumers), default=0),
        cores_free=max(1.0, cores - cores_used),
    )
    return Explanation(
        verdict=verdict,
        program=Program(
            argv=redact_arguments(argv),
            pid=pid,
            seen_s=seen.seen_s,
            startup_s=seen.startup_s,
            ended=seen.ended,
            exit_code=exit_code,
            attached=attached,
            host=platform.node(),
            started=started,
        ),
        overhead=_overhead(seen, cores),
        evidence=_evidence(seen, roles, verdict, figures, endpoints, cores_used, cores),
        shares=_shares(roles),
        processes=_processes(seen, roles),
        endpoints=endpoints[:_MAX_LISTED],
        file_systems=systems[:_MAX_LISTED],
        ceilings=_ceilings(seen, roles, figures, cores_used, cores),
        cost=_cost(verdict, price),
        remedies=remedies(verdict.kind, model),
        limits=_limits(seen, roles, figures, verdict),
    )


def _overhead(seen: Observation, cores: int) -> Overhead:
    wall_s = max(1e-9, seen.seen_s + seen.startup_s)
    return Overhead(
        wall_s=wall_s,
        cpu_s=seen.cpu_s,
        pause_s=0.0,
        share=seen.cpu_s / wall_s,
        share_of_machine=seen.cpu_s / wall_s / cores,
        cores=cores,
        stack_samples=seen.stack_samples,
    )


def _cores(record: ProcessRecord, since_s: float) -> float:
    delta = record.delta(since_s)
    return delta.cpu_ticks / os.sysconf("SC_CLK_TCK") / delta.at_s if delta else 0.0


def _figures(seen: Observation, roles: Roles, endpoints: Sequence[Endpoint], systems: Sequence[FileSystem]) -> Figures:
    calls = chars = 0
    rate = 0.0
    for pid, role in roles.by_pid.items():
        delta = seen.records[pid].delta(seen.since_s)
        if role in ("consumer", "worker") and delta is not None:
            calls += delta.read_calls
            chars += delta.read_chars
            rate += delta.read_calls / delta.at_s
    store = [one for one in endpoints if one.role == "store"]
    return Figures(
        endpoints=endpoints,
        file_systems=systems,
        mean_read_bytes=chars / calls if calls else 0.0,
        reads_per_s=rate,
        rate_bytes_per_s=sum(one.rate_bytes_per_s for one in store),
        steady_share=seen.connections.steady_share(),
        ended_early=seen.ended,
        has_stacks=not roles.without_stacks and seen.has_sampler,
        ready_share=_ready_share(seen, roles),
    )


def _ready_share(seen: Observation, roles: Roles) -> float:
    """Highest share of the time in which a main thread of a consumer or worker was ready but had no core."""
    wanted = [pid for pid, role in roles.by_pid.items() if role in ("consumer", "worker")]
    mains = [seen.records[pid].threads.get(pid) for pid in wanted]
    return max((one.ready_share(seen.since_s) for one in mains if one is not None), default=0.0)


def _file_systems(seen: Observation) -> tuple[FileSystem, ...]:
    """Mounts with data files of the tree, in descending order of the time for which threads were blocked on them."""
    files: dict[str, set[str]] = {}
    read: Counter[str] = Counter()
    blocked: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    mounts = {}
    for record in seen.records.values():
        for path in record.files:
            mount = record.mount_of(path)
            if mount is not None and mount.kind not in ("proc", "sysfs", "devtmpfs", "devpts"):
                mounts[mount.mount_point] = mount
                files.setdefault(mount.mount_point, set()).add(path)
                read[mount.mount_point] += record.file_bytes[path]
        for thread in record.threads.values():
            points = set()
            for (name, target), count in thread.calls.items():
                if target and blocked_class(name, target) == "file_read":
                    mount = record.mount_of(target)
                    if mount is not None:
                        mounts[mount.mount_point] = mount
                        files.setdefault(mount.mount_point, set()).add(target)
                        blocked[mount.mount_point] += count
                        points.add(mount.mount_point)
            looks.update(dict.fromkeys(points, thread.looks))
    found = []
    for point, mount in mounts.items():
        before, after = _device(seen.disks_before, mount.device), _device(seen.disks_after, mount.device)
        busy = None
        if before and after and after[1].at_s > before[1].at_s:
            busy = min(1.0, (after[1].busy_s - before[1].busy_s) / (after[1].at_s - before[1].at_s))
        found.append(
            FileSystem(
                mount_point=point,
                kind=mount.kind,
                place=mount.place,
                files=len(files[point]),
                read_bytes_per_s=read[point] / seen.seen_s if seen.seen_s > 0 else 0.0,
                blocked_share=blocked[point] / looks[point] if looks[point] else 0.0,
                device=after[0] if after else None,
                device_busy_share=busy,
                example=min(files[point], key=len),
            )
        )
    return tuple(sorted(found, key=lambda one: (-blocked[one.mount_point], -one.read_bytes_per_s, -one.files)))


def _device(disks: Mapping[str, Counters], number: str) -> tuple[str, Counters] | None:
    return next(((name, one) for name, one in disks.items() if one.number == number), None)


def _shares(roles: Roles) -> tuple[TimeShare, ...]:
    count = max(1, len(roles.consumers))
    critical = mean_shares(roles.consumers)
    found = []
    for name in CLASSES:
        consumer = sum(one.shares.get(name, 0.0) for one in roles.consumers) / count
        loaders = sum(one.loaders.all_shares.get(name, 0.0) for one in roles.consumers) / count
        if consumer or loaders or critical.get(name):
            found.append(TimeShare(name=name, consumer=consumer, loaders=loaders, critical=critical.get(name, 0.0)))
    return tuple(found)


def _processes(seen: Observation, roles: Roles) -> tuple[ProcessFacts, ...]:
    found = []
    for pid, record in seen.records.items():
        delta = record.delta(seen.since_s)
        if delta is None:
            continue
        threads = seen.threads.get(pid, {})
        main = threads.get(pid)
        top: list[tuple[str, float]] = []
        if main is not None and main.total > 0:
            names = Counter({name: n for name, n in main.samples.items() if name != "startup"}).most_common(3)
            top = [("idle" if name == "wait" else name, n / main.total) for name, n in names]
        found.append(
            ProcessFacts(
                pid=pid,
                parent=record.parent,
                role=roles.by_pid.get(pid, "other"),
                command=record.command[:200],
                threads=record.most_threads,
                seen_s=delta.at_s,
                cpu_cores=_cores(record, seen.since_s),
                run_queue_share=sum(one.ready_share(seen.since_s) for one in record.threads.values()),
                read_bytes_per_s=delta.read_chars / delta.at_s,
                disk_bytes_per_s=delta.read_bytes / delta.at_s,
                reads_per_s=delta.read_calls / delta.at_s,
                rss_bytes=record.rss_bytes,
                rank=roles.ranks.get(pid),
                top=tuple(top),
            )
        )
    order = {"consumer": 0, "worker": 1, "launcher": 2}
    return tuple(sorted(found, key=lambda one: (order.get(one.role, 3), one.pid))[:_MAX_PROCESSES])


def _evidence(
    seen: Observation,
    roles: Roles,
    verdict: Verdict,
    figures: Figures,
    endpoints: Sequence[Endpoint],
    cores_used: float,
    cores: int,
) -> tuple[Evidence, ...]:
    found = [Evidence(quantity="waiting of the training loop", value=verdict.wait_share, unit="share", source="stacks")]
    found += [
        Evidence(quantity=CLASS_TEXTS.get(name, name), value=value, unit="share", source="stacks and blocked calls")
        for name, value in sorted(mean_shares(roles.consumers).items(), key=lambda one: -one[1])
        if name not in ("model", "other", "idle") and value >= 0.02
    ]
    for one in roles.consumers[:4]:
        if one.loaders.shares:
            found.append(
                Evidence(
                    quantity=f"busy loaders: {one.loaders.threads} x {one.loaders.origin}",
                    value=one.loaders.busy_share,
                    unit="share",
                    source="stacks",
                    ceiling=1.0,
                    ceiling_source="a thread that never waits",
                )
            )
        if one.loaders.in_flight > 0.05:
            found.append(
                Evidence(
                    quantity="requests in flight, mean", value=one.loaders.in_flight, unit="count", source="stacks"
                )
            )
    for endpoint in [one for one in endpoints if one.role == "store"][:3]:
        name = f"{endpoint.address}:{endpoint.port}"
        found.append(
            Evidence(
                quantity=f"rate from {name}, {endpoint.connections} connections",
                value=endpoint.rate_bytes_per_s,
                unit="bytes/s",
                source="TCP info",
            )
        )
        if endpoint.rtt_s is not None:
            found.append(Evidence(quantity=f"round trip to {name}", value=endpoint.rtt_s, unit="s", source="TCP info"))
    for system in figures.file_systems[:3]:
        name = f"{system.mount_point} ({system.kind}, {system.place})"
        if system.blocked_share > 0.01:
            found.append(
                Evidence(
                    quantity=f"blocked in reads of {name}",
                    value=system.blocked_share,
                    unit="share",
                    source="/proc/PID/syscall",
                )
            )
        if system.device_busy_share is not None and verdict.kind in ("disk", "small-reads"):
            found.append(
                Evidence(
                    quantity=f"{system.device} has requests in flight",
                    value=system.device_busy_share,
                    unit="share",
                    source="/proc/diskstats",
                    ceiling=1.0,
                    ceiling_source="always a request in flight",
                )
            )
    if figures.reads_per_s > 1:
        found.append(
            Evidence(
                quantity="bytes of a read call, mean",
                value=figures.mean_read_bytes,
                unit="bytes",
                source="/proc/PID/io",
            )
        )
    found.append(
        Evidence(
            quantity="cores used by the program",
            value=cores_used,
            unit="cores",
            source="/proc/PID/stat",
            ceiling=float(cores),
            ceiling_source="cores of this node",
        )
    )
    waiting = sum(
        thread.ready_share(seen.since_s) for record in seen.records.values() for thread in record.threads.values()
    )
    if waiting > 0.1:
        found.append(
            Evidence(
                quantity="threads that are ready but have no core, mean",
                value=waiting,
                unit="count",
                source="/proc/PID/schedstat",
            )
        )
    gpu = seen.gpu.mean_utilization()
    if gpu is not None:
        found.append(
            Evidence(
                quantity="time in which a GPU ran a kernel (experimental)",
                value=gpu,
                unit="share",
                source="NVML",
                ceiling=1.0,
                ceiling_source="a GPU that is never idle",
            )
        )
    return tuple(found)


def _ceilings(seen: Observation, roles: Roles, figures: Figures, cores_used: float, cores: int) -> tuple[Ceiling, ...]:
    found = []
    best = seen.connections.best_rate_bytes_per_s()
    if figures.rate_bytes_per_s > 0 and best > 0:
        found.append(
            Ceiling(
                resource="rate of the store",
                value=figures.rate_bytes_per_s,
                limit=max(best, figures.rate_bytes_per_s),
                unit="bytes/s",
                source="best second of this observation: the link may do more",
            )
        )
    found += [
        Ceiling(
            resource=f"loader threads ({one.loaders.origin})",
            value=one.loaders.busy_share * one.loaders.threads,
            limit=float(one.loaders.threads),
            unit="threads",
            source="a thread that never waits for another one",
        )
        for one in roles.consumers[:1]
        if one.loaders.shares
    ]
    system = next((one for one in figures.file_systems if one.device_busy_share is not None), None)
    if system is not None and system.device_busy_share is not None and system.blocked_share > 0.01:
        found.append(
            Ceiling(
                resource=f"disk {system.device}",
                value=system.device_busy_share,
                limit=1.0,
                unit="share",
                source="/proc/diskstats: always a request in flight",
            )
        )
    found.append(
        Ceiling(
            resource="cores", value=min(cores_used, float(cores)), limit=float(cores), unit="cores", source="this node"
        )
    )
    return tuple(found)


def _cost(verdict: Verdict, price: Price | None) -> Cost:
    hours = 24 * verdict.wait_share if verdict.kind not in ("healthy", "model", "unknown") else 0.0
    if price is None:
        return Cost(hours_lost_per_day=hours)
    return Cost(
        hours_lost_per_day=hours,
        price_usd_per_hour=price.usd_per_hour,
        usd_lost_per_day=hours * price.usd_per_hour,
        price_source=price.source,
    )


def _limits(seen: Observation, roles: Roles, figures: Figures, verdict: Verdict) -> tuple[str, ...]:
    """Sentences about the facts that could not be seen."""
    found = []
    if not seen.has_sampler:
        found.append("py-spy is not installed (pip install 'penstock[explain]'): Python stacks were not seen")
    elif seen.stack_errors["permission"]:
        found.append(permission_note())
    elif roles.without_stacks:
        found.append("no Python stacks were seen: the verdict is drawn from blocked system calls only")
    if seen.connections.error:
        found.append(seen.connections.error)
    namespaces = {record.network_namespace for record in seen.records.values() if record.network_namespace}
    if namespaces and os.readlink("/proc/self/ns/net") not in namespaces:
        found.append("the program has a separate network namespace: its connections were not seen")
    if seen.denied["syscall"]:
        found.append("blocked system calls of some processes cannot be read (another user or namespace)")
    if seen.denied["io"] or seen.denied["fd"]:
        found.append("I/O counters or open files of some processes cannot be read (another user or namespace)")
    if seen.gpu.count == 0:
        found.append("no NVIDIA GPU or no NVML: waiting for a GPU counts as time of the model")
    if any(one.consumer.samples["throttle"] for one in roles.consumers) or any(
        thread.samples["throttle"] for threads in seen.threads.values() for thread in threads.values()
    ):
        found.append("status codes are not visible: throttling is inferred from back-off in the clients' stacks")
    if figures.contention > 0.01 and verdict.kind in ("healthy", "model"):
        found.append(
            f"other programs used {100 * figures.other_cores_share:.0f} % of the node's cores, and the program waited for"
            f" cores {100 * figures.ready_share:.0f} % of the time: up to {100 * figures.contention:.0f} % of waiting is"
            " put down to them"
        )
    if seen.startup_s > 0 and not any(seen.threads.values()):
        found.append("the program did not get past its start-up")
    return tuple(found)
