# SPDX-License-Identifier: Apache-2.0
"""Tests the `moosefs` engine on three hosts: the suite through its FUSE mounts, and a lost host. Issue 5, point 3."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from penstock.cluster import Cluster
from penstock.errors import ConfigError, SystemFault
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec
from penstock.testing import EngineSuite

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_pool, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def programs() -> None:
    if not shutil.which("mfsmaster"):
        pytest.fail("MooseFS is not here; `make test-peers` installs it", pytrace=False)


def test_moosefs_passes_the_suite(cluster, hosts, tmp_path):
    EngineSuite("moosefs", {}, cluster, hosts.own_disk, tmp_path, shared=True).run()
    assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2", "h3")] == [[], [], []]


def test_moosefs_of_two_copies_goes_on_without_a_host(cluster, hosts, tmp_path):
    one = EngineSuite("moosefs", {}, cluster, hosts.own_disk, tmp_path, shared=True, copies=2)
    one.pool, _ = one.up()
    try:
        bodies = {f"set/{at}": os.urandom(200_000) for at in range(9)}
        assert one.put("h2", bodies) == [None] * 9
        [located] = one.do("h1", ["locate", list(bodies)])
        assert {len(pieces) for pieces in located.values()} == {1}
        assert all(len(nodes) == 2 and length == 200_000 for [[_, length, nodes]] in located.values())
        hosts.kill("h3")
        answers = one.do("h2", *(["read", name, 0, 10**6] for name in bodies))
        assert all(one.is_body(answer, body) for answer, body in zip(answers, bodies.values(), strict=True))
        record = lifecycle.find(one.spec.name)
        assert record is not None
        until = time.monotonic() + 60
        while (states := lifecycle.status(cluster, record, timeout_s=20))["h3"] != "lost" and time.monotonic() < until:
            time.sleep(1)
        assert states == {"h1": "up", "h2": "up", "h3": "lost"}
    finally:
        record = lifecycle.find(one.spec.name)
        assert record is not None
        ended = lifecycle.down(cluster, record, timeout_s=60)
        assert ended.unreached in ((), ("h3",))
        left = lifecycle.audit(cluster, record, timeout_s=60)
        assert [found["left"] for found in left.receipts.values()] == [[]] * len(left.receipts)


def test_moosefs_of_one_copy_tells_programs_that_what_a_lost_host_held_is_gone(cluster, hosts, tmp_path):
    one = EngineSuite("moosefs", {}, cluster, hosts.own_disk, tmp_path, shared=True)
    one.pool, _ = one.up()
    record = lifecycle.find(one.spec.name)
    assert record is not None
    try:
        bodies = {f"set/{at}": os.urandom(50_000) for at in range(9)}
        assert one.put("h1", bodies) == [None] * 9
        [located] = one.do("h1", ["locate", list(bodies)])
        assert {len(pieces) for pieces in located.values()} == {1}
        on = {name: nodes for name, [[_, _, nodes]] in located.items()}
        hosts.kill("h3")
        read = 'for name; do cat "$name" > /dev/null 2>&1 && echo whole || echo gone; done'
        paths = [f"{one.pool.url}/{name}" for name in bodies]
        # A mount that keeps retrying blocks the programs that use it, even after a signal to end.
        [ended] = cluster.run(["sh", "-c", read, "sh", *paths], on=[cluster.leader], timeout_s=18)
        assert ended.fault is None, ended
        assert ended.out.decode().split() == ["gone" if on[name] == ["h3"] else "whole" for name in bodies]
        assert ["h3"] in on.values()
    finally:
        lifecycle.down(cluster, record, timeout_s=60)


def test_moosefs_lets_in_the_nodes_of_the_pool_alone(cluster, hosts, tmp_path):
    one = EngineSuite("moosefs", {}, cluster, hosts.own_disk, tmp_path, shared=True)
    one.pool, _ = one.up()
    record = lifecycle.find(one.spec.name)
    assert record is not None
    try:
        node = cluster.node("h2")
        host, port = one.pool.facts["master"].rsplit(":", 1)
        stranger = f"{node.address.rsplit('.', 1)[0]}.200"
        mount = (
            f"ip address add {stranger}/24 dev $(ip -o -4 address show to {node.address} | cut -d' ' -f2)\n"
            f"mkdir {tmp_path}/mnt\n"
            f"mfsmount -o mfsdonotrememberpassword,mfsbind=$1 -H {host} -P {port} {tmp_path}/mnt && umount {tmp_path}/mnt"
        )
        [refused] = cluster.run(["sh", "-c", mount, "sh", stranger], on=[node], timeout_s=30)
        assert refused.code != 0, refused
        assert b"Permission denied" in refused.out + refused.err, refused
        [taken] = cluster.run(["sh", "-c", mount, "sh", node.address], on=[node], timeout_s=30)
        assert taken.code == 0, taken
    finally:
        lifecycle.down(cluster, record, timeout_s=60)


def test_moosefs_without_fuse_on_a_node_is_refused_by_its_name(cluster, hosts, tmp_path):
    (tmp_path / "none").touch()
    hide = f"mount --bind {tmp_path}/none /dev/fuse && mount -o remount,bind,ro /dev/fuse"
    assert cluster.run(["sh", "-c", hide], on=[cluster.node("h2")], timeout_s=30)[0].code == 0
    with pytest.raises(SystemFault, match=r"h2: /dev/fuse cannot be opened\n"):
        lifecycle.up(cluster, PoolSpec("p", hosts.own_disk), "moosefs", {}, timeout_s=60)
    assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2", "h3")] == [[], [], []]
    assert lifecycle.names() == []


@pytest.mark.parametrize(
    ("disk", "words"),
    [("disk", r"n0: 127\.0\.0\.1 is a loopback address"), ("{node}", "the disk must be the same path on all nodes")],
)
def test_moosefs_that_cannot_be_is_refused(disk, words, home, tmp_path):
    with Cluster.open("local", {"nodes": 2}) as cluster, pytest.raises(ConfigError, match=words):
        lifecycle.up(cluster, PoolSpec("p", f"{tmp_path}/{disk}"), "moosefs", {}, timeout_s=60)
    assert lifecycle.names() == []
