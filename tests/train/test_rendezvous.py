# SPDX-License-Identifier: Apache-2.0
"""Tests the rendezvous of ranks: if ranks are missing at the deadline, or disagree on their number, the error names them."""

from __future__ import annotations

import os
import time

import pytest
from rank_kit import FLAGS, START_S

from penstock.errors import ConfigError
from penstock.train import TrainSpec, run
from tests.ports import free_port

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]


def start(job, rank, world, port, timeout="5s", name="rank"):
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
    }
    return job("cosmoflow", *FLAGS, "--join-timeout", timeout, name=f"{name}{rank}", env=variables)


def test_missing_ranks_are_named_by_the_deadline(job):
    port = free_port()
    both = [start(job, rank, 4, port) for rank in (0, 2)]
    assert [one.wait(START_S) for one in both] == [1, 1], [one.text for one in both]
    assert "error[rank-failed]: ranks 1, 3 of 4 did not join within 5 s" in both[0].errors()
    assert "ranks 1, 3 of 4 did not join" in both[1].text or "lost the store of rank 0" in both[1].text


def test_missing_rank_0_is_named(job):
    only = start(job, 1, 2, free_port(), timeout="1s")
    assert only.wait(START_S) == 1
    assert "rank 1 of 2 reached no rank 0 at 127.0.0.1:" in only.errors()[0]
    assert only.errors()[0].endswith("within 1 s: Connection refused")
    assert len(only.text.splitlines()) == 2, only.text


def test_open_mpi_ranks_on_one_node_meet_without_an_address_and_end_quietly(job):
    def mpi_rank(rank):
        name = "OMPI_COMM_WORLD_"
        numbers = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
        variables = {
            **{name + key: str(value) for key, value in numbers.items()},
            "PMIX_NAMESPACE": f"job-{os.getpid()}",
        }
        return job("cosmoflow", *FLAGS, name=f"rank{rank}", env=variables)

    both = [mpi_rank(rank) for rank in (0, 1)]
    assert [one.wait(START_S) for one in both] == [0, 0], [one.text for one in both]
    assert both[1].text == ""
    assert "frame #" not in both[0].text
    assert "Warning" not in both[0].text


@pytest.mark.parametrize(
    ("variables", "hint"),
    [
        ({}, "run export MASTER_ADDR=HOST MASTER_PORT=29500 before the launcher, where HOST is the node of rank 0"),
        (
            {"PBS_NODEFILE": "/n"},
            'run export MASTER_ADDR="$(head -n 1 "$PBS_NODEFILE")" MASTER_PORT=29500 before the launcher',
        ),
        (
            {"SLURM_JOB_NODELIST": "a[1-2]"},
            'run export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" MASTER_PORT=29500 before the launcher',
        ),
    ],
)
def test_ranks_on_several_nodes_without_an_address_get_a_hint_for_their_launcher(monkeypatch, variables, hint):
    mpich = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    for name, value in {**mpich, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="pmi started 4 ranks on 2 nodes, but MASTER_ADDR is not set") as raised:
        run(TrainSpec(workload="trivial", data="dummy://8", global_batch=4))
    assert raised.value.hint == hint


def test_open_mpi_ranks_on_several_nodes_get_a_hint_for_mpirun(monkeypatch):
    for name, value in {"RANK": 0, "SIZE": 4, "LOCAL_RANK": 0, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    with pytest.raises(ConfigError) as raised:
        run(TrainSpec(workload="trivial", data="dummy://8", global_batch=4))
    assert raised.value.hint.startswith("run mpirun with -x MASTER_ADDR=HOST -x MASTER_PORT=29500")


def test_different_numbers_of_ranks_are_refused_by_both(job):
    port = free_port()
    both = [start(job, 0, 2, port, timeout="60s"), start(job, 1, 3, port, timeout="60s")]
    codes = [one.wait(START_S) for one in both]
    assert codes[0] == 2, both[0].text
    assert "the ranks differ in the number of ranks: rank 0 expects 2, and rank 1 on" in both[0].text
    assert codes[1] in {1, 2}


def test_second_process_with_the_same_rank_is_refused(job):
    port = free_port()
    start(job, 0, 3, port, timeout="120s")
    both = [start(job, 1, 3, port, timeout="120s", name=name) for name in ("first", "second")]
    until = time.monotonic() + START_S
    while all(one.process.poll() is None for one in both):
        assert time.monotonic() < until
        time.sleep(0.05)
    (ended,) = [one for one in both if one.process.poll() is not None]
    assert ended.process.returncode == 2
    assert "two processes are rank 1 of 3" in ended.text


@pytest.mark.parametrize("port", ["many", "70000", "²"])
def test_bad_port_is_refused(job, port):
    one = start(job, 0, 2, port)
    assert one.wait(START_S) == 2
    assert f"MASTER_PORT is `{port}`, not a port" in one.text
