# SPDX-License-Identifier: Apache-2.0
"""Tests ssh keys with real sshds: one node creates the key, all nodes accept it, and the pool removes it at its end.

Issue 5, point 2.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec

pytestmark = pytest.mark.needs_root

# ssh uses the home folder of the user's passwd entry, not HOME.
_HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir, ".ssh")
_STANDIN = Path(__file__).with_name("beeond")
_SSHD = """
mount --bind "$1/etc" /etc/ssh && mount --bind "$1/home" "$2" && exec /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config
"""
_OWN = {"authorized_keys": "ssh-ed25519 AAAA somebody\n", "config": "Port 22\nHost far\n  User alice\n"}


@pytest.fixture
def sshds(hosts, monkeypatch):
    """Runs an sshd with its own root folder on every host; yields each host's ~/.ssh as a path on this machine."""
    for folder in ("/run/sshd", _HOME, "/etc/ssh"):
        Path(folder).mkdir(exist_ok=True)
    homes = {}
    with ExitStack() as held:
        for node in hosts.nodes():
            root = hosts.folder / f"root-{node.name}"
            homes[node.name] = root / "home"
            for folder in ("etc", "home"):
                (root / folder).mkdir(parents=True)
            key = root / "etc/ssh_host_ed25519_key"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
            (root / "etc/sshd_config").write_text(
                f"ListenAddress {node.address}\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
            )
            for name, text in _OWN.items():
                (root / "home" / name).write_text(text)
            log = held.enter_context((root / "log").open("wb"))
            running = subprocess.Popen(
                hosts.enter(node.name, ["sh", "-c", _SSHD, "sh", str(root), str(_HOME)]), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )  # fmt: skip
            held.callback(running.wait, 10)
            held.callback(running.kill)
            probe = f"import socket; socket.create_connection(({node.address!r}, 22), 2)"
            until = time.monotonic() + 20
            while subprocess.run(
                hosts.enter(node.name, ["python3", "-c", probe]), capture_output=True, check=False
            ).returncode:
                assert running.poll() is None, (root / "log").read_text()
                assert time.monotonic() < until, "sshd did not come"
                time.sleep(0.1)
        monkeypatch.setenv("PATH", f"{_STANDIN.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("STANDIN_VERSION", "8")
        monkeypatch.setenv("STANDIN_HOSTS", str(hosts.folder))
        monkeypatch.setenv("STANDIN_LOG", str(hosts.folder / "lines"))
        monkeypatch.setenv("STANDIN_SSH", "1")
        yield homes


def _files(homes: dict[str, Path]) -> dict[str, dict[str, str]]:
    return {host: {path.name: path.read_text() for path in home.iterdir()} for host, home in homes.items()}


def _reaches(hosts, one: str, other: str) -> bool:
    address = next(node.address for node in hosts.nodes() if node.name == other)
    line = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", address, "hostname"]
    return subprocess.run(hosts.enter(one, line), capture_output=True, text=True, check=False).stdout == f"{other}\n"


def test_pool_that_goes_by_ssh_gets_a_key_that_stays_on_the_first_node(sshds, hosts, cluster):
    spec = PoolSpec("keyed", hosts.own_disk)
    with pytest.raises(
        PenstockError, match=r"h1: beeond start failed with exit code 1: .*10\..*(denied|verification failed)"
    ):
        lifecycle.up(cluster, spec, "beeond", {}, timeout_s=60)
    assert _files(sshds) == dict.fromkeys(sshds, _OWN)
    pool, _ = lifecycle.up(cluster, spec, "beeond", {"exchanges_keys": True}, timeout_s=60)
    private = list(hosts.folder.glob("*/penstock-pool-keyed/keys/id"))
    assert [path.parts[-4] for path in private] == ["h1"]
    secret = private[0].read_text()
    assert private[0].stat().st_mode & 0o77 == 0
    held = _files(sshds)
    for host, files in held.items():
        [line] = files["authorized_keys"].removeprefix(_OWN["authorized_keys"]).splitlines()
        assert line.startswith("restrict ssh-ed25519 ")
        assert line.endswith(f" penstock-pool-keyed:{pool.lease}")
        assert (files["config"] == _OWN["config"]) == (host != "h1")
        assert not any(secret.splitlines()[1] in text for text in files.values())
    assert held["h1"]["config"].endswith(f"Host *\n# penstock-pool-keyed:{pool.lease} ends\n{_OWN['config']}")
    assert [_reaches(hosts, "h1", other) for other in ("h1", "h2", "h3")] == [True] * 3
    assert not _reaches(hosts, "h2", "h3")
    record = lifecycle.find("keyed")
    assert record is not None
    seen = {node: found["left"] for node, found in lifecycle.audit(cluster, record, timeout_s=60).receipts.items()}
    assert f"key in {_HOME}/config" in seen["h1"]
    assert all(f"key in {_HOME}/authorized_keys" in words for words in seen.values())
    ended = lifecycle.down(cluster, record, timeout_s=60)
    assert ended.receipts["h2"]["keys"] == [f"key in {_HOME}/authorized_keys"]
    assert _files(sshds) == dict.fromkeys(sshds, _OWN)
    assert [found["left"] for found in lifecycle.audit(cluster, record, timeout_s=60).receipts.values()] == [
        [],
        [],
        [],
    ]


def test_keys_that_a_crash_left_are_found_and_taken_back_and_those_of_another_pool_stay(sshds, hosts, cluster):
    other = "restrict ssh-ed25519 BBBB penstock-pool-keyed-too:1234\n"
    (sshds["h3"] / "authorized_keys").write_text(_OWN["authorized_keys"] + other)
    spec = PoolSpec("keyed", hosts.own_disk)
    lifecycle.up(cluster, spec, "beeond", {"exchanges_keys": True}, timeout_s=60)
    held = _files(sshds)["h3"]["authorized_keys"]
    record = lifecycle.find("keyed")
    assert record is not None
    lifecycle.down(cluster, record, timeout_s=60)
    # A node has such a line left if it was away during `down`, or if its start was killed after its folder was removed.
    (sshds["h3"] / "authorized_keys").write_text(held)
    record = lifecycle.PoolRecord(state="unknown", engine="beeond", engine_settings={}, spec=spec, lease="")
    left = {node: found["left"] for node, found in lifecycle.audit(cluster, record, timeout_s=60).receipts.items()}
    assert left == {"h1": [], "h2": [], "h3": [f"key in {_HOME}/authorized_keys"]}
    lifecycle.down(cluster, record, timeout_s=60)
    want = dict.fromkeys(sshds, _OWN)
    want["h3"] = {**_OWN, "authorized_keys": _OWN["authorized_keys"] + other}
    assert _files(sshds) == want


def test_keys_that_could_not_be_taken_back_are_not_told_as_gone(sshds, hosts, cluster):
    lifecycle.up(cluster, PoolSpec("keyed", hosts.own_disk), "beeond", {"exchanges_keys": True}, timeout_s=60)
    record = lifecycle.find("keyed")
    assert record is not None
    path = sshds["h2"] / "authorized_keys"
    path.rename(path.with_name("aside"))
    path.mkdir()
    seen = lifecycle.audit(cluster, record, timeout_s=60)
    assert (sorted(seen.receipts), seen.unreached) == (["h1", "h3"], ("h2",))
    ended = lifecycle.down(cluster, record, timeout_s=60)
    assert (sorted(ended.receipts), ended.unreached) == (["h1", "h3"], ("h2",))
    assert lifecycle.names() == ["keyed"]
    path.rmdir()
    path.with_name("aside").rename(path)
    ended = lifecycle.down(cluster, record, timeout_s=60)
    assert ended.receipts["h2"]["keys"] == [f"key in {_HOME}/authorized_keys"]
    assert (ended.unreached, lifecycle.names()) == ((), [])
    assert _files(sshds) == dict.fromkeys(sshds, _OWN)


def test_keys_leave_links_empty_files_and_bytes_that_are_no_text_as_they_were(sshds, hosts, cluster):
    (sshds["h1"] / "authorized_keys").unlink()
    (sshds["h1"] / "config").write_bytes(b"# caf\xe9\x0b\r\nPort 22\n")
    (sshds["h2"] / "kept").mkdir()
    (sshds["h2"] / "authorized_keys").rename(sshds["h2"] / "kept/keys")
    (sshds["h2"] / "authorized_keys").symlink_to("kept/keys")
    (sshds["h3"] / "authorized_keys").write_text("")
    (sshds["h3"] / "authorized_keys").chmod(0o640)

    def seen() -> dict[Path, tuple[object, int]]:
        paths = [path for home in sshds.values() for path in home.rglob("*") if not path.is_dir()]
        return {
            path: (path.readlink() if path.is_symlink() else path.read_bytes(), path.lstat().st_mode) for path in paths
        }

    before = seen()
    lifecycle.up(cluster, PoolSpec("keyed", hosts.own_disk), "beeond", {"exchanges_keys": True}, timeout_s=60)
    assert (sshds["h2"] / "authorized_keys").is_symlink()
    for host, name in (("h1", "authorized_keys"), ("h2", "kept/keys"), ("h3", "authorized_keys")):
        assert b"penstock-pool-keyed:" in (sshds[host] / name).read_bytes()
    record = lifecycle.find("keyed")
    assert record is not None
    assert lifecycle.down(cluster, record, timeout_s=60).unreached == ()
    assert seen() == before
