# SPDX-License-Identifier: Apache-2.0
"""Reads from HDFS with 1, 2 and 4 data nodes, fully replicated, from clients on hosts of their own, all at once.

The hosts are rehearsed: network namespaces whose links have 25 Gbit/s x F. HDFS is the engine of `penstock pool up`.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from penstock import env
from penstock.cluster import Cluster
from penstock.cluster.exits import raise_for_failures
from penstock.launchers.netns_hosts import Hosts
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec
from penstock.study.result import Chart, Claim, Line, PartResult, Table, Value

from .images import make_images
from .limits import image_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.study.run import Context

__all__ = ["run"]

_READER = Path(__file__).with_name("hdfs_reader.py")
_LIMIT_S = 300.0
_MIN_OVERLAP = 0.5  # share of the reading time in which all clients must read at once
_START_S = 10.0  # enough for clients to open the data set and to read the first batch
_TCP = 119.6 / 125  # share of a link of Ethernet that TCP data have (docs/guides/measure-network.md)


def _jars() -> dict[str, str]:
    """Setting `hadoop` of the engine: the jars of the source tree, if `make setup-peers` installed them there."""
    folder = Path(__file__).resolve().parents[2] / ".tools/hadoop/lib"
    return {"hadoop": str(folder)} if list(folder.glob("hadoop-client-minicluster-*.jar")) else {}


def _read(
    cluster: Cluster, hosts: list[str], url: str, seconds: float, variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Read on all clients at the same time; return their counts."""
    start_s = time.time() + _START_S
    argv = [sys.executable, str(_READER), url, "{rank}", repr(start_s), repr(seconds)]
    ended = cluster.run(
        argv, on=[cluster.node(name) for name in hosts], timeout_s=_LIMIT_S, env=variables, expand_placeholders=True
    )
    raise_for_failures(ended, "reading from HDFS")
    return [json.loads(each.out.splitlines()[-1]) for each in ended]


def _shared_rate(clients: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the bytes per second of all clients together while all of them read, and the seconds of that time.

    Between two batches, a client is assumed to read at a constant rate.
    """
    times, sizes = zip(*(zip(*each["marks"], strict=True) for each in clients), strict=True)
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    if end <= begin:
        return 0.0, 0.0
    read = sum(
        float(np.interp(end, at, size) - np.interp(begin, at, size)) for at, size in zip(times, sizes, strict=True)
    )
    return read / (end - begin), end - begin


def _measure(context: Context, hosts: Hosts, count: int, data: Path) -> dict[str, Any]:
    """Bring up HDFS on the first `count` hosts, write the shards, read them on the clients, and take HDFS down."""
    size, settings = context.size, {"hosts": hosts.name}
    first = max(size["data_nodes"])
    nodes = [f"h{number + 1}" for number in range(count)]
    clients = [f"h{first + number + 1}" for number in range(size["clients"])]
    spec = PoolSpec(f"study-{uuid4().hex[:8]}", hosts.own_disk, copies=count)
    variables = {"HADOOP_USER_NAME": "penstock", "PENSTOCK_CACHE": str(context.scratch / f"index-{count}")}
    with (
        Cluster.open("local", settings, only=nodes) as storage,
        Cluster.open("local", settings, only=clients) as readers,
    ):
        context.progress(f"HDFS with {count} data node{'s' * (count > 1)} comes up")
        begun = time.monotonic()
        try:
            pool, _ = lifecycle.up(
                storage, spec, "hdfs", _jars(), timeout_s=_LIMIT_S, launcher="local", launcher_settings=settings
            )
            up_s, begun = time.monotonic() - begun, time.monotonic()
            url = f"{pool.url}train/"
            penstock = [sys.executable, "-m", "penstock"]
            raise_for_failures(
                storage.run(
                    [
                        *penstock,
                        "stage",
                        str(data),
                        url,
                        "--quiet",
                        "--journal",
                        str(context.scratch / f"journal-{count}"),
                    ],
                    on=[storage.leader],
                    timeout_s=_LIMIT_S,
                    env=variables,
                ),
                "writing to HDFS",
            )
            write_s = time.monotonic() - begun
            raise_for_failures(
                storage.run(
                    [*penstock, "index", url, "--records", "--json"],
                    on=[storage.leader],
                    timeout_s=_LIMIT_S,
                    env=variables,
                ),
                "indexing",
            )
            context.progress(f"{len(clients)} clients read for {size['hdfs_seconds']:g} s")
            read = _read(readers, clients, url, size["hdfs_seconds"], variables)
        finally:
            record = lifecycle.find(spec.name)
            if record is not None:
                lifecycle.down(storage, record, timeout_s=120)
    rate, shared_s = _shared_rate(read)
    return {
        "data_nodes": count, "up_s": up_s, "write_s": write_s, "bytes_per_s": rate, "shared_s": shared_s,
        "late_s": [each["late_s"] for each in read],
    }  # fmt: skip


def run(context: Context) -> PartResult:
    """Measure each number of data nodes."""
    size, spec = context.size, context.study.tables
    scale, nic = size["link_scale"], float(spec["node"]["nic_bytes_per_s"])
    context.progress("making the images")
    data = make_images(
        context.scratch / "images",
        images=size["hdfs_images"],
        shards=1 if size["hdfs_images"] < 1000 else size["shards"],
        replicate=size["replicate"],
    )
    first = max(size["data_nodes"])
    with (
        env.override({"XDG_STATE_HOME": str(context.scratch / "state")}),
        Hosts.up(f"c{uuid4().hex[:8]}", first + size["clients"], rate_bytes_per_s=nic * scale) as hosts,
    ):
        found = [_measure(context, hosts, count, data) for count in size["data_nodes"]]
    one, min_s = image_bytes(spec), _MIN_OVERLAP * size["hdfs_seconds"]
    rows, measured = [], {}
    whole = [each for each in found if each["shared_s"] >= min_s]
    for each in whole:
        count, rate = each["data_nodes"], each["bytes_per_s"]
        expected = count * nic * scale * _TCP
        rows.append(
            (
                str(count),
                f"{expected / 1e6:.2f}",
                f"{rate / 1e6:.2f}",
                f"{rate / expected:.2f}",
                f"{rate / scale / 1e9:.2f}",
                f"{rate / scale / one:,.0f}",
                f"{each['up_s']:.1f}",
                f"{each['write_s']:.1f}",
            )
        )
        measured[f"hdfs-{count}"] = Value(rate / scale / one, "the data nodes' links", scale=scale)
    by = {each["data_nodes"]: each["bytes_per_s"] for each in whole}
    claims = []
    if 2 in by:
        measured["hdfs-2-bytes"] = Value(by[2] / scale / 1e9, "2 links of 25 Gbit/s", scale=scale)
    if 2 in by and 4 in by:
        measured["hdfs-2-to-4"] = Value(by[4] / by[2], "the data nodes' links", scale=scale)
    for low, high in pairwise(size["data_nodes"]):
        if low not in by or high not in by:
            continue
        growth = by[high] / by[low]
        claims.append(
            Claim(
                f"{high} fully replicated data nodes serve at least 1.6 times what {low} serve",
                f"{growth:.2f} times",
                growth >= 1.6 * high / low / 2,
            )
        )
    late = [
        f"{each['data_nodes']} data node{'s' if each['data_nodes'] > 1 else ''}: all clients read at once for only {each['shared_s']:.1f} s of "
        f"{size['hdfs_seconds']:g} s; the last one began {max(each['late_s']):.1f} s late"
        for each in found
        if each not in whole
    ]
    table = Table(
        f"HDFS on rehearsed hosts, links of 25 Gbit/s x {scale:g} = {nic * scale * 8 / 1e6:.0f} Mbit/s, {size['clients']} clients",
        ("data nodes", "expected MB/s", "measured MB/s", "ratio", "/ F, GB/s", "/ F, images/s", "up, s", "written in, s"), tuple(rows), left=0,
        note="Expected: all links of the data nodes, with TCP's share of an Ethernet link. Images are read in shuffled order, one range each, and not decoded. Bytes count while all clients read. images/s are those of 109 kB.",
    )  # fmt: skip
    chart = Chart("hdfs", "What HDFS serves, divided by F", "data nodes", "GB/s", (
        Line("measured", tuple((float(n), rate / scale / 1e9) for n, rate in by.items())),
        Line("links", tuple((float(n), n * nic * _TCP / 1e9) for n in by)),
    ), caption="GB/s over the number of data nodes, beside the rate of their links.")  # fmt: skip
    return PartResult(
        measured=measured, claims=tuple(claims), blocks=(table, chart), not_measured=tuple(late), data=found
    )
