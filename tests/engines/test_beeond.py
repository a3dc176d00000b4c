# SPDX-License-Identifier: Apache-2.0
"""Tests the `beeond` engine with a stand-in that accepts BeeOND's command-line grammar.

The stand-in is the file `beeond` in this folder; BeeGFS itself cannot run here.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from penstock.engines.beeond import start_line, stop_line
from penstock.errors import ConfigError, PenstockError, SystemFault, Unsupported
from penstock.pool import engine_registry, lifecycle
from penstock.protocols import PoolSpec
from penstock.testing import EngineSuite

_STANDIN = Path(__file__).with_name("beeond")


@pytest.fixture
def standin(monkeypatch, tmp_path):
    """`standin(trouble)` sets how the next `beeond` call fails; returns all command lines so far."""
    monkeypatch.setenv("PATH", f"{_STANDIN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_VERSION", "8")
    monkeypatch.setenv("STANDIN_HOSTS", str(tmp_path))
    monkeypatch.setenv("STANDIN_LOG", str(tmp_path / "lines"))

    def do(trouble: str = "") -> list[list[str]]:
        path = tmp_path / "lines"
        if trouble:
            path.with_name("lines.trouble").write_text(trouble)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return do


@pytest.fixture
def mounted(standin, monkeypatch, hosts):
    monkeypatch.setenv("STANDIN_HOSTS", str(hosts.folder))
    return standin


@pytest.mark.needs_root
def test_beeond_stand_in_passes_the_suite(mounted, hosts, cluster, tmp_path):
    EngineSuite("beeond", {}, cluster, hosts.own_disk, tmp_path, shared=True).run()
    first, last = mounted()[0], mounted()[-1]
    root = f"{hosts.own_disk}/penstock-pool-suite-{os.getpid()}"
    assert first == [
        "start", "-n", f"{root}/conf/nodes", "-d", f"{root}/data", "-c", f"{root}/mnt", "-i", f"{root}/beeond.status",
        "-L", f"{root}/logs", "-F", "-m", "1", "-p", "1000", "-q",
    ]  # fmt: skip
    assert last == ["stop", "-n", f"{root}/conf/nodes", "-i", f"{root}/beeond.status", "-L", "-d", "-q"]
    assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2", "h3")] == [[], [], []]


@pytest.mark.needs_root
@pytest.mark.parametrize(("trouble", "words"), [("hang", "did not end within"), ("half", "beegfs-meta did not start")])
def test_beeond_that_hangs_or_breaks_is_cleaned_up_within_the_deadline(trouble, words, mounted, hosts, cluster):
    mounted(trouble)
    with pytest.raises(PenstockError, match=words):
        lifecycle.up(cluster, PoolSpec("p", hosts.own_disk), "beeond", {}, timeout_s=20)
    assert any(line[0] == "stop" for line in mounted())
    assert trouble != "half" or "-c" in mounted()[-1]
    assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2", "h3")] == [[], [], []]
    assert lifecycle.names() == []


@pytest.mark.needs_root
def test_beeond_whose_stop_fails_is_stopped_by_its_clean_up(mounted, hosts, cluster):
    lifecycle.up(cluster, PoolSpec("p", hosts.own_disk), "beeond", {}, timeout_s=60)
    mounted("stop")
    record = lifecycle.find("p")
    assert record is not None
    assert lifecycle.down(cluster, record, timeout_s=60).unreached == ()
    assert ["-c" in line for line in mounted()[-2:]] == [False, True]
    assert [found["left"] for found in lifecycle.audit(cluster, record, timeout_s=60).receipts.values()] == [
        [],
        [],
        [],
    ]


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        (8, {}),
        (7, {"version": 7, "storage_servers": 2, "pdsh": True, "pdsh_program": "/opt/pdsh", "tmpfs": True}),
        (7, {"version": 7, "mirrors_storage": True, "mirrors_metadata": True, "targets": "/t"}),
        (8, {"config": "/c", "license": "/l.pem", "mirrors_storage": True, "mirrors_metadata": True, "targets": "/t"}),
        (8, {"config": "/c", "auth": "/a", "tls": "/t.pem", "grpc_port": 8011, "prefers_local": True}),
    ],
)
def test_beeond_lines_are_what_its_grammar_takes(version, settings, standin, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_VERSION", str(version))
    root = tmp_path / "h1/penstock-pool-p"
    for folder in ("conf", "mnt"):
        (root / folder).mkdir(parents=True)
    (root / "conf/nodes").write_text("10.0.0.1\n")
    output = engine_registry.load("beeond", settings)._settings  # type: ignore[attr-defined]
    spelt = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    assert engine_registry.load("beeond", spelt)._settings == output  # type: ignore[attr-defined]
    lines = [start_line(str(root), output), stop_line(str(root), output, keep_data=False, cleans_up=True)]
    for line in lines:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"version": 9}, ConfigError, "neither 7 nor 8"),
        ({"version": 7, "license": "/l"}, Unsupported, "BeeOND 7 does not support license"),
        ({"mirrors_storage": True}, Unsupported, "mirrors_storage is an enterprise feature of BeeGFS 8"),
        ({"targets": "/t"}, Unsupported, "requires a licence"),
        ({"license": "/l"}, ConfigError, "license requires the setting `config`"),
        ({"pdsh_program": "/p"}, ConfigError, "pdsh_program has no effect unless"),
    ],
)
def test_beeond_settings_that_cannot_be_are_refused_with_the_reason(settings, kind, words):
    with pytest.raises(kind, match=words):
        engine_registry.load("beeond", settings)


def test_beeond_says_what_nodes_lack():
    facts = {"h1": {"programs": {"beeond": "/opt/beegfs/sbin/beeond"}, "user": 0}, "h2": {"programs": {}, "user": 7}}
    made = engine_registry.load("beeond", {})
    assert made.probe(PoolSpec("p", "/x"), facts) == [
        "h2: beeond is not installed (package `beeond` of BeeGFS)",
        "h2: BeeOND requires root to mount, but the user is 7",
    ]
    assert "2 copies require mirrors_storage" in made.probe(PoolSpec("p", "/x", copies=2), {})[0]
    with pytest.raises(SystemFault, match=r"enterprise|licensed"):
        lifecycle._raise_for_problems(PoolSpec("p", "/x"), made.probe(PoolSpec("p", "/x", copies=2), {}), {})


@pytest.mark.parametrize(("name", "words"), [("aistore", "AWS_ENDPOINT_URL_S3"), ("juicefs", "--engine mount")])
def test_engine_that_is_a_service_says_how_it_is_used(name, words, run_cli, tmp_path):
    ran = run_cli("pool", "up", "--engine", name, "--disk", tmp_path)
    assert (ran.code, words in ran.err) == (3, True), ran.err
