# SPDX-License-Identifier: Apache-2.0
"""Tests the `local` launcher: the suite on processes and on hosts, and features that need hosts. Issue 5, point 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from uuid import uuid4

import pytest

from penstock.errors import ConfigError, Denied, NotFound, Unreachable
from penstock.launchers import netns_hosts as hosts_module
from penstock.launchers.local import LocalLauncher, launcher
from penstock.launchers.netns_hosts import Hosts
from penstock.ownership import start_time
from penstock.protocols import RunRequest
from penstock.testing import LauncherSuite


def _name() -> str:
    return f"t{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def hosts():
    with Hosts.up(_name(), 3, rate_bytes_per_s=100e6) as up:
        yield up


def _checks():
    return [name for name in dir(LauncherSuite) if name.startswith("check_")]


@pytest.mark.parametrize("check", _checks())
def test_local_processes_pass_the_suite(check, tmp_path):
    made = launcher({"nodes": 3}, os.environ)
    getattr(LauncherSuite(made, str(tmp_path / "there"), tmp_path, is_shared=True), check)()
    made.close()


@pytest.mark.needs_root
@pytest.mark.parametrize("check", _checks())
def test_local_hosts_pass_the_suite(check, hosts, tmp_path):
    made = launcher({"hosts": hosts.name}, os.environ)
    getattr(LauncherSuite(made, f"{hosts.own_disk}/suite", tmp_path, is_shared=False), check)()
    made.close()


@pytest.mark.needs_root
def test_hosts_have_names_disks_and_processes_of_their_own_and_reach_each_other(hosts):
    made = LocalLauncher(os.environ, nodes=0, hosts=hosts)
    text = """
import os, socket, sys
print(socket.gethostname(), socket.gethostbyname(sys.argv[1]), "mine" in os.listdir(sys.argv[2]))
"""
    (hosts.disk("h2") / "mine").write_bytes(b"")
    exits = made.run(RunRequest([sys.executable, "-c", text, "h3", hosts.own_disk], made.nodes(), timeout_s=30))
    address = hosts.nodes()[2].address
    assert [e.out.decode().split() for e in exits] == [
        ["h1", address, "False"], ["h2", address, "True"], ["h3", address, "False"],
    ]  # fmt: skip
    (hosts.disk("h2") / "mine").unlink()


@pytest.mark.needs_root
def test_hosts_with_a_latency_delay_each_message(tmp_path):
    latency_s = 5e-3  # far more than a message takes without it
    echo = (
        "import socket; link, _ = socket.create_server(('', 7)).accept()\nwhile byte := link.recv(1): link.send(byte)"
    )
    ping = """
import socket, statistics, sys, time
while True:
    try:
        link = socket.create_connection((sys.argv[1], 7), timeout=20)
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
times = []
for _ in range(30):
    start = time.perf_counter()
    link.send(b"x")
    assert link.recv(1) == b"x"
    times.append(time.perf_counter() - start)
print(statistics.median(times) / 2)
"""
    with Hosts.up(_name(), 2, rate_bytes_per_s=125e6, latency_s=latency_s) as up:
        server = subprocess.Popen(up.enter("h2", [sys.executable, "-c", echo]))
        done = subprocess.run(
            up.enter("h1", [sys.executable, "-c", ping, up.nodes()[1].address]),
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        server.wait(timeout=30)
    assert done.returncode == 0, done.stderr
    # A round trip takes one period of the timers, or two.
    assert float(done.stdout) > 0.45 * latency_s


@pytest.mark.parametrize("latency_s", [-1.0, 1e-6, 0.2, float("nan")])
def test_hosts_with_an_impossible_latency_are_refused(latency_s, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="latency: "):
        Hosts.up(_name(), 2, latency_s=latency_s)


@pytest.mark.needs_root
def test_host_that_is_killed_takes_its_processes_along_and_is_named(tmp_path):
    with Hosts.up(_name(), 2) as up:
        made = LocalLauncher(os.environ, nodes=0, hosts=up)
        text = "setsid sleep 1234567 > /dev/null 2>&1 & sleep 0.5"
        started = made.run(RunRequest(["sh", "-c", text], made.nodes(), timeout_s=30))
        assert [e.code for e in started] == [0, 0]
        assert _sleeping() == 2
        up.kill("h2")
        _await(lambda: _sleeping() == 1)
        ended = made.run(RunRequest(["hostname"], made.nodes(), timeout_s=30))
        assert (ended[0].out, ended[1].code) == (b"h1\n", None)
        assert isinstance(ended[1].fault, Unreachable)
        assert "h2" in str(ended[1].fault)
    _await(lambda: _sleeping() == 0)


def _sleeping() -> int:
    found = subprocess.run(["pgrep", "-fc", "^sleep 1234567"], capture_output=True, text=True, check=False)
    return int(found.stdout)


def _await(condition, limit_s: float = 10) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.needs_root
def test_host_whose_link_is_cut_is_there_but_not_reached(hosts):
    made = LocalLauncher(os.environ, nodes=0, hosts=hosts)
    text = "import socket, sys; socket.create_connection((sys.argv[1], 9), 1)"
    line = [sys.executable, "-c", text, hosts.nodes()[1].address]
    [near] = made.run(RunRequest(line, hosts.nodes()[:1], timeout_s=30))
    assert b"refused" in near.err
    hosts.cut("h2")
    [cut] = made.run(RunRequest(line, hosts.nodes()[:1], timeout_s=30))
    assert b"timed out" in cut.err
    hosts.cut("h2", is_up=True)


@pytest.mark.needs_root
def test_hosts_that_stay_are_found_and_ended_by_another_process(tmp_path):
    name = _name()
    code = f"from penstock.launchers.netns_hosts import Hosts; Hosts.up({name!r}, 2, stays=True)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    try:
        with pytest.raises(ConfigError, match="already exists"):
            Hosts.up(name, 2)
        made = launcher({"hosts": name, "nodes": "2"}, os.environ)
        assert [e.out for e in made.run(RunRequest(["hostname"], made.nodes(), timeout_s=30))] == [b"h1\n", b"h2\n"]
        with pytest.raises(ConfigError, match="has 2 emulated hosts"):
            launcher({"hosts": name, "nodes": 3}, os.environ)
    finally:
        Hosts.attach(name).down()
    with pytest.raises(NotFound, match="does not exist"):
        Hosts.attach(name)
    assert not (hosts_module._STATE / name).exists()


@pytest.mark.needs_root
def test_hosts_end_with_the_process_that_made_them():
    code = f"""
import os, signal
from penstock.launchers.netns_hosts import Hosts
up = Hosts.up({_name()!r}, 1)
print(up._state["pids"]["h1"][0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    pid = int(done.stdout)
    until = time.monotonic() + 10
    while start_time(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert start_time(pid) == 0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"nodes": 0}, "between 1 and 1024"),
        ({"nodes": "x"}, "must be a whole number"),
        ({"colour": 1}, "unknown setting `colour`"),
        ({"nodes": True}, "must be a whole number"),
    ],
)
def test_local_bad_setting_is_refused(settings, word):
    with pytest.raises(ConfigError, match=word):
        launcher(settings, os.environ)


@pytest.mark.parametrize(("name", "count"), [("Bad/Name", 2), ("ok", 0), ("ok", 65), ("", 1)])
def test_hosts_that_cannot_be_are_refused(name, count):
    with pytest.raises(ConfigError):
        Hosts.up(name, count)


# ---------------------------------------------------------------- processes and state of others


@pytest.mark.needs_root
@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "", "A"])
def test_hosts_of_a_name_that_cannot_be_are_not_attached_to(name, run_cli):
    with pytest.raises(ConfigError, match="is not a valid name"):
        Hosts.attach(name)
    ended = run_cli("cluster", "rehearse", name, "--end")
    assert (ended.code, "is not a valid name" in ended.err) == (2, True), ended.err


@pytest.mark.needs_root
def test_hosts_state_that_others_could_write_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts_module, "_STATE", tmp_path / "run")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "hosts.json").write_text(json.dumps({"pids": {"h1": [os.getpid(), 1]}, "subnet": "", "rate": None}))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/link").symlink_to(victim)
    (tmp_path / "run/loose").mkdir()
    (tmp_path / "run/loose").chmod(0o777)
    (tmp_path / "run/other").mkdir()
    os.chown(tmp_path / "run/other", 65534, -1)
    for name, words in (("link", "is a link"), ("loose", "is writable by other users"), ("other", "user 65534")):
        with pytest.raises(Denied, match=words):
            Hosts.attach(name)
    hosts_module._clear_dead()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["link", "loose", "other"]
    assert (victim / "hosts.json").exists()


@pytest.mark.needs_root
def test_command_for_a_host_whose_number_was_taken_by_another_process_runs_nowhere(tmp_path):
    with Hosts.up(_name(), 1) as up:
        pid, at = up._state["pids"]["h1"]
        up._state["pids"]["h1"] = (os.getpid(), at + 1)
        done = subprocess.run(up.enter("h1", ["touch", str(tmp_path / "ran")]), capture_output=True, check=False)
        up._state["pids"]["h1"] = (pid, at)
        assert (done.returncode != 0, list(tmp_path.iterdir())) == (True, [])
        subprocess.run(up.enter("h1", ["true"]), check=True)


@pytest.mark.needs_root
def test_hosts_process_whose_number_was_taken_by_another_is_not_killed():
    """The stranger's start time matches the state file, but it does not carry the hosts' mark."""
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        with Hosts.up(_name(), 1) as up:
            held = dict(up._state["pids"])
            up._state["pids"]["h1"] = (stranger.pid, start_time(stranger.pid))
            up.kill("h1")
            assert stranger.poll() is None
            up._state["pids"] = held
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
