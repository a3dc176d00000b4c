# SPDX-License-Identifier: Apache-2.0
"""Tests the cluster commands (API and CLI), and that third-party launchers are loaded through their entry point.

Issue 5, points 1 and 2.
"""

from __future__ import annotations

import json
import re
import sys
from uuid import uuid4

import pytest

from penstock.cluster import Cluster, raise_for_failures
from penstock.cluster.cluster import launcher_names
from penstock.cluster.exits import describe, first_failure
from penstock.cluster.facts import gather_facts
from penstock.errors import ConfigError, Deadline, Interrupted, NotFound, PenstockError, RankFailed
from penstock.launchers.netns_hosts import Hosts
from penstock.pool import engine_registry
from penstock.protocols import Exit
from penstock.testing import LauncherSuite

_STRANGER = """
import subprocess
from penstock.launchers.local import LocalLauncher

def launcher(settings, environment):
    return LocalLauncher(environment, nodes=int(settings.get("nodes", 2)), hosts=None)

def broken(settings, environment):
    return object()
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A third-party package with a launcher, as pip would install it."""
    (tmp_path / "stranger.py").write_text(_STRANGER)
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock.launchers]\nmine = stranger:launcher\nbroken = stranger:broken\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("stranger", None)


@pytest.fixture
def cluster():
    with Cluster.open("local", {"nodes": 3}) as made:
        yield made


def test_verbs_reach_all_the_leader_and_those_that_are_named(cluster, tmp_path):
    assert [e.out for e in cluster.run(["echo", "{node}"], expand_placeholders=True)] == [b"n0\n", b"n1\n", b"n2\n"]
    assert cluster.run_on_leader(["echo", "x"]).node == "n0"
    assert [e.node for e in cluster.run(["true"], on=[cluster.node("n2")])] == ["n2"]
    (tmp_path / "a").write_bytes(b"abc")
    raise_for_failures(cluster.copy_to_all(tmp_path / "a", str(tmp_path / "b")), "copy")
    raise_for_failures([cluster.copy_from_leader(str(tmp_path / "b"), tmp_path / "c")], "copy")
    assert (tmp_path / "c").read_bytes() == b"abc"
    assert cluster.barrier() >= 0
    with pytest.raises(NotFound, match="unknown node `n9`; the nodes are n0, n1, n2"):
        cluster.node("n9")
    with pytest.raises(NotFound):
        Cluster.open("local", {"nodes": 3}, only=["n1", "nx"])


def test_logs_hold_every_line_of_a_node_with_rank_and_stream(cluster, tmp_path):
    cluster.run(
        ["sh", "-c", "echo out-{rank}; echo err >&2"],
        ranks_per_node=2,
        expand_placeholders=True,
        logs=tmp_path / "logs",
    )
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["n0.log", "n1.log", "n2.log"]
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "logs/n1.log").read_text().splitlines()]
    assert sorted(lines) == ["2 err err", "2 out out-2", "3 err err", "3 out out-3"]


def test_check_names_the_first_node_in_trouble_and_counts_the_others():
    good, bad = Exit("h1", 0, 0), Exit("h2", 1, 7, err=b"first\nlast\n")
    raise_for_failures([good], "x")
    with pytest.raises(RankFailed, match=r"^stage: h2: exit code 7: last \(and 1 more of 3\)$") as raised:
        raise_for_failures([good, bad, bad], "stage")
    assert raised.value.where == "h2"
    gone = Exit("h3", 2, None, fault=NotFound("h3: java: No such file", hint="install it"))
    with pytest.raises(NotFound, match="up: h3: java") as raised:
        raise_for_failures([bad, gone], "up")
    assert raised.value.hint == "install it"
    with pytest.raises(PenstockError, match="strange"):
        raise_for_failures([Exit("h4", 0, None, fault=OSError("strange"))], "up")


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        (Exit("h1", 0, 1, out=b"step 1\n\nERROR: no input\nLast input line: run 100\n"), "h1: exit code 1: step 1; ERROR: no input; Last input line: run 100"),
        (Exit("h1", 0, 1, out=b"step 1\n", err=b"no input\n"), "h1: exit code 1: no input"),
        (Exit("h1", 0, 1), "h1: exit code 1"),
        (Exit("h1", 0, 137, out=b"step 1\n"), "h1: killed by signal 9 (SIGKILL)"),
        (Exit("h1", 0, 139, err=b"core dumped\n"), "h1: killed by signal 11 (SIGSEGV): core dumped"),
        (Exit("h1", 0, 255), "h1: exit code 255"),
    ],
)  # fmt: skip
def test_failure_quotes_stderr_or_else_stdout_and_names_the_signal(ended, text):
    assert describe(ended) == text


def test_first_failure_is_the_cause_and_not_a_rank_that_was_stopped():
    stopped = Exit("h1", 0, None, fault=Interrupted("h1: the command was stopped"))
    late = Exit("h2", 1, None, fault=Deadline("h2: the command was stopped after its limit of 1 s"))
    failed, killed = Exit("h3", 2, 1), Exit("h4", 3, 137)
    gone = Exit("h5", 4, None, fault=NotFound("h5: java: No such file"))
    order = [gone, killed, failed, stopped]
    for at in range(len(order)):
        assert first_failure([Exit("h0", 0, 0), late, *reversed(order[at:])]) in (order[at], late)
        assert at == 3 or first_failure([late, *reversed(order[at:])]) is order[at]
    assert first_failure([Exit("h0", 0, 0)]) is None


def test_strange_launcher_comes_by_the_same_door_and_passes_the_suite(stranger, tmp_path):
    assert {"local", "ssh", "mine", "broken"} <= set(launcher_names())
    with Cluster.open("mine", {"nodes": "2"}) as made:
        assert len(made.nodes) == 2
        assert LauncherSuite(made.launcher, str(tmp_path / "there"), tmp_path, is_shared=True).run()
    with pytest.raises(
        ConfigError, match="is not a valid launcher: close, copy, fetch, line, nodes, run not implemented"
    ):
        Cluster.open("broken", {})
    with pytest.raises(ConfigError, match="no launcher `nonesuch`"):
        Cluster.open("nonesuch", {})


@pytest.mark.needs_root
def test_nodes_say_what_they_have_and_who_cannot_be_asked():
    with Hosts.up(f"t{uuid4().hex[:8]}", 3) as hosts, Cluster.open("local", {"hosts": hosts.name}) as made:
        hosts.kill("h3")
        exits, facts = gather_facts(made, timeout_s=30)
    assert list(facts) == ["h1", "h2"]
    assert exits[2].code is None
    assert facts["h2"]["host"] == "h2"
    assert facts["h2"]["cores"] > 0
    assert facts["h2"]["nics"] == {"e0": 10000}
    assert facts["h1"]["unresolved"] == []
    assert facts["h1"]["skew_s"] == 0.0
    assert any(disk["size_bytes"] > 0 for disk in facts["h1"]["disks"])


def test_cli_run_prefixes_lines_and_tells_who_failed(run_cli, tmp_path):
    ran = run_cli("cluster", "run", "--nodes", "2", "--logs", tmp_path / "l", "--", "sh", "-c", "echo hi; exit {rank}")
    assert (ran.code, sorted(ran.out.splitlines())) == (1, ["n0: hi", "n1: hi"])
    assert "error[rank-failed]: rank 1, n1: exit code 1" in ran.err
    assert (tmp_path / "l/n1.log").exists()
    result = run_cli("cluster", "run", "--nodes", "2", "--json", "--", "no-such-program")
    assert result.code == 3
    assert [row["error"] for row in json.loads(result.out)["exits"]] == [
        f"n{at}: no-such-program: No such file or directory" for at in range(2)
    ]


def test_cli_run_dry_run_prints_lines_that_a_shell_would_take(run_cli):
    ran = run_cli("cluster", "run", "--launcher", "ssh", "--nodes", "u@h1,h2", "--dry-run", "--", "echo", "a b")
    assert (ran.code, len(ran.out.splitlines())) == (0, 2), ran.err
    assert ran.out.startswith("ssh u@h1 ")


def test_cli_copy_there_and_back(run_cli, tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    assert run_cli("cluster", "copy", tmp_path / "a", tmp_path / "d/b", "--nodes", "2").code == 0
    assert run_cli("cluster", "copy", "--back", "--leader", "--nodes", "2", tmp_path / "d/b", tmp_path / "c").code == 0
    assert (tmp_path / "c").read_bytes() == b"x" * 1000
    both = run_cli("cluster", "copy", "--back", "--nodes", "2", tmp_path / "d/b", tmp_path / "c")
    assert (both.code, "2 nodes would write the same path" in both.err) == (2, True)
    none = run_cli("cluster", "copy", tmp_path / "none", tmp_path / "e", "--nodes", "2")
    assert (none.code, "does not exist" in none.err) == (3, True)


@pytest.mark.needs_root
def test_cli_rehearse_makes_hosts_that_other_commands_reach(run_cli):
    name = f"t{uuid4().hex[:8]}"
    made = run_cli("cluster", "rehearse", name, "--nodes", "2", "--rate", "800Mbit/s", "--json")
    try:
        assert made.code == 0, made.err
        assert [row["node"] for row in json.loads(made.out)["nodes"]] == ["h1", "h2"]
        ran = run_cli("cluster", "run", "--set", f"hosts={name}", "--", "hostname")
        assert sorted(ran.out.splitlines()) == ["h1: h1", "h2: h2"], ran.err
        listed = run_cli("cluster", "nodes", "--set", f"hosts={name}", "--json")
        assert [row["facts"]["host"] for row in json.loads(listed.out)["nodes"]] == ["h1", "h2"], listed.err
        people = run_cli("cluster", "nodes", "--set", f"hosts={name}")
        assert "cores" in people.out
    finally:
        ended = run_cli("cluster", "rehearse", name, "--end")
    assert ended.code == 0, ended.err
    again = run_cli("cluster", "rehearse", name, "--end")
    assert (again.code, "does not exist" in again.err) == (3, True)


@pytest.mark.needs_root
def test_cli_doctor_says_what_each_engine_lacks_by_node(run_cli):
    with Hosts.up(f"t{uuid4().hex[:8]}", 2) as hosts:
        flags = ["--set", f"hosts={hosts.name}", "--disk", "/nothing/mounted"]
        result = run_cli("doctor", *flags, "--copies", "5", "--json")
        assert result.code == 0, result.err  # `mount` finds the root file system
        lacks = json.loads(result.out)["missing"]
        assert lacks["local"] == []
        assert lacks["hdfs"][-1] == "5 copies require at least 5 nodes (got 2)"
        people = run_cli("doctor", *flags)
        assert "h1  " in people.out
        hosts.kill("h2")
        gone = run_cli("doctor", *flags)
        assert (gone.code, "h2" in gone.err) == (3, True)


def test_help_names_every_launcher_and_every_engine(run_cli):
    words = " ".join(run_cli("pool", "up", "--help").out.split())
    for name in {*launcher_names(), *engine_registry.names()}:
        assert re.search(rf"\b{name}\b", words), name
