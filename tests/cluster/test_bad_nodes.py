# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock run` with faulty nodes: one clear error names the node, and nothing remains on other nodes.

Issue 5, bad input.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.cluster import Cluster
from penstock.launchers.netns_hosts import Hosts
from penstock.pool import lifecycle

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
from sshd_kit import Sshds

_PROGRAM = Path(sys.executable).with_name("penstock")
_JOB = """
name = "{name}"
[cluster]
nodes = 2
{cluster}
[pool]
disk = "{disk}"
[stage]
source = "{folder}/set"
[run]
argv = ["sh", "-c", "{command}"]
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(command, ...)` writes a job file over two objects."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "set").mkdir()
    for name in "ab":
        (tmp_path / "set" / name).write_bytes(b"x" * 1000)

    def write(command: str, *, name: str = "job", cluster: str = "", disk: str = "") -> Path:
        path = tmp_path / f"{name}.toml"
        disk = disk or f"{tmp_path}/disk-{{node}}"
        path.write_text(_JOB.format(name=name, cluster=cluster, disk=disk, folder=tmp_path, command=command))
        return path

    return write


@pytest.mark.needs_root
def test_job_on_a_node_whose_clock_is_off_is_refused_by_its_name(job, run_cli, tmp_path):
    # Namespaces do not isolate the clock, so a patched `time.time` makes Python on h2 see another time.
    site = 'import os, time\nreal = time.time\nif os.uname().nodename == "h2":\n    time.time = lambda: real() + 300\n'
    (tmp_path / "sitecustomize.py").write_text(site)
    with Hosts.up(f"t{uuid4().hex[:8]}", 2) as hosts:
        file = job("true", cluster=f'settings = {{ hosts = "{hosts.name}" }}', disk=hosts.own_disk)
        result = run_cli("run", file, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
        assert result.code == 3
        assert "h2: its clock differs by +300 s from this machine's" in result.err
        assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2")] == [[], []]
    assert lifecycle.names() == []


def test_second_job_of_one_name_on_the_same_nodes_is_refused_and_the_first_goes_on(job, run_cli, tmp_path):
    file = job(f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    first = subprocess.Popen(
        [_PROGRAM, "run", file, "--quiet"], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    # The state folder of another user or login node, which has no record of the first pool.
    other = {"XDG_STATE_HOME": str(tmp_path / "other")}
    result = run_cli("run", file, "--output", tmp_path / "others", cwd=tmp_path, env=other)
    assert result.code in (1, 3)
    assert "n0: " in result.err
    own = run_cli("run", job("true", name="another"), cwd=tmp_path, env=other)
    assert own.code == 0, own.err
    (tmp_path / "go").touch()
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert "pool down: done" in out
    assert list(tmp_path.glob("disk-*/*")) == []


@pytest.mark.needs_root
def test_job_on_a_host_that_is_gone_names_it_and_leaves_nothing_on_the_others(job, run_cli, tmp_path):
    with Hosts.up(f"t{uuid4().hex[:8]}", 2) as hosts:
        hosts.kill("h2")
        file = job("true", cluster=f'settings = {{ hosts = "{hosts.name}" }}', disk=hosts.own_disk)
        result = run_cli("run", file, cwd=tmp_path)
        assert (result.code, "pool up" in result.out, "h2: " in result.err) == (3, True, True), result.err
        assert list(hosts.disk("h1").iterdir()) == []


@pytest.mark.needs_root
def test_job_on_a_node_whose_disk_fills_up_names_it_and_leaves_nothing(job, run_cli, tmp_path):
    for name in "cdefgh":
        (tmp_path / "set" / name).write_bytes(os.urandom(1_000_000))
    with Hosts.up(f"t{uuid4().hex[:8]}", 2) as hosts, Cluster.open("local", {"hosts": hosts.name}) as cluster:
        small = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", hosts.own_disk]
        assert cluster.run(small, on=[cluster.node("h2")], timeout_s=30)[0].code == 0
        file = job("true", cluster=f'settings = {{ hosts = "{hosts.name}" }}', disk=hosts.own_disk)
        result = run_cli("run", file, cwd=tmp_path)
        assert (result.code, "stage: h2: " in result.err, "no-space" in result.err) == (1, True, True), result.err
        left = cluster.run(["ls", "-A", hosts.own_disk], timeout_s=30)
        assert [ended.out for ended in left] == [b"", b""]
    assert lifecycle.names() == []


@pytest.fixture(scope="module")
def sshds(tmp_path_factory):
    made = Sshds(tmp_path_factory.mktemp("sshd"), 2)
    yield made
    made.close()


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        ("nobody listens", "Connection refused"),
        ("no such name", "not known|resolution"),
        ("wrong key", "the ssh keys were rejected"),
        ("unknown host key", "does not contain the host key"),
        ("hangs", "[Tt]imeout|not answered|no response"),
    ],
)
def test_pool_by_ssh_with_a_bad_node_names_it_and_leaves_nothing_on_the_other(
    trouble, word, sshds, run_cli, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    good, bad = sshds.nodes.split(",")
    settings = sshds.settings(connect_s=3)
    bad = {"nobody listens": "127.0.0.1:9", "no such name": "no-such-host.invalid"}.get(trouble, bad)
    admitted = sshds.folder / "authorized1"
    was = admitted.read_bytes()
    if trouble == "wrong key":
        admitted.write_bytes((sshds.folder / "stranger.pub").read_bytes())
    if trouble == "unknown host key":
        known = (sshds.folder / "known").read_text().splitlines()
        (tmp_path / "known").write_text(known[0] + "\n")
        settings["known_hosts"] = str(tmp_path / "known")
    if trouble == "hangs":
        sshds.processes[1].send_signal(signal.SIGSTOP)
    result = [word for name, value in settings.items() if name != "nodes" for word in ("--set", f"{name}={value}")]
    line = [
        "pool",
        "up",
        "--launcher",
        "ssh",
        "--nodes",
        f"{good},{bad}",
        *result,
        "--disk",
        f"{tmp_path}/disk-{{node}}",
    ]
    began = time.monotonic()
    try:
        ran = run_cli(*line, "--timeout", "30s")
    finally:
        admitted.write_bytes(was)
        sshds.processes[1].send_signal(signal.SIGCONT)
    assert ran.code == 3, ran.err
    assert re.search(rf"{re.escape(bad)}: .*({word})", ran.err), ran.err
    assert time.monotonic() - began < 60
    assert list(tmp_path.glob("disk-*/*")) == []
    assert lifecycle.names() == []


def test_pool_that_wants_java_names_the_nodes_that_have_none(run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "bin").mkdir()
    for program in ("python3", "sh"):
        (tmp_path / "bin" / program).symlink_to(f"/usr/bin/{program}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    line = ["--engine", "hdfs", "--disk", f"{tmp_path}/disk-{{node}}", "--nodes", "2"]
    ran = run_cli("pool", "up", *line)
    assert (ran.code, "n0: Java (11 or 17) is not installed (and 1 more)" in ran.err) == (3, True), ran.err
    assert list(tmp_path.glob("disk-*")) == []
    assert lifecycle.names() == []
