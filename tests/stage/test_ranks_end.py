# SPDX-License-Identifier: Apache-2.0
"""Tests that a signal ends a rank in `penstock.stage()` at once, and that the other ranks name it. Issue 19, P10."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from stage_kit import await_true, fill

from tests.ports import free_port

LIMIT_S = 10
PEER_S = 40  # well below the timeout for a silent rank

# A script that raises an exception on SIGTERM, as trainers do that first save a checkpoint.
SCRIPT = """
import json, os, signal, sys, time
def end(number, frame):
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, end)
kind, source, folder, out, options = sys.argv[1:6]
options = json.loads(options)
if kind == "torch":
    import torch.distributed as distributed
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
else:
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.Get_rank()
import penstock
def write(suffix, text):
    with open(f"{out}/.{rank}", "w") as file:
        file.write(text)
    os.replace(f"{out}/.{rank}", f"{out}/{rank}.{suffix}")
write("pid", str(os.getpid()))
if rank == options.pop("absent", None):
    time.sleep(options.pop("absent_s"))
    sys.exit(0)
options.pop("absent_s", None)
try:
    penstock.stage(source, folder, **options)
    write("end", "staged")
except BaseException as error:
    write("end", f"{type(error).__name__}: {error}")
    if kind == "mpi-abort":
        raise
if kind == "torch":
    os._exit(0)  # torch's own teardown aborts now and then
"""


class Job:
    """The ranks of one job, and the output of each."""

    def __init__(self, folder, kind: str, world: int, source, env=None, **options) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        script = folder / "script.py"
        script.write_text(SCRIPT)
        words = [str(script), kind, str(source), str(folder / "dst"), str(self.out), json.dumps(options)]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(env or {})}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if kind == "torch":
            port = str(free_port())
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
            place = {"LOCAL_WORLD_SIZE": str(world), "GROUP_RANK": "0"}
            self.processes = [
                subprocess.Popen(
                    [sys.executable, *words],
                    env={**env, **meeting, **place, "RANK": str(r), "LOCAL_RANK": str(r)}, **quiet,
                )
                for r in range(world)
            ]  # fmt: skip
        else:
            line = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(world), sys.executable]
            line += ["-m", "mpi4py"] if kind == "mpi-abort" else []
            self.processes = [subprocess.Popen([*line, *words], env=env, **quiet)]
        await_true(lambda: all((self.out / f"{rank}.pid").exists() for rank in range(world)), 90)
        self.pids = [int((self.out / f"{rank}.pid").read_text()) for rank in range(world)]

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def end_of(self, rank: int, limit_s: float) -> str:
        file = self.out / f"{rank}.end"
        await_true(file.exists, limit_s)
        return file.read_text()


@pytest.fixture
def job(tmp_path):
    started = []

    def start(kind: str, world: int, source, **options) -> Job:
        started.append(Job(tmp_path, kind, world, source, **options))
        return started[-1]

    yield start
    for one in started:
        for process in one.processes:
            process.kill()
            process.wait()
        for pid in one.pids:
            subprocess.run(["kill", "-KILL", str(pid)], stderr=subprocess.DEVNULL, check=False)


@pytest.fixture
def source(tmp_path):
    fill(tmp_path / "source", 8, 1000)
    return tmp_path / "source/set"


KINDS = [pytest.param("torch", marks=pytest.mark.needs_torch), "mpi"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", [0, 1])
def test_stage_ends_on_all_ranks_when_one_is_told_to_end(kind, victim, job, slow_bucket, tmp_path):
    """Rank 0 stages; the others wait for it."""
    three = job(kind, 3, slow_bucket.url, env=slow_bucket.env)
    await_true(lambda: (tmp_path / "dst").exists() and any((tmp_path / "dst").rglob("*.bin")))
    three.signal(victim, signal.SIGTERM)
    assert three.end_of(victim, LIMIT_S) == "SystemExit: 143"
    left = f"RankFailed: rank {victim} failed: penstock.stage raised SystemExit: 143"
    assert [three.end_of(rank, PEER_S) for rank in range(3) if rank != victim] == [left] * 2


@pytest.mark.needs_torch
def test_stage_waiting_for_a_rank_that_is_late_ends_on_all_when_one_is_told_to_end(job, source):
    three = job("torch", 3, source, absent=2, absent_s=80)
    time.sleep(2)  # ranks 0 and 1 usually wait by then; if not, the result is the same
    three.signal(1, signal.SIGTERM)
    assert three.end_of(1, LIMIT_S) == "SystemExit: 143"
    assert three.end_of(0, PEER_S) == "RankFailed: rank 1 failed: penstock.stage raised SystemExit: 143"


@pytest.mark.needs_torch
def test_stage_whose_store_is_stopped_ends_when_it_is_told_to_end(job, slow_bucket, tmp_path):
    """The store is in rank 0, so a request to it waits in native code while that rank is stopped."""
    both = job("torch", 2, slow_bucket.url, env=slow_bucket.env)
    await_true(lambda: (tmp_path / "dst").exists() and any((tmp_path / "dst").rglob("*.bin")))
    both.signal(0, signal.SIGSTOP)
    time.sleep(2)
    both.signal(1, signal.SIGTERM)
    assert both.end_of(1, LIMIT_S) == "SystemExit: 143"
    assert both.processes[1].wait(LIMIT_S) == 0


def test_stage_under_mpi_gives_up_on_a_rank_that_never_comes(job, source):
    three = job("mpi", 3, source, absent=2, absent_s=8, join_timeout_s=3)
    late = "RankFailed: rank {} failed: not all of 3 ranks called penstock.stage within 3 s"
    assert [three.end_of(rank, PEER_S) for rank in range(2)] == [late.format(rank) for rank in range(2)]


def test_stage_under_mpi_that_waits_for_a_rank_ends_all_when_one_is_told_to_end(job, source):
    """mpi4py's runner aborts the job on an exception. Earlier, the waiting rank never raised one."""
    three = job("mpi-abort", 3, source, absent=2, absent_s=80)
    time.sleep(2)
    three.signal(1, signal.SIGTERM)
    assert three.end_of(1, LIMIT_S) == "SystemExit: 143"
    assert three.processes[0].wait(LIMIT_S) == 143
