# SPDX-License-Identifier: Apache-2.0
"""Tests that a rank that ends also ends its peers within the limit, with one error that names the first cause."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from rank_kit import FLAGS, FOREVER, LIMIT_S, START_S, below, lives, ranks_below

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]

# The peer's watcher reads the cause within a second; torch must then end, too.
PEER_S = 30


def await_stuck(pid: int) -> None:
    """Waits until the process's main thread uses no CPU, which means that it waits for a peer inside torch."""
    used, until = -1, time.monotonic() + START_S
    while time.monotonic() < until:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        now = int(fields[11]) + int(fields[12])
        if now == used:
            return
        used = now
        time.sleep(1)
    raise AssertionError("the rank never waits")


@pytest.fixture
def training(ranks):
    """`training(2)` starts the ranks of an endless training, and returns in its first steps."""

    def start(world: int):
        started = ranks(world, "cosmoflow", *FLAGS, "--data", "dummy://240", "--global-batch", str(2 * world), *FOREVER)
        started[0].await_text("train epoch")
        return started

    return start


# Issue 19, P10.
def test_rank_that_waits_for_a_stopped_peer_ends_on_sigterm_and_takes_the_others_along(training):
    first, second, stopped = training(3)
    stopped.process.send_signal(signal.SIGSTOP)
    await_stuck(second.process.pid)
    second.process.terminate()
    assert second.wait(LIMIT_S) == 143
    assert second.text.splitlines()[-1].startswith("terminated: the command was waiting in native code")
    assert first.wait(PEER_S) == 1
    assert first.errors() == ["error[rank-failed]: rank 1 failed: ended by SIGTERM"]
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.wait(PEER_S) == 1
    (line,) = stopped.errors()
    assert line.startswith("error[rank-failed]: rank "), line


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "SIGINT")])
def test_rank_that_is_signalled_while_it_works_ends_its_peer(training, number, code, word):
    first, second = training(2)
    second.process.send_signal(number)
    assert second.wait(LIMIT_S) == code
    assert first.wait(PEER_S) == 1
    assert first.errors() == [f"error[rank-failed]: rank 1 failed: ended by {word}"]


# Issue 19, P15.
@pytest.mark.parametrize(
    ("victim", "message"),
    [
        (0, "rank 0 ended without a message: the process group's store does not respond"),
        (1, "rank 1 failed: ended without a message"),
    ],
)
def test_peer_that_is_killed_is_reported_as_dead(training, victim, message):
    both = training(2)
    both[victim].process.kill()
    survivor = both[1 - victim]
    assert survivor.wait(PEER_S) == 1
    assert survivor.errors() == [f"error[rank-failed]: {message}"]
    assert "gloo" not in survivor.text


def started(job, *arguments):
    """Starts `penstock train --ranks 2`; returns it and the pids of its ranks, in its first steps."""
    one = job("cosmoflow", *FLAGS, "--data", "dummy://240", *FOREVER, "--ranks", "2", *arguments)
    one.await_text("train epoch")
    ranks = ranks_below(one)
    assert sorted(ranks) == [0, 1]
    return one, ranks


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_rank_of_a_launcher_that_is_killed_is_named_with_its_signal(job, number):
    one, ranks = started(job)
    processes = below(one.process.pid)
    os.kill(ranks[1], number)
    assert one.wait(PEER_S) == 1
    assert one.errors() == [f"error[rank-failed]: rank 1 failed: killed by {number.name}"]
    assert not [pid for pid in processes if lives(pid)]


def test_launcher_with_a_stopped_rank_ends_on_sigterm_and_leaves_none(job):
    one, ranks = started(job)
    processes = below(one.process.pid)
    os.kill(ranks[1], signal.SIGSTOP)
    await_stuck(ranks[0])
    one.process.terminate()
    assert one.wait(LIMIT_S) == 143
    assert one.text.splitlines()[-1] == "terminated"
    assert not [pid for pid in processes if lives(pid)]


def test_launcher_that_is_killed_leaves_no_rank(job):
    one, _ = started(job)
    processes = below(one.process.pid)
    one.process.kill()
    until = time.monotonic() + PEER_S
    while left := [pid for pid in processes if lives(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


@pytest.fixture
def mortal(tmp_path):
    """A package with a workload that waits for the other rank in each step, and fails on rank 1 in its third."""
    info = tmp_path / "site/mortal-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mortal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock.workloads]\nmortal = mortal:Mortal\n")
    (tmp_path / "site/mortal.py").write_text("""
from penstock.errors import Corrupt
from penstock.protocols import Demand, InputField, StepCost
class Mortal:
    def demand(self, spec):
        self.rank, self.steps, self.how = spec.rank, 0, spec.settings["how"]
        return Demand(fields={"n": InputField("int16", (2,))}, arrays="numpy", sample_bytes=4)
    def prepare(self, spec): pass
    def begin_epoch(self, epoch): pass
    def step(self, batch):
        import torch
        self.steps += 1
        if self.rank == 1 and self.steps == 3:
            raise {"value": ValueError("worn out"), "corrupt": Corrupt("shard 7 is damaged", hint="fetch it again")}[self.how]
        torch.distributed.all_reduce(torch.ones(1))
        return StepCost(len(batch["n"]), 0.0)
    def evaluate(self, batches): return {}
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
    def cleanup(self): pass
""")
    return {"PYTHONPATH": str(tmp_path / "site")}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("value", "error[rank-failed]: rank 1 failed: ValueError: worn out"),
        ("corrupt", "error[corrupt]: rank 1: shard 7 is damaged"),
    ],
)
def test_error_of_one_rank_is_the_error_of_the_job(job, mortal, how, message):
    one = job("mortal", "--data", "dummy://240", "--no-save", "--ranks", "2", "--set", f"how={how}", env=mortal)
    assert one.wait(START_S) == 1
    assert one.errors() == [message]


def test_error_of_one_rank_is_the_cause_on_its_peers(ranks, mortal, monkeypatch):
    for name, value in mortal.items():
        monkeypatch.setenv(name, value)
    first, second = ranks(2, "mortal", "--data", "dummy://240", "--no-save", "--set", "how=corrupt")
    assert (first.wait(START_S), second.wait(START_S)) == (1, 1)
    assert second.errors() == ["error[corrupt]: shard 7 is damaged"]
    assert first.errors() == ["error[rank-failed]: rank 1 failed: shard 7 is damaged"]
    assert "hint: fetch it again" in first.text
