# SPDX-License-Identifier: Apache-2.0
"""Tests the `ssh` launcher on real sshds: suite, keys, agent, jump hosts, lost and hung nodes. Issue 5, point 1."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import ConfigError, Deadline, Denied, Unreachable
from penstock.launchers.ssh import launcher
from penstock.protocols import RunRequest
from penstock.testing import LauncherSuite

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sshd_kit import Sshds

from tests.ports import free_port


@pytest.fixture(scope="module")
def sshds(tmp_path_factory):
    made = Sshds(tmp_path_factory.mktemp("sshd"), 3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def csh_nodes(tmp_path_factory):
    made = Sshds(tmp_path_factory.mktemp("csh"), 2, shell="tcsh")
    yield made
    made.close()


@pytest.fixture
def ssh(sshds, tmp_path):
    """`ssh(**settings)` makes a launcher for a user with an empty home; it is closed with the test."""
    with ExitStack() as held:

        def make(*, drop: tuple[str, ...] = (), environment: dict[str, str] | None = None, **more):
            settings = {name: value for name, value in sshds.settings(**more).items() if name not in drop}
            made = launcher(settings, {"HOME": str(tmp_path), **(environment or {})})
            held.callback(made.close)
            return made

        yield make


@pytest.mark.needs_root
@pytest.mark.parametrize("check", [name for name in dir(LauncherSuite) if name.startswith("check_")])
def test_ssh_passes_the_suite(check, ssh, tmp_path):
    getattr(LauncherSuite(ssh(), str(tmp_path / "there"), tmp_path, is_shared=True), check)()


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "check",
    [
        "check_arguments_arrive_unchanged", "check_environment_and_stdin_arrive_and_stay_off_command_lines",
        "check_every_rank_runs_once_in_order", "check_copies_are_whole_and_come_back",
    ],
)  # fmt: skip
def test_ssh_passes_the_suite_where_the_login_shell_is_csh(check, csh_nodes, tmp_path):
    made = launcher(csh_nodes.settings(), {"HOME": str(tmp_path)})
    try:
        getattr(LauncherSuite(made, str(tmp_path / "there"), tmp_path, is_shared=True), check)()
    finally:
        made.close()


def _fault(made) -> Exception:
    exits = made.run(RunRequest(["true"], made.nodes(), timeout_s=20))
    assert all(e.code is None for e in exits), exits
    assert all(e.node in str(e.fault) for e in exits)
    return exits[0].fault


@pytest.mark.needs_root
def test_ssh_wrong_key_is_denied(ssh, sshds):
    fault = _fault(ssh(key=str(sshds.folder / "stranger")))
    assert isinstance(fault, Denied)
    assert "the ssh keys were rejected" in str(fault)


@pytest.mark.needs_root
def test_ssh_unknown_host_key_is_refused_and_no_setting_accepts_it(ssh, sshds, tmp_path):
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshds.ports[0]} {(sshds.folder / 'stranger.pub').read_text()}")
    fault = _fault(ssh(known_hosts=str(tmp_path / "known")))
    assert isinstance(fault, Denied)
    assert "known does not contain the host key" in str(fault)
    nothing = _fault(ssh(drop=("known_hosts",)))
    assert isinstance(nothing, Denied)
    assert "does not exist" in str(nothing)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_bytes((sshds.folder / "known").read_bytes())
    (tmp_path / ".ssh/config").write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
    assert isinstance(_fault(ssh(known_hosts=str(tmp_path / "known"))), Denied)


@pytest.mark.needs_root
def test_ssh_one_bad_node_does_not_hide_the_others(ssh, sshds):
    port = free_port()
    made = ssh(nodes=f"{sshds.nodes},127.0.0.1:{port},no-such-host.invalid")
    exits = made.run(RunRequest(["echo", "x"], made.nodes(), timeout_s=20))
    assert [e.out for e in exits] == [b"x\n"] * 3 + [b"", b""]
    assert [type(e.fault) for e in exits[3:]] == [Unreachable, Unreachable]
    assert f"127.0.0.1:{port}" in str(exits[3].fault)
    assert "no-such-host.invalid" in str(exits[4].fault)


@pytest.mark.needs_root
def test_ssh_agent_and_jump_host_are_used(ssh, sshds, tmp_path):
    output = subprocess.run(
        ["ssh-agent", "-c", "-a", str(tmp_path / "agent")], capture_output=True, text=True, check=True
    )
    pid = int(output.stdout.split("SSH_AGENT_PID")[1].split(";")[0])
    agent = {"SSH_AUTH_SOCK": str(tmp_path / "agent")}
    try:
        subprocess.run(
            ["ssh-add", "-q", str(sshds.folder / "mine")], env={**os.environ, **agent}, check=True, timeout=20
        )
        made = ssh(drop=("key",), environment=agent, nodes=f"127.0.0.1:{sshds.ports[1]}")
        assert made.run(RunRequest(["echo", "by agent"], made.nodes(), timeout_s=20))[0].out == b"by agent\n"
    finally:
        os.kill(pid, signal.SIGTERM)
    far = ssh(nodes=f"127.0.0.1:{sshds.ports[1]}", jump=f"127.0.0.1:{sshds.ports[0]}")
    [ended] = far.run(RunRequest(["sh", "-c", "echo $SSH_CONNECTION"], far.nodes(), timeout_s=20))
    assert ended.out.split()[3:] == [str(sshds.ports[1]).encode()], ended
    # Through a jump host, the connection comes from the first sshd. A wrong jump host causes an error.
    assert "no-way" in str(_fault(ssh(nodes=f"127.0.0.1:{sshds.ports[1]}", jump="no-way.invalid")))


@pytest.mark.needs_root
def test_ssh_node_that_hangs_is_told_at_the_deadline(ssh, sshds):
    with socket.socket() as silent:  # accepts connections, but never responds
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        made = ssh(nodes=f"127.0.0.1:{silent.getsockname()[1]}", connect_s="2")
        fault = _fault(made)
    assert isinstance(fault, (Deadline, Unreachable))


@pytest.mark.needs_root
def test_ssh_connection_that_ends_under_way_is_told_and_made_again(ssh, sshds):
    made = ssh(nodes=f"127.0.0.1:{sshds.ports[0]}")
    # The command's parent is the remote wrapper, whose parent is this connection's sshd process.
    text = "echo begun; sleep 0.5; kill -9 $(ps -o ppid= -p $PPID); sleep 60"
    [ended] = made.run(RunRequest(["sh", "-c", text], made.nodes(), timeout_s=30))
    assert (ended.code, type(ended.fault)) == (None, Unreachable), ended
    assert made.nodes()[0].name in str(ended.fault)
    assert made.run(RunRequest(["echo", "x"], made.nodes(), timeout_s=20))[0].out == b"x\n"


@pytest.mark.parametrize(
    "nodes",
    ["", " , ", "a b", "-oProxyCommand=x", "h1,h1", "h1:0", "h1:99999", "u@", "@/no/such/file", "h1;id", "a@b@c"],
)
def test_ssh_bad_nodes_are_refused(nodes, ssh):
    with pytest.raises(ConfigError):
        ssh(nodes=nodes)


def test_ssh_nodes_come_from_a_file_with_users_ports_and_comments(ssh, tmp_path):
    (tmp_path / "nodes").write_text("# mine\nh1\nalice@h2:2222 # far\n\n[::1]:23\n")
    made = ssh(nodes=f"@{tmp_path}/nodes")
    assert [(n.name, n.address) for n in made.nodes()] == [("h1", "h1"), ("h2:2222", "h2"), ("::1:23", "::1")]
    assert made.line(RunRequest(["hostname"], made.nodes()[1:2]))[0][:2] == ["ssh", "alice@h2:2222"]
