# SPDX-License-Identifier: Apache-2.0
"""Tests A/B comparison: its error rate holds with a check after each block, and it detects real differences."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.ab import Metric, compare, runner
from penstock.bench.sequential import always_valid, bootstrap, evidence
from penstock.errors import ConfigError, Deadline, NotFound, SystemFault


def machine(kind, seed, effect=0.0):
    """A machine whose run times vary in the way that `kind` names; B takes e**effect times as long as A."""
    draw = random.Random(seed)
    state = {"runs": 0, "level": 0.0}

    def run(_argv, name):
        state["runs"] += 1
        if kind == "even":
            error = draw.gauss(0, 0.1)
        elif kind == "wild":
            error = max(-3.0, min(3.0, 0.02 * math.tan(math.pi * (draw.random() - 0.5))))
        elif kind == "spikes":
            error = draw.gauss(0, 0.03) + (draw.expovariate(1) if draw.random() < 0.1 else 0)
        elif kind == "drifting":
            error = draw.gauss(0, 0.03) + 0.01 * state["runs"]
        elif kind == "moody":
            state["level"] = error = 0.9 * state["level"] + draw.gauss(0, 0.05)
        else:  # two speeds
            error = (0.5 if draw.random() < 0.5 else 0.0) + draw.gauss(0, 0.01)
        return math.exp(error + (effect if name == "B" else 0.0))

    return run


# Issue 6: at most 5 % false alarms in 200 runs of A against A, with a check after each block.
@pytest.mark.parametrize("kind", ["even", "wild", "spikes", "drifting", "moody", "two speeds"])
def test_ab_a_against_a_raises_few_false_alarms(kind):
    result = [compare(["a"], ["a"], machine(kind, seed), seed=seed, max_runs=120, warm_up=0) for seed in range(200)]
    assert sum(t.verdict == "different" for t in result) <= 10


def test_ab_peeking_with_a_fixed_interval_would_not_hold():
    """Why the sequential bound is needed: a bootstrap interval, checked after each block, fails on the same runs."""
    alarms = 0
    for seed in range(200):
        run = machine("even", seed)
        blocks = []
        for _ in range(30):
            a, b = (math.log(run([], name)) + math.log(run([], name)) for name in "AB")
            blocks.append((b - a) / 2)
            if len(blocks) >= 3:
                low, high = bootstrap(blocks, 0.05, seed=seed, resamples=100)
                if low > 0 or high < 0:
                    alarms += 1
                    break
    assert alarms > 40


@pytest.mark.parametrize(("effect", "runs", "share"), [(0.1, 120, 0.9), (0.3, 60, 0.98), (-1.0, 32, 0.98)])
def test_ab_difference_is_found_soon(effect, runs, share):
    result = [compare(["a"], ["b"], machine("even", s, effect), seed=s, max_runs=runs, warm_up=0) for s in range(60)]
    found = [t for t in result if t.verdict == "different"]
    assert len(found) >= share * len(result)
    assert all((t.ratio > 1) == (effect > 0) for t in found)
    held = [t for t in result if t.interval[0] is not None and t.interval[0] <= math.exp(effect) <= t.interval[1]]
    known = [t for t in result if t.interval[0] is not None]
    assert len(held) >= 0.95 * len(known)


def test_ab_no_difference_above_the_margin_stops_early():
    result = compare(["a"], ["b"], lambda *_: 1.0, max_runs=200)
    assert (result.verdict, result.ratio) == ("same", 1.0)
    assert result.runs <= 24


def test_ab_drift_falls_out_of_each_block():
    clock = iter(range(10_000))
    result = compare(["a"], ["b"], lambda *_: math.exp(0.01 * next(clock)), max_runs=80)
    assert result.ratio == pytest.approx(1.0)
    assert result.verdict == "same"


def test_ab_blocks_of_both_orders_are_drawn():
    seen = []
    compare(["a"], ["b"], lambda _argv, name: seen.append(name) or 1.0 + len(seen) % 7, max_runs=80, warm_up=0)
    blocks = {"".join(seen[i : i + 4]) for i in range(0, len(seen), 4)}
    assert blocks == {"ABBA", "BAAB"}


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30), st.floats(0.01, 0.2))
def test_prop_interval_holds_what_the_evidence_does_not_speak_against(blocks, alpha):
    low, high = always_valid(blocks, alpha)
    assert low <= math.fsum(blocks) / len(blocks) + 1e-9
    inside = evidence(blocks) < 1 / alpha
    if abs(low) > 1e-6 and abs(high) > 1e-6 and low < high:
        assert inside == (low <= 0 <= high)


def python(code):
    return [sys.executable, "-c", code]


def test_runner_wall_and_cpu_are_of_the_run():
    asleep = python("import time; time.sleep(0.3)")
    assert runner(Metric("wall"))(asleep, "A") >= 0.3
    assert runner(Metric("cpu"))(asleep, "A") < runner(Metric("wall"))(asleep, "A")


@pytest.mark.parametrize(
    ("pattern", "value"), [(None, 7.5), (r"rate=(\S+)", 1200.0), (r"(\d+) (?:MB)/s", 33.0), (r"x=(\d)(\d)", 4.0)]
)
def test_runner_printed_number_is_the_last_that_fits(pattern, value):
    write = python("print('rate=1_200 x=45\\n12 MB/s 33 MB/s took 7.5')")
    assert runner(Metric("printed", pattern))(write, "A") == value


@pytest.mark.parametrize(
    ("argv", "metric", "kind", "output"),
    [
        (["/no/such/command"], Metric(), NotFound, "not found"),
        (
            python("import sys; sys.exit('disk is gone')"),
            Metric(),
            SystemFault,
            "failed with exit code 1 .*disk is gone",
        ),
        (python("pass"), Metric("printed"), ConfigError, "printed no number"),
        (python("print(0)"), Metric("printed"), ConfigError, "above 0"),
        (python("print('x')"), Metric("printed", "(x)"), ConfigError, "not a number"),
    ],
)
def test_runner_run_without_output_is_reported(argv, metric, kind, output):
    with pytest.raises(kind, match=output):
        runner(metric)(argv, "A")


def test_runner_stops_what_takes_too_long_with_all_that_it_started(tmp_path):
    lock, begun = tmp_path / "lock", tmp_path / "begun"
    slow = ["sh", "-c", f"(flock 9; touch {begun}; sleep 600) 9> {lock} & sleep 600"]
    # On a slow machine, starting the processes may take longer than the first limit.
    for limit_s in (0.2, 2, 20):
        with pytest.raises(Deadline, match=f"within {limit_s} s"):
            runner(Metric(), limit_s=limit_s)(slow, "B")
        if begun.exists():
            break
    assert begun.exists()
    # The lock is free once the last background process has ended.
    subprocess.run(["flock", "--timeout", "60", lock, "true"], check=True)


@pytest.mark.parametrize("settings_", [{"alpha": 0}, {"alpha": 1}, {"margin": 1}, {"max_runs": 4}])
def test_compare_impossible_settings_are_refused(settings_):
    with pytest.raises(ConfigError):
        compare(["a"], ["b"], lambda *_: 1.0, **settings_)
