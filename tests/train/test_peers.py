# SPDX-License-Identifier: Apache-2.0
"""Tests, on a real store, that ranks detect a dead rank, and that all report the first cause."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from torch import distributed

from penstock.errors import Corrupt, RankFailed
from penstock.train import peers

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def watch(monkeypatch):
    """`watch(world)` gives the watchers of all ranks, not yet started, and a queue of the arguments of `on_lost`."""
    for name, seconds in {
        "_HEARTBEAT_S": 0.1,
        "_IDLE_TIMEOUT_S": 3.0,
        "_IDLE_POLL_S": 0.2,
        "_GRACE_S": 0.2,
        "_HEARTBEAT_TIMEOUT_S": 2.0,
        "_LEAVE_S": 2.0,
    }.items():
        monkeypatch.setattr(peers, name, seconds)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = []

    def start(world: int):
        lost = queue.SimpleQueue()
        monkeypatch.setattr(peers, "_RUNS", iter([7] * world))
        made.extend(peers.Peers(store, rank, world, lost.put) for rank in range(world))
        return made, lost

    yield start
    for one in reversed(made):  # rank 0 waits for the others
        if one._thread.ident is not None:
            one.close()


@pytest.mark.parametrize("silent", [0, 1])
def test_peer_that_gives_no_sign_is_dead(watch, silent):
    both, lost = watch(2)
    both[1 - silent].start()
    cause = lost.get(timeout=30)
    assert str(cause) == f"rank {silent} failed: sent no heartbeat for 3 s"
    assert (type(cause), cause.rank) == (RankFailed, silent)


def test_first_cause_is_the_same_on_all_ranks(watch):
    three, lost = watch(3)
    for one in three:
        one.start()
    three[1].post(Corrupt("shard 7 is damaged", hint="fetch it again"))
    three[2].post(KeyboardInterrupt())
    found = {str(lost.get(timeout=30)) for _ in range(3)}
    assert found == {"shard 7 is damaged", "rank 1 failed: shard 7 is damaged"}


def test_echo_without_a_cause_names_the_rank_that_stopped_counting(watch):
    three, _ = watch(3)
    for one in three[:2]:
        one.start()
    assert str(three[0].first_cause()) == "rank 2 failed: ended without a message"
    assert str(three[1].first_cause()) == "rank 2 failed: ended without a message"


def test_echo_where_all_ranks_answer_has_no_cause(watch):
    both, lost = watch(2)
    for one in both:
        one.start()
    assert both[0].first_cause() is None
    assert lost.empty()


def test_run_that_ends_well_calls_nothing(watch):
    both, lost = watch(2)
    for one in both:
        one.start()
    for one in reversed(both):
        one.close()
        one._thread.join(10)
        assert not one._thread.is_alive()
    assert lost.empty()


def test_close_on_rank_0_waits_until_the_others_have_left(watch):
    both, _ = watch(2)
    for one in both:
        one.start()
    closing = threading.Thread(target=both[0].close)
    closing.start()
    time.sleep(0.5)
    assert closing.is_alive()
    both[1].close()
    closing.join(1)
    assert not closing.is_alive()


def test_close_on_rank_0_waits_for_a_rank_that_left_no_longer_than_the_limit(watch):
    both, _ = watch(2)
    both[0].start()
    began = time.monotonic()
    both[0].close()
    assert time.monotonic() - began >= 2
