# SPDX-License-Identifier: Apache-2.0
"""Tests the `hdfs` engine on three hosts: the suite, owner reads, lost hosts, and rejected settings. Issue 5."""

from __future__ import annotations

import os
import time

import pytest

from penstock.errors import Deadline, NotFound, PenstockError
from penstock.pool import engine_registry, lifecycle
from penstock.protocols import PoolSpec
from penstock.testing import EngineSuite

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300)]


@pytest.fixture
def suite(cluster, hosts, jars, tmp_path):
    """`suite(copies)` brings up a pool and returns its test suite; the pool is taken down with the test."""
    made = []

    def up(copies: int) -> EngineSuite:
        one = EngineSuite("hdfs", {"hadoop": jars}, cluster, hosts.own_disk, tmp_path, shared=True, copies=copies)
        made.append(one)
        one.pool, _ = one.up()
        return one

    yield up
    for one in made:
        engine_registry.load("hdfs", {}).down(one.spec, cluster, lease="", keep_data=False, timeout_s=60)


def test_hdfs_passes_the_suite(cluster, hosts, jars, tmp_path):
    EngineSuite("hdfs", {"hadoop": jars}, cluster, hosts.own_disk, tmp_path, shared=True).run()


@pytest.mark.needs_pool
def test_hdfs_first_copy_is_the_writers_and_is_read_as_a_file(suite):
    one = suite(1)
    for at, node in enumerate(one.nodes):
        mine = {f"{at}/{name}": os.urandom(2_500_000) for name in "ab"}
        assert one.put(node, mine) == [None, None]
        located, *fasts = one.do(node, ["locate", list(mine)], *(["fast_path", name] for name in mine))
        assert all(one.is_body(fast, body) for fast, body in zip(fasts, mine.values(), strict=True)), (node, fasts)
        assert located == {name: [[0, 2_500_000, [node]]] for name in mine}
    assert one.do("h1", ["fast_path", "2/a"]) == [None]


@pytest.mark.needs_pool
@pytest.mark.parametrize("copies", [1, 2])
def test_hdfs_host_that_is_killed_costs_only_what_had_no_second_copy(copies, suite, hosts, cluster):
    one = suite(copies)
    for at, node in enumerate(one.nodes):
        mine = {f"{at}/{number}": os.urandom(300_000) for number in range(3)}
        assert one.put(node, mine) == [None] * 3
        one.bodies |= mine
    hosts.kill("h3")
    began = time.monotonic()
    answers = one.do("h1", *(["read", name, 0, 10**6] for name in one.bodies))
    whole = {
        name for (name, body), answer in zip(one.bodies.items(), answers, strict=True) if one.is_body(answer, body)
    }
    assert whole == {name for name in one.bodies if copies == 2 or not name.startswith("2/")}
    assert time.monotonic() - began < 110  # nine reads, three of lost objects: each takes seconds, not two minutes
    record = lifecycle.find(one.spec.name)
    assert record is not None
    states = lifecycle.status(cluster, record, timeout_s=30)
    assert (states["h1"], states["h2"], states["h3"]) == ("up", "up", "lost")
    until = time.monotonic() + 60
    engine = engine_registry.load("hdfs", {})
    want = [] if copies == 2 else ["2/0", "2/1", "2/2"]
    while (lost := engine.heal(one.pool, cluster, timeout_s=30)) != want and time.monotonic() < until:
        time.sleep(1)
    assert lost == want
    if lost:  # a remaining node writes the lost objects again
        assert one.put("h2", {name: one.bodies[name] for name in lost}) == [None] * len(lost)
    answers = one.do("h1", *(["read", name, 0, 10**6] for name in one.bodies))
    assert all(one.is_body(answer, body) for answer, body in zip(answers, one.bodies.values(), strict=True))
    assert engine.heal(one.pool, cluster, timeout_s=30) == []
    ended = lifecycle.down(cluster, record, timeout_s=60)
    assert ended.unreached == ("h3",)
    left = lifecycle.audit(cluster, record, timeout_s=60)
    assert (left.unreached, [found["left"] for found in left.receipts.values()]) == (("h3",), [[], []])
    assert lifecycle.find(one.spec.name) is not None  # the record stays, since h3 may come back with its data


@pytest.mark.needs_pool
def test_hdfs_node_that_hangs_costs_seconds_and_is_told_apart(suite, hosts, cluster):
    one = suite(2)
    bodies = {f"set/{at}": os.urandom(200_000) for at in range(9)}
    assert one.put("h3", bodies) == [None] * 9
    stopped = cluster.run(["sh", "-c", "kill -STOP $(pidof java)"], on=[cluster.node("h3")], timeout_s=30)
    assert stopped[0].code == 0
    record = lifecycle.find(one.spec.name)
    assert record is not None
    try:
        for name, body in bodies.items():
            began = time.monotonic()
            [answer] = one.do("h1", ["read", name, 0, 10**6])
            assert one.is_body(answer, body)
            assert time.monotonic() - began < 30  # waiting for the hung DataNode would take two minutes
        until = time.monotonic() + 60
        while (states := lifecycle.status(cluster, record, timeout_s=20))[
            "h3"
        ] != "degraded" and time.monotonic() < until:
            time.sleep(1)
        assert states == {"h1": "up", "h2": "up", "h3": "degraded"}
    finally:
        ended = lifecycle.down(cluster, record, timeout_s=60)
    assert ended.unreached == ()
    assert [list(hosts.disk(h).iterdir()) for h in ("h1", "h2", "h3")] == [[], [], []]


def test_hdfs_without_jars_or_with_a_port_in_use_is_refused_and_rolled_back(cluster, hosts, jars, tmp_path):
    spec = PoolSpec("p", hosts.own_disk)
    with pytest.raises(NotFound, match=r"h1: .*nothing/hadoop-client-minicluster"):
        lifecycle.up(cluster, spec, "hdfs", {"hadoop": f"{tmp_path}/nothing"}, timeout_s=60)
    code = "import socket, sys, time; s = socket.socket(); s.bind((sys.argv[1], 4321)); s.listen(); print(flush=True); time.sleep(60)"
    holder = cluster.run(
        ["sh", "-c", 'setsid python3 -c "$1" "$2" > /dev/null 2>&1 & sleep 1', "sh", code, cluster.leader.address],
        on=[cluster.leader], timeout_s=30,
    )  # fmt: skip
    assert holder[0].code == 0
    with pytest.raises(PenstockError, match=r"h1: port 4321 of .* is in use"):
        lifecycle.up(cluster, spec, "hdfs", {"hadoop": jars, "port": 4321}, timeout_s=60)
    assert [list(hosts.disk(h).iterdir()) for h in ("h1", "h2", "h3")] == [[], [], []]


@pytest.mark.needs_pool
def test_hdfs_killed_daemon_shows_end_of_log(cluster, hosts, jars):
    with pytest.raises(PenstockError, match=r"h\d: .*(ended|heap)"):
        lifecycle.up(
            cluster, PoolSpec("p", hosts.own_disk), "hdfs", {"hadoop": jars, "datanode_heap_mb": 1}, timeout_s=90
        )
    assert [list(hosts.disk(h).iterdir()) for h in ("h1", "h2", "h3")] == [[], [], []]


@pytest.mark.needs_pool
def test_hdfs_that_cannot_come_up_in_time_is_taken_back_within_its_deadline(cluster, hosts, jars):
    hosts.cut("h3")  # h3 can be controlled but reaches no other host, like a hung node
    began = time.monotonic()
    with pytest.raises(Deadline, match="h3"):
        lifecycle.up(cluster, PoolSpec("p", hosts.own_disk), "hdfs", {"hadoop": jars}, timeout_s=60)
    assert time.monotonic() - began < 75
    assert [list(hosts.disk(h).iterdir()) for h in ("h1", "h2", "h3")] == [[], [], []]
    assert lifecycle.names() == []
