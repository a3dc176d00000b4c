# SPDX-License-Identifier: Apache-2.0
"""Tests that a job takes down only its own pool, and that `pool up` removes nothing. Issue 19, line 1."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cluster import Cluster
from penstock.errors import ConfigError, PreconditionFailed
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec

_PROGRAM = Path(sys.executable).with_name("penstock")
_JOB = """
name = "train"
[cluster]
nodes = 2
{more}
[pool]
disk = "{disk}"
[stage]
source = "{folder}/set"
[run]
argv = ["sh", "-c", "touch {folder}/begun-$1; while [ ! -e {folder}/gate ]; do sleep 0.1; done", "sh", "{{rank}}"]
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(disk, more)` writes a job `train` over one object, whose ranks wait for the file `gate`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.bin").write_bytes(b"a" * 100)

    def write(disk: str, more: str = "") -> Path:
        (tmp_path / "job.toml").write_text(_JOB.format(folder=tmp_path, disk=disk, more=more))
        return tmp_path / "job.toml"

    return write


@pytest.fixture
def by_hand(job, tmp_path, run_cli):
    """A pool `train` that was brought up by hand and holds valuable data."""
    up = run_cli("pool", "up", "--name", "train", "--nodes", "2", "--disk", f"{tmp_path}/hand-{{node}}")
    assert up.code == 0, up.err
    precious = tmp_path / "hand-n0/penstock-pool-train/data/precious/result.txt"
    precious.parent.mkdir()
    precious.write_text("three days")
    return precious


def test_job_that_is_refused_leaves_the_pool_of_its_name_alone(by_hand, job, run_cli, tmp_path):
    ran = run_cli("run", job(f"{tmp_path}/other-{{node}}"), cwd=tmp_path)
    assert (ran.code, "running with different nodes or settings" in ran.err) == (3, True), ran.err
    assert "pool down" not in ran.out
    assert by_hand.read_text() == "three days"
    assert lifecycle.names() == ["train"]


def test_job_that_fails_before_its_pool_step_leaves_the_pool_of_its_name_alone(by_hand, job, run_cli, tmp_path):
    (tmp_path / "setup.sh").write_text("exit 1\n")
    more = f'[provision]\nscript = "{tmp_path}/setup.sh"\nat = "{tmp_path}/at.sh"\n'
    ran = run_cli("run", job(f"{tmp_path}/hand-{{node}}", more), cwd=tmp_path)
    assert (ran.code, "provision" in ran.err) == (1, True), ran.err
    assert by_hand.read_text() == "three days"


def test_job_uses_a_pool_that_was_brought_up_by_hand_and_leaves_it(by_hand, job, run_cli, tmp_path):
    (tmp_path / "gate").touch()
    ran = run_cli("run", job(f"{tmp_path}/hand-{{node}}"), cwd=tmp_path, timeout_s=110)
    assert ran.code == 0, ran.err
    assert "this job did not start it" in ran.out
    assert "pool down" not in ran.out
    assert by_hand.read_text() == "three days"
    assert run_cli("pool", "down", "--name", "train").code == 0
    assert list(tmp_path.glob("hand-*/*")) == []


def test_second_job_of_the_name_is_refused_while_the_first_holds_the_pool(job, run_cli, tmp_path):
    file = job(f"{tmp_path}/disk-{{node}}")
    first = subprocess.Popen(
        [_PROGRAM, "run", file, "--quiet", "--output", tmp_path / "one"], cwd=tmp_path, env=os.environ.copy(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 90
    while len(list(tmp_path.glob("begun-*"))) < 2 and first.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    second = run_cli("run", file, "--quiet", "--output", tmp_path / "two", cwd=tmp_path)
    assert (second.code, f"the job in {tmp_path}/one/train is using this pool" in second.err) == (3, True), second.err
    assert len(list(tmp_path.glob("disk-*/penstock-pool-train/data/data/a.bin"))) == 1
    (tmp_path / "gate").touch()
    out, err = first.communicate(timeout=100)
    assert (first.returncode, "pool down: done" in out) == (0, True), err
    assert list(tmp_path.glob("disk-*/*")) == []


def test_job_that_was_killed_while_it_brought_its_pool_up_begins_the_pool_anew(job, run_cli, tmp_path):
    file = job(f"{tmp_path}/disk-{{node}}")
    first = subprocess.Popen(
        [_PROGRAM, "run", file, "--quiet"], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 90
    while len(list(tmp_path.glob("begun-*"))) < 2 and first.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    first.kill()
    first.wait()
    record = lifecycle.find("train")
    assert record is not None
    record.state, record.pool = "starting", None
    lifecycle._write_record(record)
    (tmp_path / "gate").touch()
    resumed = run_cli("run", file, "--resume", cwd=tmp_path, timeout_s=110)
    assert resumed.code == 0, resumed.err
    assert "stage: done in" in resumed.out
    assert (lifecycle.names(), list(tmp_path.glob("disk-*/*"))) == ([], [])


# ---------------------------------------------------------------- records


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Cluster.open("local", {"nodes": 2}) as cluster:
        yield cluster


def _interrupted(name: str, **changes: object) -> lifecycle.PoolRecord:
    """Changes the pool's record to the state that a killed command leaves."""
    record = lifecycle.find(name)
    assert record is not None
    for field, value in changes.items():
        setattr(record, field, value)
    lifecycle._write_record(record)
    return record


def test_up_deletes_nothing_that_an_interrupted_down_keeps(two, tmp_path, run_cli):
    spec = PoolSpec("keepme", f"{tmp_path}/{{node}}")
    lifecycle.up(two, spec, "local", {}, timeout_s=60, launcher="local", launcher_settings={"nodes": 2})
    result = tmp_path / "n0/penstock-pool-keepme/data/results.bin"
    result.write_bytes(b"kept")
    # `pool down --keep-data` was killed before the last node.
    _interrupted("keepme", state="stopping", keep_data=True)
    with pytest.raises(PreconditionFailed, match=r"`pool down` on n0, n1 has not finished; the data are retained"):
        lifecycle.up(two, spec, "local", {}, timeout_s=60, launcher="local", launcher_settings={"nodes": 2})
    assert result.read_bytes() == b"kept"
    # The record keeps that command's `--keep-data`, even if the next command omits it.
    down = run_cli("pool", "down", "--name", "keepme")
    assert down.code == 0, down.err
    assert result.read_bytes() == b"kept"
    assert lifecycle.names() == []


def test_up_on_fewer_nodes_after_an_interrupted_up_is_refused_and_down_clears_all(two, tmp_path, run_cli):
    spec = PoolSpec("cm", f"{tmp_path}/{{node}}")
    lifecycle.up(two, spec, "local", {}, timeout_s=60, launcher="local", launcher_settings={"nodes": 2})
    _interrupted("cm", state="starting", pool=None)
    flags = ["--name", "cm", "--disk", f"{tmp_path}/{{node}}"]
    again = run_cli("pool", "up", *flags, "--nodes", "1")
    assert (again.code, "`pool up` on n0, n1 has not finished" in again.err) == (3, True), again.err
    assert "penstock pool down --name cm" in again.err
    assert run_cli("pool", "down", "--name", "cm").code == 0
    assert [list((tmp_path / node).iterdir()) for node in ("n0", "n1")] == [[], []]
    assert run_cli("pool", "up", *flags, "--nodes", "1").code == 0
    assert run_cli("pool", "down", "--name", "cm").code == 0


def test_node_of_the_record_that_the_cluster_lacks_is_not_told_as_cleared(two, tmp_path):
    lifecycle.up(
        two,
        PoolSpec("p", f"{tmp_path}/{{node}}"),
        "local",
        {},
        timeout_s=60,
        launcher="local",
        launcher_settings={"nodes": 2},
    )
    record = lifecycle.find("p")
    assert record is not None
    with Cluster.open("local", {"nodes": 2}, only=["n0"]) as less:
        assert lifecycle.down(less, record, timeout_s=60).unreached == ("n1",)
    assert lifecycle.names() == ["p"]
    assert lifecycle.down(two, record, timeout_s=60).unreached == ()
    assert lifecycle.names() == []


def test_record_of_another_lease_is_neither_replaced_nor_forgotten(two, tmp_path):
    spec = PoolSpec("p", f"{tmp_path}/{{node}}")
    lifecycle.up(two, spec, "local", {}, timeout_s=60, launcher="local", launcher_settings={"nodes": 2})
    record = lifecycle.find("p")
    assert record is not None
    stale = lifecycle.PoolRecord(
        state="up", engine="local", engine_settings={}, spec=spec, lease="0" * 16, nodes=["n0"]
    )
    with pytest.raises(PreconditionFailed, match="another `pool up` is creating a pool with this name"):
        lifecycle._write_record(stale, is_new=True)
    with pytest.raises(PreconditionFailed, match="another `pool up` has created a pool with this name"):
        lifecycle.down(two, stale, timeout_s=60)
    lifecycle._delete_record(stale)
    assert lifecycle.find("p") == record
    assert sorted(path.name for path in (tmp_path / "state/penstock/pools").iterdir()) == ["p.json"]
    lifecycle.down(two, record, timeout_s=60)


@pytest.mark.parametrize("name", ["pool/..", "../../x", "", ".", "a b", "-p", "p" * 41, "p\n"])
@pytest.mark.parametrize("verb", ["status", "down", "audit"])
def test_pool_name_that_cannot_be_is_refused_by_every_verb(verb, name, tmp_path, run_cli, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "x.json").write_text("{}")
    ran = run_cli("pool", verb, "--name", name, "--disk", tmp_path)
    assert (ran.code, "not a valid pool name" in ran.err) == (2, True), ran.err
    with pytest.raises(ConfigError, match="not a valid pool name"):
        lifecycle.forget(name)


def test_flags_that_contradict_the_record_are_refused(two, tmp_path, run_cli):
    lifecycle.up(
        two,
        PoolSpec("p", f"{tmp_path}/{{node}}"),
        "local",
        {},
        timeout_s=60,
        launcher="local",
        launcher_settings={"nodes": 2},
    )
    ran = run_cli("pool", "down", "--name", "p", "--disk", f"{tmp_path}/elsewhere")
    assert (ran.code, "--disk: the record of pool `p` has" in ran.err) == (2, True), ran.err
    assert (tmp_path / "n0/penstock-pool-p/data").is_dir()
    assert run_cli("pool", "down", "--name", "p").code == 0


def test_record_of_a_pool_in_the_working_directory_is_not_read(tmp_path, monkeypatch):
    planted = tmp_path / ".local/state/penstock/pools/p.json"
    planted.parent.mkdir(parents=True)
    planted.write_text("{}")
    monkeypatch.chdir(tmp_path)
    for home, state in ((None, None), (".", None), (None, ".local/state")):
        for name, value in (("HOME", home), ("XDG_STATE_HOME", state)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match="pool records cannot be stored"):
            lifecycle.find("p")
