# SPDX-License-Identifier: Apache-2.0
"""Tests the errors of ranks that the time limit ended, from the messages that they sent."""

from __future__ import annotations

import json

import pytest

from penstock.bench.net.launch import _RankLog
from penstock.bench.net.plan import NetPlan
from penstock.errors import Deadline
from penstock.protocols import Exit

_LIMIT_S = 18.0


def ended(*messages):
    """Error of two ranks that send messages and then are ended by the time limit."""
    log = _RankLog(NetPlan(), 2, None, on_fault=lambda: None)
    for rank, message in messages:
        log.line("n0", rank, "out", json.dumps(message).encode())
    return log.error([Exit("n0", rank, None, fault=Deadline("n0: stopped")) for rank in (0, 1)], _LIMIT_S)


_AT_BW = [(rank, {"at": [4, "bw", 8]}) for rank in (0, 1)]


def test_rank_that_does_not_answer_the_end_is_named():
    error = ended(*_AT_BW, (0, {"ended": True}))
    assert str(error) == (
        "bench net: rank 1 of 2 did not respond during bw of 8 bytes, and the other ranks waited until the time limit of 18 s"
    )


@pytest.mark.parametrize("answers", [[], [(0, {"ended": True}), (1, {"ended": True})]])
def test_ranks_without_progress_get_no_advice_to_wait_longer(answers):
    error = ended(*_AT_BW, *answers)
    assert "no rank made progress after 0 s: all were in bw of 8 bytes until the time limit of 18 s" in str(error)
    assert "--timeout" not in error.hint
