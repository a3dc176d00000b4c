# SPDX-License-Identifier: Apache-2.0
"""Measures read rates on a node of an HDFS pool: of its own blocks, another node's blocks, plain files and hdfs-native.

    python benches/pool_reads.py --bytes 500000000

Needs root: it makes two hosts (network namespaces) on this machine, joined by a link of a given rate. The first host
writes the only copy, so all blocks are its own. There are four variants. `own` is a loader with the pool's context.
`engine` is a loader without it. `plain` reads hard links to the same block files. `copied` reads the files that were
staged. Each run is one warm epoch over the same objects. The variants run in turns in a rotating order, and the ratios
are medians over the turns. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy

from penstock.cluster import Cluster, raise_for_failures
from penstock.launchers.netns_hosts import Hosts
from penstock.pool import lifecycle
from penstock.pool.context import VARIABLE, PoolContext, to_env
from penstock.protocols import Pool, PoolSpec

_OBJECT = 16 << 20
_SAMPLE = 1 << 20


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--hadoop", default=".tools/hadoop/lib")
    asked.add_argument("--bytes", type=int, default=500_000_000)
    asked.add_argument("--rate", type=float, default=62.5e6, help="bytes/s of a host's link")
    asked.add_argument("--repeats", type=int, default=5)
    given = asked.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Hosts.up(f"reads-{os.getpid()}", 2, rate_bytes_per_s=given.rate) as hosts,
    ):
        os.environ["XDG_STATE_HOME"] = folder
        print(json.dumps(_measure(given, hosts)))
    return 0


def _measure(given: argparse.Namespace, hosts: Hosts) -> dict:
    # On the same disk as the host's HDFS blocks.
    plain = hosts.disk("h1") / "plain"
    plain.mkdir()
    draw = numpy.random.default_rng(1)
    objects = max(1, given.bytes // _OBJECT)
    for at in range(objects):
        (plain / f"{at:05d}.bin").write_bytes(draw.bytes(_OBJECT))
    files = f"{hosts.own_disk}/plain"
    spec, settings = PoolSpec("reads", hosts.own_disk), {"hadoop": str(Path(given.hadoop).resolve())}
    with Cluster.open("local", {"hosts": hosts.name}) as cluster:
        began = time.monotonic()
        pool, _ = lifecycle.up(cluster, spec, "hdfs", settings, timeout_s=200)
        ready_s = time.monotonic() - began
        data, env = f"{pool.url}data", {"HADOOP_USER_NAME": "penstock"}
        stage = [
            sys.executable,
            "-m",
            "penstock",
            "stage",
            files,
            data,
            "--quiet",
            "--journal",
            f"{hosts.own_disk}/journal",
        ]
        raise_for_failures(cluster.run(stage, on=[cluster.leader], env=env, timeout_s=200), "stage")
        _link(hosts, cluster, pool, data, objects)
        result = env | to_env(PoolContext(pool, data))
        one, other = cluster.node("h1"), cluster.node("h2")

        def read(ways: str, repeats: int, on: object, *urls: str) -> dict[str, list[float]]:
            words = [
                sys.executable,
                __file__,
                "rank",
                str(repeats),
                *(f"{w}={u}" for w, u in zip(ways.split(), urls, strict=True)),
            ]
            [ended] = cluster.run(words, on=[on], env=result, timeout_s=280)
            assert ended.code == 0, ended.err[-2500:].decode(errors="replace")
            return json.loads(ended.out)

        linked = f"{hosts.own_disk}/linked"
        here = read("plain copied own engine", given.repeats, one, linked, files, data, data)
        there = read("engine", 2, other, data)
        record = lifecycle.find("reads")
        assert record is not None
        lifecycle.down(cluster, record, timeout_s=60)
    size = objects * _OBJECT
    rates = {f"{way}_mb_per_s": round(size / statistics.median(took) / 1e6, 1) for way, took in here.items()}
    remote = size / statistics.median(there["engine"])

    def over(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(here[one], here[other], strict=True))

    return {
        "bytes": size, "objects": objects, "repeats": given.repeats, "load": os.getloadavg()[0], "ready_s": round(ready_s, 2),
        "own_over_plain": round(over("plain", "own"), 3), "own_over_copied": round(over("copied", "own"), 3), "own_over_engine": round(over("engine", "own"), 2),
        "remote_over_link": round(remote / given.rate, 3), "remote_mb_per_s": round(remote / 1e6, 1),
        "link_mb_per_s": given.rate / 1e6, **rates,
        "seconds": {way: [round(one, 3) for one in took] for way, took in (here | {"remote": there["engine"]}).items()},
    }  # fmt: skip


def _link(hosts: Hosts, cluster: Cluster, pool: Pool, data: str, objects: int) -> None:
    """Hard-links the first host's block files under the names of their objects."""
    folder = data.removeprefix(pool.url)
    requests = json.dumps([["fast_path", f"{folder}/{at:05d}.bin"] for at in range(objects)])
    line = [sys.executable, "-m", "penstock.pool.exec", pool.engine, "h1", requests]
    [ended] = cluster.run(line, on=[cluster.leader], stdin=msgspec.json.encode(pool), timeout_s=100)
    raise_for_failures([ended], "fast_path")
    (hosts.disk("h1") / "linked").mkdir()
    for at, found in enumerate(json.loads(ended.out)):
        path = hosts.disk("h1") / Path(found["path"]).relative_to(hosts.own_disk)
        (hosts.disk("h1") / f"linked/{at:05d}.bin").hardlink_to(path)


def rank(repeats: str, *ways: str) -> int:
    """Runs epochs of each variant by turns; prints their seconds without the first, which warms the cache."""
    import penstock
    from penstock.feed import Loader
    from penstock.formats import fixed

    form = fixed(body=penstock.tensor("uint8", (_SAMPLE,)))
    result = os.environ.pop(VARIABLE, "")
    loaders = {}
    for way, _, url in (word.partition("=") for word in ways):
        if way == "own":
            os.environ[VARIABLE] = result
        loaders[way] = Loader(penstock.open(url, format=form).cache(False), batch_size=16, prefetch_next_epoch=False)
        os.environ.pop(VARIABLE, None)
    took: dict[str, list[float]] = {way: [] for way in loaders}
    for turn in range(int(repeats) + 1):
        turned = [*loaders.items()]
        for way, loader in turned[turn % len(turned) :] + turned[: turn % len(turned)]:
            began = time.perf_counter()
            samples = sum(len(batch["body"]) for batch in loader)
            if turn:
                took[way].append(time.perf_counter() - began)
            assert samples * _SAMPLE == loader.dataset.source.size_bytes, (way, samples)
            if way == "own":
                report = loader.report()
                assert report["pool_own_bytes"] >= samples * _SAMPLE, dict(report)
    sys.stdout.write(json.dumps(took))
    return 0


if __name__ == "__main__":
    sys.exit(rank(*sys.argv[2:]) if sys.argv[1:2] == ["rank"] else main())
