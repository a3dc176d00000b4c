# SPDX-License-Identifier: Apache-2.0
"""Tests the rendezvous of ranks: if ranks are missing at the deadline, or disagree on their number, the error names them."""

from __future__ import annotations

import time

import pytest
from rank_kit import FLAGS, START_S

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
    # The second rank may have started seconds before or after the first: it names the same ranks, or the lost store.
    assert "ranks 1, 3 of 4" in both[1].text or "lost the store of rank 0" in both[1].text


def test_missing_rank_0_is_named(job):
    only = start(job, 1, 2, free_port(), timeout="1s")
    assert only.wait(START_S) == 1
    assert "rank 1 of 2 reached no rank 0 at 127.0.0.1:" in only.errors()[0]


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
