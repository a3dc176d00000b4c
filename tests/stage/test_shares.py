# SPDX-License-Identifier: Apache-2.0
"""Tests many nodes and ranks: launcher variables define the shares, and ranks wait for the staging rank. Issue 2."""

from __future__ import annotations

import json
import signal
import time

import pytest
from stage_kit import await_true, facts, fill, launch, tree


def _slurm(rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "6",
        "SLURM_NNODES": "3",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank // 2),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_STEP_ID": "0",
    }


def _open_mpi(rank: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "6",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 2),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }


def _hydra(rank: int) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": "6",
        "MPI_LOCALRANKID": str(rank % 2),
        "MPI_LOCALNRANKS": "2",
    }


def _torchrun(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "6",
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": str(rank // 2),
        "TORCHELASTIC_RUN_ID": "none",
    }


def _horovod(rank: int) -> dict[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": "6",
        "HOROVOD_LOCAL_RANK": str(rank % 2),
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": str(rank // 2),
        "HOROVOD_CROSS_SIZE": "3",
    }


@pytest.mark.parametrize("launcher", [_slurm, _open_mpi, _hydra, _torchrun, _horovod])
def test_shares_under_each_launcher_are_disjoint_and_complete(launcher, bucket, run_cli, tmp_path):
    shares = []
    for node in range(3):
        dst = tmp_path / f"node{node}"
        leader = run_cli("stage", bucket.url, dst, "--decompress", "--json", env=bucket.env | launcher(2 * node))
        waiter = run_cli("stage", bucket.url, dst, "--decompress", "--json", env=bucket.env | launcher(2 * node + 1))
        assert (leader.code, waiter.code) == (0, 0), leader.err + waiter.err
        assert facts(leader) == facts(waiter)
        assert (facts(leader)["node"], facts(leader)["nodes"]) == (node, 3)
        shares.append(tree(dst))
    assert sum(map(len, shares)) == len(bucket.want)
    assert shares[0] | shares[1] | shares[2] == bucket.want


def test_half_set_variables_are_refused_by_name(bucket, run_cli, tmp_path):
    env = bucket.env | _slurm(3)
    del env["SLURM_NODEID"]
    ran = run_cli("stage", bucket.url, tmp_path / "dst", env=env)
    assert (ran.code, "SLURM_NODEID" in ran.err, "--node I --nodes N" in ran.err) == (2, True, True)


def test_waiting_rank_starts_before_its_leader_and_ends_with_it(bucket, run_cli, tmp_path):
    dst, log = tmp_path / "dst", tmp_path / "log"
    waiter = launch("stage", bucket.url, dst, "--decompress", "--json", env=bucket.env | _slurm(3), log=log)
    time.sleep(1)
    assert waiter.poll() is None
    assert not dst.exists()
    leader = run_cli("stage", bucket.url, dst, "--decompress", "--json", env=bucket.env | _slurm(2))
    assert (waiter.wait(30), leader.code) == (0, 0)
    assert json.loads(log.read_text().splitlines()[-1]) == facts(leader)


def test_waiting_rank_ends_with_an_error_when_its_leader_fails(bucket, run_cli, tmp_path):
    dst, log, url = tmp_path / "dst", tmp_path / "log", bucket.url + "nothing-here/"
    waiter = launch("stage", url, dst, env=bucket.env | _slurm(3), log=log)
    leader = run_cli("stage", url, dst, env=bucket.env | _slurm(2))
    assert (leader.code, waiter.wait(30)) == (3, 1)
    output = log.read_text()
    assert "error[rank-failed]: rank 2 failed" in output
    assert "nothing-here" in output


def test_waiting_rank_ends_with_an_error_when_its_leader_is_killed(emulator, tmp_path):
    dst, log = tmp_path / "dst", tmp_path / "log"
    fill(tmp_path / "bucket", 96, 400_000)
    # The whole stage would take 13 s, so even on a busy machine it is not done before the waiter has started.
    store = emulator(folder=tmp_path / "bucket", tier="azure-hot", scale=0.0002)
    url = f"{store.url.rstrip('/')}/set/"
    leader = launch("stage", url, dst, env=store.env | _slurm(2), log=tmp_path / "leader")
    await_true(lambda: leader.poll() is not None or len(tree(dst)) > 2)
    waiter = launch("stage", url, dst, env=store.env | _slurm(3), log=log)
    await_true(lambda: "waits for rank 2" in log.read_text())
    time.sleep(0.6)  # the waiter must have seen its leader alive, else it keeps waiting for a new one
    assert leader.poll() is None
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    assert waiter.wait(30) == 1
    assert "its lock is free" in log.read_text()


def test_waiting_rank_gives_up_when_no_leader_comes(bucket, run_cli, tmp_path):
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--wait-timeout", "1s", env=bucket.env | _slurm(3))
    assert (ran.code, "no heartbeat in" in ran.err) == (1, True), ran.err


def test_two_stages_of_one_node_at_once_are_refused(slow_bucket, run_cli, tmp_path):
    dst = tmp_path / "dst"
    first = launch("stage", slow_bucket.url, dst, env=slow_bucket.env, log=tmp_path / "log")
    await_true(lambda: first.poll() is not None or (dst / ".penstock/stage/status-0-of-1.json").exists())
    second = run_cli("stage", slow_bucket.url, dst, env=slow_bucket.env)
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (second.code, "another penstock stage of node 0" in second.err) == (3, True), second.err
