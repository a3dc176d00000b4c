# SPDX-License-Identifier: Apache-2.0
"""Tests the explanation in the report for a rehearsal that the step model did not predict."""

import pytest

from penstock.demo.compare import missed

STEP_S = 0.4348


@pytest.mark.parametrize("rate", [294.0, 240.0, 350.0])
def test_rehearsal_within_a_fifth_of_the_model_needs_no_reason(rate):
    assert missed(rate, 294.0, {"accelerators": STEP_S}) == ""


def test_rehearsal_with_slow_steps_names_the_busy_cores():
    reason = missed(147.0, 294.0, {"accelerators": 2 * STEP_S, "inflating": 0.001})
    assert reason == "emulated steps of 435 ms took 870 ms, so its cores were busy"


def test_rehearsal_that_waited_names_the_longest_wait():
    reason = missed(147.0, 294.0, {"accelerators": STEP_S, "inflating": 0.3, "throttled": 0.1})
    assert reason == "a step waited 400 ms, mostly for “inflating”"
