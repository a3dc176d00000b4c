# SPDX-License-Identifier: Apache-2.0
"""Tests of the comparison of real with synthetic data."""

from __future__ import annotations

import json
import re
import time

import pytest
from click.testing import CliRunner

from penstock.cli.train import command
from penstock.errors import ConfigError
from penstock.train import TrainSpec, run
from penstock.train.data_path_cost import Turn, compare_turns, doubt, limit_of
from penstock.train.driver import EpochTime
from penstock.train.source import DummyFeed

SETTINGS = {"voxels": 32, "filters": 2, "base_batch": 8}


def spec(**fields):
    made = {
        "workload": "cosmoflow",
        "data": "dummy://16",
        "global_batch": 1,
        "settings": SETTINGS,
        "accelerator": "h100",
        "compare_synthetic": True,
        "turn_steps": 6,
        "warm_up_steps": 1,
        "max_turns": 16,
    }
    return TrainSpec(**{**made, **fields})


class SlowFeed(DummyFeed):
    """A data path that adds 6 ms to each step, and says that the store throttles it."""

    passes = 0

    def __iter__(self):
        type(self).passes += 1
        for batch in super().__iter__():
            time.sleep(0.006)
            yield batch

    def report(self):
        return {"wall_s": 1.0, "throttle_s": 0.8, "transfer_s": 0.1}


def test_planted_cost_of_the_data_path_is_found_and_its_limit_named():
    result = run(spec(), source=SlowFeed)
    found = result["data_path"]
    # A step of an H100 takes 3.5 ms, so the planted wait takes 6 / 9.5 of the time.
    assert found["verdict"] == "different"
    assert found["cost"] > 0.3
    assert found["interval"][0] <= found["ratio"] <= found["interval"][1] < 1
    assert found["limiting"] == "throttle_s"
    assert len(found["real"]["turns"]) == len(found["synthetic"]["turns"])
    # Waiting uses no CPU time, so both sides use about the same; the emulated accelerator spins.
    for side in ("real", "synthetic"):
        assert 0 < found[side]["cpu_s_per_sample"] < 0.1
    # Standard figures are those of the real turns alone: the turns of both sides, and one of warm-up.
    assert result["kind"] == "train-compare"
    assert result["samples"] == 6 * (len(found["real"]["turns"]) + 1)
    assert result["samples_per_s"] == found["real"]["median"]
    assert result["step_breakdown"]["parts"]["data_wait_s"] > 0.005


def test_real_data_faster_than_memory_is_doubted():
    fair = {"interval": [0.97, 1.01], "ratio": 0.99, "margin": 0.02, "start_share": 0.01}
    assert doubt(fair) is None
    assert doubt({**fair, "interval": [None, None]}) is None
    assert "1.50 times as fast" in doubt({**fair, "interval": [1.1, 2.0], "ratio": 1.5})
    assert "took 90 % of the time of a turn" in doubt({**fair, "start_share": 0.9})


def _compared(turn_steps):
    """Comparison with a model of a feed: its start takes 0.1 s, and it then delivers 1,000 samples/s, while the step takes
    0.1 ms. What the feed reads during its start is consumed at the rate of the steps.
    """
    lengths = []

    def run(turn, is_synthetic):
        steps, warm_up, start_s, step_s, supply_s = len(turn), 5, 0.1, 0.0001, 0.001
        if is_synthetic:
            return EpochTime(
                0, steps, steps, wall_s=steps * step_s, warm_up_s=warm_up * step_s, warm_up_samples=warm_up
            )
        lengths.append(steps)
        read_ahead = start_s / supply_s
        wall_s = start_s + steps * step_s + max(0.0, steps - read_ahead) * (supply_s - step_s)
        return EpochTime(0, steps, steps, wall_s=wall_s, warm_up_s=start_s + warm_up * step_s, warm_up_samples=warm_up)

    found = compare_turns(
        run,
        lambda value: [value],
        DummyFeed,
        DummyFeed,
        turn_steps=turn_steps,
        warm_up_steps=5,
        global_batch=1,
        max_turns=16,
        seed=0,
        unit="samples/s",
    )
    return found, lengths


def test_turns_are_long_enough_to_use_up_what_was_read_during_the_start():
    found, lengths = _compared(None)
    assert lengths[0] == 35
    assert lengths[1] < 500  # a turn of the length that the first one suggests would take 50 s
    assert len(set(lengths[3:])) == 1
    assert found["cost"] == pytest.approx(0.9, abs=0.01)
    assert found["cost_per_s"] == pytest.approx(9000, rel=0.02)
    assert found["start_share"] < 0.03
    assert doubt(found) is None


def test_turns_that_only_use_what_was_read_during_the_start_are_invalid():
    found, lengths = _compared(30)
    assert set(lengths) == {30}
    assert found["cost"] == pytest.approx(0.0, abs=0.01)
    assert "omit --turn-steps" in doubt(found)


def test_turn_continues_over_epochs_and_ends_its_pass():
    ended = []

    class Feed:
        epochs = 0

        def set_epoch(self, epoch):
            self.epochs = epoch

        def __iter__(self):
            try:
                yield from range(3)
            finally:
                ended.append(self.epochs)

    assert list(Turn(Feed(), 7, 4)) == [0, 1, 2, 0, 1, 2, 0]
    assert ended == [4, 4, 4]


def test_limit_is_the_model_if_the_data_path_keeps_up():
    assert limit_of({"verdict": "same", "ratio": 0.995}, [{"decode_s": 5.0}])["limiting"] == "compute_s"
    found = limit_of({"verdict": "different", "ratio": 0.5}, [{"decode_s": 5.0, "transfer_s": 1.0}, {"decode_s": 4.0}])
    assert (found["limiting"], found["seconds"]) == ("decode_s", {"decode_s": 9.0, "transfer_s": 1.0})
    assert "90 %" in found["reason"]


def test_limit_is_unknown_if_no_cost_is_shown():
    found = limit_of({"verdict": "none shown", "ratio": 0.97}, [{"overhead_s": 9.0, "decode_s": 1.0}])
    assert found["limiting"] == "unknown"
    assert found["reason"] == "no cost is shown; 90 % of the waiting for data went to overhead"


@pytest.mark.needs_torch
def test_two_ranks_take_the_same_turns():
    result = run(spec(accelerator=None, global_batch=4, ranks=2, threads=1, max_turns=8, turn_steps=3))
    assert result["world"] == 2
    assert result["losses"] == []
    assert len(result["data_path"]["real"]["turns"]) == 4
    assert result["steps"] == 3 * (8 + 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turn_steps": 3, "warm_up_steps": 3}, "no measured step"),
        ({"steps": 10, "validation": "dummy://4"}, "steps and validation: not supported"),
    ],
)
def test_comparison_that_cannot_be_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        run(spec(**fields))


def train(*arguments):
    base = ["cosmoflow", "--voxels", "32", "--filters", "2", "--accelerator", "h100", "--no-save", "--batch-size", "2"]
    return CliRunner().invoke(command, [*base, *arguments])


def test_cli_synthetic_reads_nothing():
    done = train("--synthetic", "--steps", "5", "--json")
    result = json.loads(done.stdout)
    assert (result["steps"], result["bytes"], result["requests"]) == (5, 0, 0)
    assert result["spec"]["data"] == "dummy://10"


def test_cli_comparison_prints_both_rates_and_the_cost():
    done = train("--data", "dummy://20", "--compare-synthetic", "--turn-steps", "6", "--max-turns", "16")
    lines = done.stdout.replace("\n  ", " ").splitlines()  # without the terminal's wraps
    assert lines[0].startswith("real ")
    assert lines[1].startswith("synthetic ")
    assert re.match(
        r"the data path costs .* % \(.* samples/s\), 95 % interval (.* %, .* samples/s|unknown): ", lines[2]
    )
    assert lines[3].startswith("real / synthetic = ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the training data is missing"),
        (("--synthetic", "--compare-synthetic"), "cannot be combined"),
    ],
)
def test_cli_bad_choice_of_data_is_refused(arguments, message):
    done = train(*arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
