# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth of every pair of ranks: on this machine, and between rehearsed hosts, one with a slow link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock.bench.net.launch import run_on_cluster
from penstock.bench.net.plan import NetPlan
from penstock.bench.net.verdict import judge
from penstock.cluster import Cluster
from penstock.cluster.exits import raise_for_failures
from penstock.launchers.netns_hosts import Hosts
from penstock.study.result import Claim, PartResult, Table, Value

from .sweeps import OPEN_MPI

if TYPE_CHECKING:
    from penstock.bench.net.result import NetResult
    from penstock.bench.net.verdict import NetVerdict
    from penstock.study.run import Context

__all__ = ["run"]

_LIMIT_S = 300.0


def _on_this_machine(context: Context) -> tuple[NetResult, NetVerdict]:
    """Two ranks with a core each: latency, bandwidth and allreduce by OSU's semantics."""
    count = context.size["latency_iterations"]
    plan = NetPlan(
        backend="mpi",
        operations=("latency", "bw", "allreduce"),
        max_bytes=65536,
        iterations=count,
        warm_up=max(1, count // 10),
    )
    with Cluster.open("mpi", {**OPEN_MPI, "nodes": "localhost"}) as cluster:
        result = run_on_cluster(plan, cluster, ranks_per_node=2, timeout_s=_LIMIT_S)
    return result, judge(result)


def _between_hosts(context: Context) -> tuple[NetResult, NetVerdict, str]:
    """One rank per host, all pairs; the last host's link is the slow one."""
    size = context.size
    plan = NetPlan(backend="gloo", matrix=True, rounds=size["rounds"], matrix_bytes=size["pair_bytes"])
    with Hosts.up(f"e{uuid4().hex[:8]}", size["hosts"], rate_bytes_per_s=size["link_bytes_per_s"]) as hosts:
        slow = f"h{size['hosts']}"
        with Cluster.open("local", {"hosts": hosts.name}) as cluster:
            rate = f"{8 * size['slow_link_bytes_per_s']:.0f}bit"
            limit = [
                "tc",
                "qdisc",
                "replace",
                "dev",
                "e0",
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                "64kb",
                "latency",
                "50ms",
            ]
            raise_for_failures(cluster.run(limit, on=[cluster.node(slow)], timeout_s=30), "limiting the link")
            result = run_on_cluster(plan, cluster, ranks_per_node=1, timeout_s=_LIMIT_S)
    return result, judge(result), slow


def run(context: Context) -> PartResult:
    """Measure both, and check that the verdict names the planted link."""
    context.progress("latency, bandwidth and allreduce of two ranks of this machine")
    local, local_verdict = _on_this_machine(context)
    context.progress(f"all pairs of {context.size['hosts']} rehearsed hosts")
    remote, verdict, slow = _between_hosts(context)
    table = local.table("latency")
    latency = min(row.value for row in table.osu_rows()) if table is not None else None
    fast = [pair for pair in verdict.pairs if slow not in (remote.places[pair.a].host, remote.places[pair.b].host)]
    bad = [pair for pair in verdict.pairs if pair not in fast]
    ratio = max(p.a_to_b for p in fast) / max(min(p.a_to_b, p.b_to_a) for p in bad) if fast and bad else None
    wanted = context.size["link_bytes_per_s"] / context.size["slow_link_bytes_per_s"]
    named = [
        finding for finding in verdict.findings if slow in finding.hosts and finding.kind in ("slow-node", "slow-pair")
    ]
    measured = {}
    if latency is not None:
        measured["latency-memory"] = Value(latency, "host memory of one socket")
    if fast:
        measured["latency-hosts"] = Value(min(pair.latency_us for pair in fast), "network namespaces on two cores")
    if ratio is not None:
        measured["slow-link"] = Value(ratio, "the planted link")
    names = [f"{place.rank} on {place.host}" for place in remote.places]
    by = {(pair.a, pair.b): pair for pair in verdict.pairs}
    cells: list[tuple[str, ...]] = []
    for a in range(len(names)):
        row = [names[a]]
        for b in range(len(names)):
            found = by.get((min(a, b), max(a, b)))
            rate = 0.0 if found is None else (found.a_to_b if a < b else found.b_to_a)
            row.append(
                "–"
                if found is None
                else f"{found.latency_us:,.0f} us, {rate / 1e6:,.1f} MB/s{' !' if found.is_slow else ''}"
            )
        cells.append(tuple(row))
    osu = [
        (each.program, f"{row.size_bytes:,}", f"{row.value:,.2f}")
        for each in local.tables
        for row in each.osu_rows()
        if row.size_bytes in (1, 4, 8, 1024, 65536)
    ]
    sentences = [finding.text for finding in (*local_verdict.findings, *verdict.findings)]
    blocks = (
        Table("Pairs of hosts: latency, and rate from the row's rank to the column's", ("rank", *names), tuple(cells), note="`!` is a slow pair. " + "; ".join(sentences)),
        Table("Two ranks of this machine, Open MPI, host memory", ("program", "bytes", "us or MB/s"), tuple(osu), left=1),
    )  # fmt: skip
    claims = (
        Claim("the verdict names the host with the planted slow link", "; ".join(f.text for f in named) or "it names none", bool(named)),
        Claim("the planted link is as slow as it was shaped, within 10 %", "not measured" if ratio is None else f"{ratio:.2f} times, shaped to {wanted:g}", None if ratio is None else abs(ratio / wanted - 1) <= 0.1),
    )  # fmt: skip
    data: Any = {"pairs": msgspec.to_builtins(verdict), "local": msgspec.to_builtins(local)}
    return PartResult(
        predicted={"slow-link": Value(wanted, "the shaped rates")},
        measured=measured,
        claims=claims,
        blocks=blocks,
        data=data,
    )
