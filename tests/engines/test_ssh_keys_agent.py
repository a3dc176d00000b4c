# SPDX-License-Identifier: Apache-2.0
"""Tests the key agent on a test's own ~/.ssh: it adds exactly one line, and removes exactly that. Issue 19, line 1."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.engines._remote import node_agent as agent_module
from penstock.node_program import node_program

pytestmark = pytest.mark.needs_root

_HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir, ".ssh")
_AGENTS = Path(agent_module.__file__).parent
_LEASE = "00c0ffee00c0ffee"
_MARK = f"penstock-pool-p:{_LEASE}"
_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA" + "B" * 42
_TYPE_ONLY = "ssh-ed25519 " + "A" * 68


@pytest.fixture
def ssh(tmp_path):
    """The folder that is mounted as ~/.ssh in the agents' mount namespace."""
    _HOME.mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "ssh").mkdir(mode=0o700)
    return tmp_path / "ssh"


@pytest.fixture
def ask(ssh, tmp_path):
    """`ask("authorize", key=...)` sends a request to the agent on node n0, as an engine does, and returns the response."""

    def do(verb: str, agent: str = "ssh_keys_agent", **order: Any) -> Any:
        alike = {
            "name": "p",
            "lease": _LEASE,
            "root": f"{tmp_path}/disk/penstock-pool-p",
            "address": "127.0.0.1",
            **order,
        }
        line = ["sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh", ssh, _HOME]
        done = subprocess.run(
            ["unshare", "-m", *line, sys.executable, "-c", node_program(_AGENTS / f"{agent}.py"), verb, "n0"],
            input=json.dumps({"all": alike}), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return do


@pytest.fixture
def prepared(ask):
    assert "ok" in ask("prepare", "node_agent", of="beeond", need_bytes=0)
    return ask


# ---------------------------------------------------------------- the key


def test_key_is_not_taken_from_a_folder_of_another_user(ask, ssh, tmp_path):
    """An attacker first creates the pool's folder, with a private key and a public key file of two lines."""
    keys = tmp_path / "disk/penstock-pool-p/keys"
    keys.mkdir(parents=True)
    keys.parent.parent.chmod(0o1777)
    (keys / "id").write_text("private")
    (keys / "id.pub").write_text(f"{_KEY} attacker\n{_KEY} attacker-unrestricted\n")
    for path in (keys.parent, keys, *keys.iterdir()):
        os.chown(path, 65534, 65534)
    prepared = ask("prepare", "node_agent", of="beeond", need_bytes=0)
    assert (prepared["error"], "belongs to user 65534" in prepared["text"]) == ("precondition", True)
    made = ask("make_key")
    assert (made["error"], "belongs to user 65534" in made["text"]) == ("precondition", True)
    assert list(ssh.iterdir()) == []


def test_key_is_made_once_in_the_pools_own_folder_and_read_from_its_private_half(prepared, tmp_path):
    key = prepared("make_key")["ok"]
    keys = tmp_path / "disk/penstock-pool-p/keys"
    assert (keys.stat().st_mode & 0o777, (keys / "id").stat().st_mode & 0o777) == (0o700, 0o600)
    (keys / "id.pub").write_text(f"{_KEY} x\n{_KEY} y\n")
    assert prepared("make_key")["ok"] == key
    assert key.split()[0] == "ssh-ed25519"
    assert len(key.split()) == 2
    assert "error" in prepared("make_key", lease="1" * 16)


# ---------------------------------------------------------------- authorized_keys


@pytest.mark.parametrize(
    "key",
    [f"{_KEY} attacker\n{_KEY} unrestricted", f"{_KEY} comment", f"{_KEY}\n", f'command="x" {_KEY}', _TYPE_ONLY, "ssh-rsa AAAA", ""],
)  # fmt: skip
def test_admit_takes_one_bare_key_and_nothing_else(key, ask, ssh):
    (ssh / "authorized_keys").write_text("ssh-ed25519 AAAA me\n")
    result = ask("authorize", key=key)
    assert (result["error"], "is not a valid ed25519 public key" in result["text"]) == ("system", True)
    assert (ssh / "authorized_keys").read_text() == "ssh-ed25519 AAAA me\n"


@pytest.mark.parametrize(
    "before", [None, b"", b"ssh-ed25519 AAAA me\n", b"ssh-ed25519 AAAA no-end", b"\n\n# caf\xe9\r\nx\n\n"]
)
def test_authorized_keys_gains_one_restricted_line_and_loses_exactly_that(before, ask, ssh):
    path = ssh / "authorized_keys"
    if before is not None:
        path.write_bytes(before)
        path.chmod(0o640)
    for _ in range(2):
        assert ask("authorize", key=_KEY) == {"ok": None}
    new = f"restrict {_KEY} {_MARK}".encode()
    assert path.read_bytes().split(b"\n").count(new) == 1
    assert path.read_bytes().replace(new, b"", 1).replace(b"\n", b"") in (
        (before or b"").replace(b"\n", b""), b"# made by penstock for keys of its pools",
    )  # fmt: skip
    assert ask("leftovers") == {"ok": [f"key in {_HOME}/authorized_keys"]}
    assert ask("remove") == {"ok": [f"key in {_HOME}/authorized_keys"]}
    assert (path.read_bytes() if path.exists() else None) == before
    assert before is None or path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in ssh.iterdir()] == ([] if before is None else ["authorized_keys"])


def test_lines_that_only_speak_of_the_pool_stay(ask, ssh):
    others = [
        f"# moved from {_MARK}, 3 May", f'from="10.0.0.1" restrict {_KEY} {_MARK}', f"ssh-ed25519 AAAA {_MARK}",
        f"restrict {_KEY} {_MARK} mine", f"restrict {_KEY} x{_MARK}", f"restrict {_KEY} penstock-pool-p:another",
        f"restrict {_KEY} penstock-pool-p-too:{_LEASE}",
    ]  # fmt: skip
    text = "".join(f"{line}\n" for line in others)
    (ssh / "authorized_keys").write_text(text)
    assert ask("authorize", key=_KEY) == {"ok": None}
    ask("remove")
    assert (ssh / "authorized_keys").read_text() == text
    # An empty lease matches every start of this pool, but no other line.
    assert ask("remove", lease="") == {"ok": [f"key in {_HOME}/authorized_keys"]}
    assert (ssh / "authorized_keys").read_text().splitlines() == [line for at, line in enumerate(others) if at != 5]


# ---------------------------------------------------------------- config


_OWN = "Host bastion\n  User alice\nHost *\n  Compression yes\n"


@pytest.fixture
def trusting(prepared, ssh):
    (ssh / "config").write_text(_OWN)
    prepared("make_key")
    assert prepared("add_known_hosts", hosts={"10.0.0.1": [_KEY], "h2": []}) == {"ok": None}
    return prepared


def test_config_gains_one_block_and_loses_exactly_that(trusting, ssh, tmp_path):
    lines = (ssh / "config").read_text().splitlines()
    keys = f"{tmp_path}/disk/penstock-pool-p/keys"
    assert lines[:6] == [
        f"# {_MARK} begins", "Host 10.0.0.1 h2", f'IdentityFile "{keys}/id"',
        f'UserKnownHostsFile "{keys}/known_hosts" "{_HOME}/known_hosts"', "Host *", f"# {_MARK} ends",
    ]  # fmt: skip
    assert "\n".join(lines[6:]) + "\n" == _OWN
    assert trusting("remove") == {"ok": [f"key in {_HOME}/config"]}
    assert (ssh / "config").read_text() == _OWN


def test_config_whose_last_line_of_ours_is_missing_keeps_all_that_follows(trusting, ssh):
    path = ssh / "config"
    path.write_text(path.read_text().replace(f"# {_MARK} ends\n", ""))
    assert trusting("remove") == {"ok": [f"key in {_HOME}/config"]}
    assert path.read_text() == _OWN


@pytest.mark.parametrize(
    ("old", "new"),
    [("Host *\n# ", "# "), ("IdentityFile", "User bob\nIdentityFile"), ("Host 10", "Match all\nHost 10")],
)
def test_config_changed_block_stays_and_is_reported(old, new, trusting, ssh):
    path = ssh / "config"
    path.write_text(path.read_text().replace(old, new, 1))
    changed = path.read_text()
    result = trusting("remove")
    assert (
        result["error"],
        "the block that begins in line 1 was changed after Penstock wrote it" in result["text"],
    ) == (
        "precondition",
        True,
    )
    assert path.read_text() == changed


@pytest.mark.parametrize(
    "hosts", [{"h1\nProxyCommand evil": []}, {"h1": ["ssh-ed25519 AAAA\n* ssh-ed25519 BBBB"]}, {"h 1": []}, {"*": []}]
)
def test_host_that_is_none_is_not_trusted(hosts, prepared, ssh):
    prepared("make_key")
    result = prepared("add_known_hosts", hosts=hosts)
    assert (result["error"], "is neither a valid address nor a valid host key of a node" in result["text"]) == (
        "system",
        True,
    )
    assert list(ssh.iterdir()) == []
