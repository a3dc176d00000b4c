# SPDX-License-Identifier: Apache-2.0
"""Tests of the breakdown of a step's time, by hand-made steps and by ranks that really run."""

from __future__ import annotations

import pytest

from penstock.protocols import StepCost
from penstock.train import TrainSpec, run
from penstock.train.driver import Share, StepSums
from penstock.train.step_breakdown import PARTS, breakdown
from penstock.train.step_rows import StepRows


def share(comm, *, compute=0.010, wait=0.001, h2d=0.002):
    """Share of a rank whose steps have the given times of communication."""
    rows, at = StepRows(), 5.0
    for number, seconds in enumerate(comm, 1):
        end = at + wait + h2d + compute + seconds
        rows.add(number, at, at + wait, end, StepCost(1, compute, 0.0, None, seconds, h2d))
        at = end
    n = len(comm)
    made = Share(steps=n, wait_s=n * wait, compute_s=n * compute, h2d_s=n * h2d, comm_s=sum(comm), train_s=at - 5.0)
    made.rows = rows.pack(5.0)
    return made


def test_breakdown_separates_communication_from_the_wait_for_the_slowest_rank():
    # Rank 1 computes 4 ms longer, so rank 0 waits 4 ms for it in each allreduce, which itself takes 3 ms.
    found = breakdown([share([0.007] * 40), share([0.003] * 40, compute=0.014)])
    first, second = found["ranks"]
    assert first["exposed_communication_s"] == pytest.approx(0.003)
    assert first["slowest_rank_wait_s"] == pytest.approx(0.004)
    assert second["slowest_rank_wait_s"] == pytest.approx(0, abs=1e-12)
    assert found["slowest"] == {"rank": 1, "share_of_steps": 1.0}
    for rank in found["ranks"]:
        assert sum(rank[name] for name in PARTS) == pytest.approx(rank["step_s"])
    for step in found["timeline"]:
        assert sum(step[name] for name in PARTS) == pytest.approx(step["length_s"])
    assert found["timeline"][0]["began_s"] == 0


def test_breakdown_names_no_rank_if_each_is_slow_in_turn():
    fast, slow = 0.003, 0.007
    turns = [share([fast if k % 2 == rank else slow for k in range(100)]) for rank in range(2)]
    found = breakdown(turns)
    assert found["parts"]["slowest_rank_wait_s"] == pytest.approx(0.002, rel=1e-3)
    assert "slowest" not in found


def test_timeline_begins_after_a_pause():
    rows = StepRows()
    for number in range(1, 11):
        at = number + (50.0 if number > 6 else 0.0)
        rows.add(number, at, at + 0.25, at + 1.0, StepCost(1, 0.7))
    made = Share(steps=10, compute_s=7.0, train_s=10.0)
    made.rows = rows.pack(0.0)
    timeline = breakdown([made])["timeline"]
    assert [step["step"] for step in timeline] == [7, 8, 9, 10]
    assert timeline[0]["began_s"] == 0


def test_breakdown_of_no_step_is_empty():
    assert breakdown([Share()]) == {}


def test_rows_stay_bounded_and_on_the_same_steps_on_all_ranks():
    rows = StepRows(limit=64)
    for number in range(1, 10_001):
        rows.add(number, number * 1.0, number + 0.25, number + 1.0, StepCost(1, 0.5, 0.1, None, 0.05, 0.01))
    packed = rows.pack(0.0)
    kept = packed.rows()
    assert len(kept) < 64
    assert [row.step for row in kept] == list(range(packed.stride, 10_001, packed.stride))
    assert [row.step for row in packed.latest()] == list(range(9_977, 10_001))
    assert kept[0] == (packed.stride, float(packed.stride), 0.25, 0.01, 0.5, pytest.approx(0.15), 1.0)


def test_breakdown_leaves_the_warm_up_out():
    made = share([0.003] * 5)
    made.steady = made.sums()
    made.steps, made.train_s, made.compute_s = made.steps + 1, made.train_s + 60.0, made.compute_s + 60.0
    found = breakdown([made])
    assert (found["steps"], found["excluded_steps"]) == (5, 1)
    assert found["parts"]["compute_s"] == pytest.approx(0.010)
    made.steady = StepSums()  # a run with no other steps
    found = breakdown([made])
    assert (found["steps"], found["excluded_steps"]) == (6, 0)
    assert found["parts"]["compute_s"] == pytest.approx((5 * 0.010 + 60.0) / 6)


@pytest.mark.needs_torch
@pytest.mark.parametrize(("warm_up", "excluded"), [(0, 1), (1, 1), (3, 6), (10, 20)])
def test_run_excludes_its_first_step_or_the_warm_up_of_each_epoch(warm_up, excluded):
    spec = TrainSpec(
        workload="trivial", data="dummy://80", global_batch=8, settings={"classes": 4}, threads=1, epochs=2,
        warm_up_steps=warm_up,
    )  # fmt: skip
    result = run(spec)
    found = result["step_breakdown"]
    # If the warm-up contains all steps, the breakdown includes them, and the steady rate is None.
    assert (found["steps"], found["excluded_steps"]) == ((20 - excluded, excluded) if excluded < 20 else (20, 0))
    assert (result["steady_samples_per_s"] is None) == (excluded == 20)
    if excluded < 20:
        assert result["steady_samples_per_s"] == pytest.approx(8 / found["step_s"])


@pytest.mark.needs_torch
def test_two_ranks_report_exposed_communication_and_where_a_step_went():
    spec = TrainSpec(
        workload="cosmoflow",
        data="dummy://80",
        global_batch=4,
        settings={"voxels": 32, "filters": 2, "base_batch": 8},
        threads=1,
        ranks=2,
    )
    found = run(spec)["step_breakdown"]
    assert (found["steps"], found["excluded_steps"], found["stride"], len(found["ranks"])) == (19, 1, 1, 2)
    assert 0 < found["parts"]["exposed_communication_s"] < found["step_s"]
    assert found["parts"]["host_to_device_s"] == 0
    for rank in found["ranks"]:
        assert sum(rank[name] for name in PARTS) == pytest.approx(rank["step_s"], rel=1e-6)
