# SPDX-License-Identifier: Apache-2.0
"""Tests that every engine, including a third-party engine, passes the suite and rejects bad input.

Issue 5, point 3.
"""

from __future__ import annotations

import os
import sys

import pytest

from penstock.cluster import Cluster
from penstock.errors import (
    ConfigError,
    NoSpace,
    NotFound,
    PenstockError,
    PreconditionFailed,
    SystemFault,
    Unreachable,
    Unsupported,
)
from penstock.pool import engine_registry, lifecycle
from penstock.protocols import PoolSpec
from penstock.testing import EngineSuite

_STRANGER = """
from penstock.engines.local import LocalEngine

class Mine(LocalEngine):
    name = "mine"

def engine(settings, environment):
    return Mine()
"""


def test_local_passes_the_suite_on_processes(home, tmp_path):
    with Cluster.open("local", {"nodes": 2}) as cluster:
        EngineSuite("local", {}, cluster, f"{tmp_path}/disk[1]*-{{node}}", tmp_path, shared=False).run()


def test_mount_passes_the_suite_on_one_folder(home, tmp_path):
    with Cluster.open("local", {"nodes": 2}) as cluster:
        EngineSuite("mount", {}, cluster, f"{tmp_path}/shared[1]*", tmp_path, shared=True).run()


def test_strange_engine_comes_by_the_same_door_and_passes_the_suite(home, tmp_path, monkeypatch):
    (tmp_path / "stranger_engine.py").write_text(_STRANGER)
    info = tmp_path / "stranger_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock.engines]\nmine = stranger_engine:engine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mine" in engine_registry.names()
    with Cluster.open("local", {"nodes": 2}) as cluster:
        suite = EngineSuite(
            "mine",
            {},
            cluster,
            f"{tmp_path}/disk-{{node}}",
            tmp_path,
            shared=False,
            environment={"PYTHONPATH": str(tmp_path)},
        )
        suite.run()
    sys.modules.pop("stranger_engine", None)


@pytest.mark.needs_root
def test_mount_that_nodes_do_not_share_is_refused_and_taken_back(cluster, hosts):
    spec = PoolSpec("apart", hosts.own_disk)
    with pytest.raises(ConfigError, match=r"h2: .* is missing, although h1 created it: the nodes do not share"):
        lifecycle.up(cluster, spec, "mount", {}, timeout_s=60)
    assert list(hosts.disk("h1").iterdir()) == []


# ---------------------------------------------------------------- bad input


@pytest.mark.needs_root
def test_node_that_is_gone_is_named_and_nothing_is_left_on_the_others(cluster, hosts):
    hosts.kill("h2")
    with pytest.raises(Unreachable, match="h2"):
        lifecycle.up(cluster, PoolSpec("p", hosts.own_disk), "local", {}, timeout_s=60)
    assert list(hosts.disk("h1").iterdir()) == []
    assert lifecycle.find("p") is None


def test_node_without_space_is_named_and_rolled_back(home, tmp_path):
    with (
        Cluster.open("local", {"nodes": 2}) as cluster,
        pytest.raises(NoSpace, match=r"n0: .* bytes free, but the pool requires"),
    ):
        lifecycle.up(cluster, PoolSpec("p", f"{tmp_path}/{{node}}", need_bytes=1 << 60), "local", {}, timeout_s=60)
    assert not (tmp_path / "n0/penstock-pool-p").exists()
    assert lifecycle.find("p") is None


def test_two_nodes_on_one_folder_are_told_apart(home, tmp_path):
    with (
        Cluster.open("local", {"nodes": 2}) as cluster,
        pytest.raises(PenstockError, match="is also the pool's folder on n"),
    ):
        lifecycle.up(cluster, PoolSpec("p", f"{tmp_path}/d"), "local", {}, timeout_s=60)
    assert not (tmp_path / "d/penstock-pool-p").exists()


def test_stale_pool_of_a_crashed_job_is_told_with_how_to_end_it(home, tmp_path):
    spec = PoolSpec("p", f"{tmp_path}/{{node}}")
    with Cluster.open("local", {"nodes": 2}) as cluster:
        lifecycle.up(cluster, spec, "local", {}, timeout_s=60)
        lifecycle.forget("p")  # as if the machine with the pool's record were gone
        with pytest.raises(
            PenstockError,
            match=r"n0: .* belongs to another `pool up` of the pool `p` .*: none of its processes is running",
        ) as raised:
            lifecycle.up(cluster, spec, "local", {}, timeout_s=60)
        assert "pool down" in raised.value.hint
        assert (tmp_path / "n1/penstock-pool-p/data").is_dir()
        record = lifecycle.PoolRecord(state="unknown", engine="local", engine_settings={}, spec=spec, lease="")
        assert lifecycle.down(cluster, record, timeout_s=60).unreached == ()
        lifecycle.up(cluster, spec, "local", {}, timeout_s=60)
        two = PoolSpec("q", f"{tmp_path}/{{node}}")
        lifecycle.up(cluster, two, "local", {}, timeout_s=60)
        for name in ("p", "q"):
            found = lifecycle.find(name)
            assert found is not None
            lifecycle.down(cluster, found, timeout_s=60)


def test_up_that_was_killed_on_its_way_is_refused_until_down_has_cleared_it(home, tmp_path):
    spec = PoolSpec("p", f"{tmp_path}/{{node}}")
    with Cluster.open("local", {"nodes": 2}) as cluster:
        first, _ = lifecycle.up(cluster, spec, "local", {}, timeout_s=60)
        found = lifecycle.find("p")
        assert found is not None
        found.state = "starting"
        lifecycle._write_record(found)
        with pytest.raises(PreconditionFailed, match=r"an earlier `pool up` on n0, n1 has not finished") as result:
            lifecycle.up(cluster, spec, "local", {}, timeout_s=60)
        assert result.value.hint == "run penstock pool down --name p to finish it"
        assert lifecycle.down(cluster, found, timeout_s=60).unreached == ()
        second, was_up = lifecycle.up(cluster, spec, "local", {}, timeout_s=60)
        assert not was_up
        assert second.lease != first.lease
        found = lifecycle.find("p")
        assert found is not None
        lifecycle.down(cluster, found, timeout_s=60)


@pytest.mark.parametrize(
    ("engine", "settings", "spec", "kind", "word"),
    [
        ("nonesuch", {}, PoolSpec("p", "/x"), ConfigError, "no engine `nonesuch`"),
        ("hdfs", {"colour": "1"}, PoolSpec("p", "/x"), ConfigError, "unknown setting `colour`"),
        ("local", {}, PoolSpec("../p", "/x"), ConfigError, "not a valid pool name"),
        ("local", {}, PoolSpec("p", "x"), ConfigError, "not an absolute path"),
        ("local", {}, PoolSpec("p", "/x", copies=2), Unsupported, "supports only one copy"),
        ("hdfs", {}, PoolSpec("p", "/x", copies=3), SystemFault, "3 copies require at least 3 nodes"),
        ("local", {}, PoolSpec("p", "/proc/none"), NotFound, "n0"),
    ],
)  # fmt: skip
def test_pool_that_cannot_be_is_refused(engine, settings, spec, kind, word, home):
    with Cluster.open("local", {"nodes": 2}) as cluster, pytest.raises((kind, PenstockError), match=word):
        lifecycle.up(cluster, spec, engine, settings, timeout_s=60)
    assert lifecycle.names() == []


def test_lacks_of_nodes_are_told_by_name():
    made = engine_registry.load("hdfs", {})
    facts = {"h1": {"java": "openjdk 17", "unresolved": []}, "h2": {"java": None, "unresolved": ["h9"]}}
    assert made.probe(PoolSpec("p", "/x"), facts) == [
        "h2: Java (11 or 17) is not installed",
        "h2: the host names h9 cannot be resolved",
    ]
    with pytest.raises(SystemFault, match=r"h1: its clock differs by \+90 s"):
        lifecycle._raise_for_problems(PoolSpec("p", "/x"), [], {"h1": {"skew_s": 90.0}})


def test_cli_pool_up_status_down_audit(home, tmp_path, run_cli):
    flags = ["--disk", f"{tmp_path}/{{node}}", "--nodes", "2"]
    up = run_cli("pool", "up", *flags)
    assert up.code == 0, up.err
    assert "ready in" in up.out
    assert "was up already" in run_cli("pool", "up", *flags).out
    other = run_cli("pool", "up", "--disk", f"{tmp_path}/x-{{node}}", "--nodes", "2")
    assert (other.code, "running with different nodes or settings" in other.err) == (3, True)
    assert run_cli("pool", "status").code == 0
    assert run_cli("pool", "audit").code == 1
    assert run_cli("pool", "down").code == 0
    assert "it is not recorded" in run_cli("pool", "down").out
    assert run_cli("pool", "audit", *flags).code == 0
    nothing = run_cli("pool", "audit")
    assert (nothing.code, "no pool `pool` is recorded on this machine" in nothing.err) == (2, True)
    assert run_cli("pool", "status").code == 3


def test_mount_tells_how_lustre_stripes_where_its_tool_is(home, tmp_path, monkeypatch):
    # Output of `lfs getstripe -d` in Lustre 2.15: a folder's default layout.
    tool = tmp_path / "bin/lfs"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'stripe_count:  4 stripe_size:   1048576 pattern:       0 stripe_offset: -1'\n")
    tool.chmod(0o755)
    spec = PoolSpec("p", f"{tmp_path}/shared")
    for path, want in ((f"{tool.parent}:{os.environ['PATH']}", {"stripes": 4, "stripe_bytes": 1 << 20}), (None, {})):
        if path:
            monkeypatch.setenv("PATH", path)
        else:
            tool.unlink()
        with Cluster.open("local", {"nodes": 2}) as cluster:
            pool, _ = lifecycle.up(cluster, spec, "mount", {}, timeout_s=60)
            found = lifecycle.find("p")
            assert found is not None
            lifecycle.down(cluster, found, timeout_s=60)
        assert {name: value for name, value in pool.facts.items() if name != "root"} == want
