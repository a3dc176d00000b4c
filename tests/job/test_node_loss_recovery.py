# SPDX-License-Identifier: Apache-2.0
"""Tests how a job handles its pool when a node is lost: the node's own Penstock repairs it, or the job reports why not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.errors import ConfigError, RankFailed
from penstock.job import spec
from penstock.job.run_steps import Execution
from penstock.pool import lifecycle
from penstock.pool.exec import execute_all

_JOB = """
name = "mended"
[cluster]
nodes = 2
penstock = ["{folder}/ours"]
[pool]
disk = "{folder}/disk-{{node}}"
[stage]
source = "{folder}/set"
[run]
argv = ["true"]
"""


@pytest.fixture
def execution(tmp_path, monkeypatch):
    """A job with a running pool on two nodes, which start Penstock through a script."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.bin").write_bytes(b"x" * 1000)
    program = Path(sys.executable).with_name("penstock")
    (tmp_path / "ours").write_text(
        f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/called\n[ -e {tmp_path}/broken ] && exit 9\nexec {program} "$@"\n'
    )
    (tmp_path / "ours").chmod(0o755)
    (tmp_path / "job.toml").write_text(_JOB.format(folder=tmp_path))
    one = Execution(spec.load(tmp_path / "job.toml"), tmp_path / "runs", {}, on_step=lambda _row: None)
    one._pool_up()
    yield one
    one._pool_down()
    one.close()


@pytest.mark.parametrize(
    ("pool", "requests"),
    [(b'{"schema', "[]"), (b"{}", "[]"), (None, "[3"), (None, "{}"), (None, "[3]")],
)
def test_pool_exec_refuses_requests_that_do_not_parse(execution, pool, requests):
    sound = msgspec.json.encode(execution._pool)
    with pytest.raises(ConfigError, match="pool exec: "):
        execute_all("local", "n1", requests, sound if pool is None else pool)


def test_pool_is_mended_by_the_nodes_own_penstock(execution, tmp_path):
    lease = execution._pool.lease
    execution._restore_pool()
    assert "pool exec" in (tmp_path / "called").read_text()
    assert execution._pool.lease == lease
    assert len(list(tmp_path.rglob("disk-*/**/a.bin"))) == 1


def test_pool_that_stands_is_not_thrown_away_where_it_cannot_be_mended(execution, tmp_path):
    (tmp_path / "broken").touch()
    lease = execution._pool.lease
    with pytest.raises(RankFailed, match="exit code 9"):
        execution._restore_pool()
    record = lifecycle.find("mended")
    assert record is not None
    assert record.lease == lease


def test_pool_that_is_lost_with_its_first_node_is_brought_up_anew_and_says_why(execution, tmp_path):
    (tmp_path / "broken").touch()
    lease = execution._pool.lease
    shutil.rmtree(tmp_path / "disk-n0")
    execution.job = msgspec.structs.replace(execution.job, stage=None)  # staging would need the broken script
    execution._restore_pool()
    # The lease stays the same, so that `down` also clears a lost node that comes back.
    assert execution._pool.lease == lease
    assert list(tmp_path.glob("disk-n0/*/data"))
    assert not list(tmp_path.rglob("disk-*/**/a.bin"))
    assert "exit code 9" in (execution._recreated_because or "")
