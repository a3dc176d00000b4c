# SPDX-License-Identifier: Apache-2.0
"""Tests that pool commands never remove other programs' files in the pool's folder. Issue 19, line 1."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from penstock.cluster import Cluster
from penstock.errors import ConfigError, PenstockError, PreconditionFailed
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec


@pytest.fixture
def victim(tmp_path):
    """Somebody's home."""
    home = tmp_path / "victim"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("key")
    (home / "thesis.tex").write_text("years")
    return home


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def _seen(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in [folder, *folder.rglob("*")]
    }


def _by_flags(disk: Path, name: str = "p") -> lifecycle.PoolRecord:
    return lifecycle.PoolRecord(
        state="unknown", engine="local", engine_settings={}, spec=PoolSpec(name, str(disk)), lease="", nodes=["n0"]
    )


@pytest.fixture
def one(home):
    with Cluster.open("local", {"nodes": 1}) as cluster:
        yield cluster


def test_up_and_down_refuse_a_pool_folder_that_is_a_link(one, disk, victim, run_cli):
    (disk / "penstock-pool-p").symlink_to(victim)
    before = _seen(victim)
    with pytest.raises(PreconditionFailed, match=r"n0: .*penstock-pool-p is not a folder created by Penstock"):
        lifecycle.up(one, PoolSpec("p", str(disk)), "local", {}, timeout_s=60)
    ended = lifecycle.down(one, _by_flags(disk), timeout_s=60)
    assert (ended.receipts, ended.unreached, "is a link or not a folder" in ended.refused["n0"]) == ({}, (), True)
    assert _seen(victim) == before
    assert (disk / "penstock-pool-p").is_symlink()
    ran = run_cli("pool", "down", "--name", "p", "--disk", disk)
    assert (ran.code, "error[precondition]: n0: " in ran.err, "hint: " in ran.err) == (3, True, True), ran.err
    left = run_cli("pool", "audit", "--name", "p", "--disk", disk)
    assert (left.code, "which `pool down` does not remove" in left.out) == (1, True), left.out
    assert _seen(victim) == before


def test_down_refuses_a_folder_that_took_the_place_of_a_pool_on_record(one, disk, victim):
    lifecycle.up(one, PoolSpec("p", str(disk)), "local", {}, timeout_s=60)
    (disk / "penstock-pool-p").rename(disk / "aside")
    (disk / "penstock-pool-p").symlink_to(victim)
    record = lifecycle.find("p")
    assert record is not None
    before = _seen(disk), _seen(victim)
    assert "is a link" in lifecycle.down(one, record, timeout_s=60).refused["n0"]
    assert (_seen(disk), _seen(victim)) == before
    assert lifecycle.names() == ["p"]
    (disk / "penstock-pool-p").unlink()
    (disk / "aside").rename(disk / "penstock-pool-p")
    assert lifecycle.down(one, record, timeout_s=60).refused == {}
    assert (list(disk.iterdir()), lifecycle.names()) == ([], [])


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        (None, "no pool lease"),
        ("{", "no pool lease"),
        ('{"lease": "1", "name": "q"}', "the lease of the pool `q`"),
        ('{"lease": "1", "name": "p", "root": "/elsewhere/penstock-pool-p"}', "at /elsewhere/penstock-pool-p"),
    ],
)
def test_folder_without_a_lease_of_the_pool_is_refused(lease, words, one, disk):
    root = disk / "penstock-pool-p"
    root.mkdir(mode=0o700)
    (root / "precious").write_text("x")
    if lease is not None:
        (root / "lease.json").write_text(lease)
    before = _seen(disk)
    assert words in lifecycle.down(one, _by_flags(disk), timeout_s=60).refused["n0"]
    with pytest.raises(PreconditionFailed):
        lifecycle.up(one, PoolSpec("p", str(disk)), "local", {}, timeout_s=60)
    assert _seen(disk) == before


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("mode", "owner", "words"), [(0o700, 65534, "belongs to user 65534"), (0o777, 0, "is writable by other users")]
)
def test_folder_of_another_user_or_one_that_others_may_write_is_refused(mode, owner, words, one, disk):
    root = disk / "penstock-pool-p"
    root.mkdir()
    (root / "lease.json").write_text(json.dumps({"lease": "1", "name": "p", "root": str(root)}))
    root.chmod(mode)
    os.chown(root, owner, -1)
    assert words in lifecycle.down(one, _by_flags(disk), timeout_s=60).refused["n0"]
    with pytest.raises(PreconditionFailed, match=words):
        lifecycle.up(one, PoolSpec("p", str(disk)), "local", {}, timeout_s=60)
    assert (root / "lease.json").exists()


@pytest.mark.needs_root
def test_disk_in_which_others_could_replace_the_pool_is_refused(one, disk):
    spec = PoolSpec("p", f"{disk}/scratch")
    (disk / "scratch").mkdir()
    (disk / "scratch").chmod(0o777)
    with pytest.raises(PreconditionFailed, match=r"scratch is writable by other users \(mode 777\)"):
        lifecycle.up(one, spec, "local", {}, timeout_s=60)
    assert list((disk / "scratch").iterdir()) == []
    (disk / "scratch").chmod(0o755)
    os.chown(disk / "scratch", 65534, -1)
    disk.chmod(0o1777)
    with pytest.raises(
        PreconditionFailed, match="belongs to user 65534 and is in a folder that all users can write to"
    ):
        lifecycle.up(one, spec, "local", {}, timeout_s=60)
    os.chown(disk / "scratch", 0, -1)
    (disk / "scratch").chmod(0o1777)  # as /tmp: users cannot replace each other's files
    lifecycle.up(one, spec, "local", {}, timeout_s=60)
    record = lifecycle.find("p")
    assert record is not None
    assert lifecycle.down(one, record, timeout_s=60).refused == {}


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("letters", "is_linked"),
    [("plain", False), ("Zoë", False), ("a b\tc\\040d", False), ("Zoë", True), (os.fsdecode(b"\xff\xfe"), True)],
)
def test_mount_below_a_pool_is_seen_under_any_bytes_and_nothing_behind_it_goes(letters, is_linked, one, disk, victim):
    base = disk / letters
    base.mkdir()
    given = base
    if is_linked:
        given = disk / "link"
        given.symlink_to(base)
    lifecycle.up(one, PoolSpec("p", str(given)), "local", {}, timeout_s=60)
    record = lifecycle.find("p")
    assert record is not None
    at = base / "penstock-pool-p/data/deep"
    at.mkdir()
    before = _seen(victim)
    subprocess.run(["mount", "--bind", victim, at], check=True)
    try:
        for keep in (True, False):
            result = lifecycle.down(one, record, keep_data=keep, timeout_s=60)
            assert "is mounted below" in result.refused["n0"], result
            assert _seen(victim) == before
            record.keep_data = False
            lifecycle._write_record(record)
        audit = lifecycle.audit(one, record, timeout_s=60).receipts["n0"]["left"]
        assert f"mount {at}" in audit
    finally:
        subprocess.run(["umount", at], check=True)
    assert lifecycle.down(one, record, timeout_s=60).refused == {}
    assert list(base.iterdir()) == []


@pytest.mark.needs_root
def test_mount_of_the_pools_own_is_ended_with_it(one, disk, victim):
    lifecycle.up(one, PoolSpec("p", str(disk)), "local", {}, timeout_s=60)
    record = lifecycle.find("p")
    assert record is not None
    at = disk / "penstock-pool-p/mnt"
    at.mkdir()
    before = _seen(victim)
    for _ in range(2):  # two mounts at the same place
        subprocess.run(["mount", "--bind", victim, at], check=True)
    ended = lifecycle.down(one, record, timeout_s=60)
    assert ended.receipts["n0"]["mounts"] == [str(at)] * 2
    assert (list(disk.iterdir()), _seen(victim)) == ([], before)


def test_data_that_down_kept_is_kept_until_down_without_the_flag(one, disk, run_cli):
    spec = PoolSpec("p", str(disk))
    lifecycle.up(one, spec, "local", {}, timeout_s=60)
    (disk / "penstock-pool-p/data/x").write_text("kept")
    record = lifecycle.find("p")
    assert record is not None
    lifecycle.down(one, record, keep_data=True, timeout_s=60)
    with pytest.raises(PreconditionFailed, match="contains data that `pool down --keep-data` retained") as result:
        lifecycle.up(one, spec, "local", {}, timeout_s=60)
    assert result.value.hint is not None
    assert "or remove it" in result.value.hint
    assert (disk / "penstock-pool-p/data/x").read_text() == "kept"
    assert run_cli("pool", "down", "--name", "p", "--disk", disk).code == 0
    assert list(disk.iterdir()) == []


def test_start_that_was_killed_before_it_had_a_lease_is_cleared(one, disk):
    (disk / "penstock-pool-p").mkdir(mode=0o700)
    assert lifecycle.down(one, _by_flags(disk), timeout_s=60).receipts["n0"]["folders"] == [f"{disk}/penstock-pool-p"]
    assert list(disk.iterdir()) == []


def test_brackets_in_a_disks_path_are_no_pattern(home, tmp_path):
    disk = tmp_path / "a[bc]*d"
    with Cluster.open("local", {"nodes": 2}) as cluster:
        lifecycle.up(cluster, PoolSpec("p", f"{disk}"), "mount", {}, timeout_s=60)
        record = lifecycle.find("p")
        assert record is not None
        assert lifecycle.status(cluster, record, timeout_s=60) == {"n0": "up", "n1": "up"}
        assert lifecycle.down(cluster, record, timeout_s=60).refused == {}
    assert list(disk.iterdir()) == []


def test_disk_whose_bytes_are_not_text_is_refused(one, disk):
    with pytest.raises(ConfigError, match="--disk: must be valid UTF-8"):
        lifecycle.up(one, PoolSpec("p", os.fsdecode(os.fsencode(disk) + b"/\xff")), "local", {}, timeout_s=60)


@pytest.mark.parametrize("name", ["../x", "", "a/b"])
def test_agent_refuses_a_name_that_cannot_be_a_pools(name, one):
    from penstock.engines._shared.agent_client import AgentClient

    agents = AgentClient(PoolSpec(name, "/nonexistent"), one)
    with pytest.raises(PenstockError, match="is not a valid pool name"):
        agents.call("stop", 30, lease="", keep_data=False)
