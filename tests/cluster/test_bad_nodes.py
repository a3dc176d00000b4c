# SPDX-License-Identifier: Apache-2.0
"""Nodes in trouble, seen from `penstock run`: one clear error that names the node, and nothing left. Issue 5, bad input."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.cluster import pools
from penstock.launchers.hosts import Hosts

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
    """`job(command, ...)`: a job file over two objects."""
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
    # Time is not in namespaces: the one host's Python is told another.
    site = 'import os, time\nreal = time.time\nif os.uname().nodename == "h2":\n    time.time = lambda: real() + 300\n'
    (tmp_path / "sitecustomize.py").write_text(site)
    with Hosts.up(f"t{uuid4().hex[:8]}", 2) as hosts:
        file = job("true", cluster=f'settings = {{ hosts = "{hosts.name}" }}', disk=hosts.own_disk)
        told = run_cli("run", file, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
        assert told.code == 3
        assert "h2: its clock is +300 s from this machine's" in told.err
        assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2")] == [[], []]
    assert pools.names() == []


def test_second_job_of_one_name_on_the_same_nodes_is_refused_and_the_first_goes_on(job, run_cli, tmp_path):
    file = job(f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    first = subprocess.Popen(
        [_PROGRAM, "run", file, "--quiet"], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    # Another user, or another login node: it knows nothing of the first one's pool.
    other = {"XDG_STATE_HOME": str(tmp_path / "other")}
    told = run_cli("run", file, "--runs", tmp_path / "others", cwd=tmp_path, env=other)
    assert told.code in (1, 3)
    assert "n0: " in told.err
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
        told = run_cli("run", file, cwd=tmp_path)
        assert (told.code, "pool up" in told.out, "h2: " in told.err) == (3, True, True), told.err
        assert list(hosts.disk("h1").iterdir()) == []
