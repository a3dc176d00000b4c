# SPDX-License-Identifier: Apache-2.0
"""Tests of the lines that `penstock train` prints: width, rates with checkpoints, a resume of a complete training, and
options that exclude each other.
"""

from __future__ import annotations

import copy

import pytest
from click.testing import CliRunner

from penstock.cli.train import command
from penstock.cli.train_output import print_result
from penstock.cli.wrapping import wrap_line
from penstock.train import TrainSpec, run

pytestmark = pytest.mark.needs_torch


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of a training with checkpoints, and of its resume, which has nothing left to do."""
    spec = {
        "workload": "cosmoflow",
        "data": "dummy://24",
        "global_batch": 4,
        "settings": {"voxels": 32, "filters": 2},
        "threads": 1,
        "checkpoint": str(tmp_path_factory.mktemp("kept")),
        "checkpoint_steps": 2,
    }
    return run(TrainSpec(**spec)), run(TrainSpec(**spec, resume=True))


def test_result_is_wrapped_between_words_at_the_width_of_the_terminal(results, capsys, monkeypatch):
    texts = []
    for columns in (80, 500):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_result(results[0], "runs", saved=False)
        texts.append(capsys.readouterr().out)
    narrow, wide = texts
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()


def test_result_states_stalls_as_a_share_of_the_training_time(results, capsys, monkeypatch):
    """Figures of an audit: 2.29 s of stalls beside 1.3 s of training were printed as 47.9 %."""
    monkeypatch.setenv("COLUMNS", "500")
    result = copy.deepcopy(results[0])
    result.update(samples_per_s=36.4, steady_samples_per_s=36.5)
    result["checkpoints"].update(
        saves=3, stall_s=2.29, stall_share=0.479, training_stall_share=0.636, samples_per_s=13.2, end_wait_s=0.9
    )
    print_result(result, "runs", saved=False)
    out = capsys.readouterr().out
    assert "36.4 samples/s (13.2 with checkpoints)" in out
    assert (
        "stalls of 763.3 ms per checkpoint took 63.6 % of the training time, and the last write 0.9 s after it" in out
    )
    assert "47.9" not in out


def test_resume_of_a_complete_training_is_reported_as_complete(results, capsys):
    print_result(results[1], "runs", saved=False)
    out = capsys.readouterr().out
    assert out.startswith("already complete at step 6: nothing was left to train\n")
    assert "INVALID" not in out
    assert results[1]["invalid"] == ["no step was taken"]  # the row has no rate to compare


def test_synthetic_with_data_is_refused():
    done = CliRunner().invoke(command, ["cosmoflow", "--synthetic", "--data", "volumes"])
    assert "--synthetic and --data cannot be combined" in str(done.exception)


@pytest.mark.parametrize(
    ("steady", "warm_up", "text"),
    [
        (36.5, 0, "36.4 samples/s, data wait"),
        (52.0, 0, "36.4 samples/s (52.0 after the first step), data wait"),
        (36.4, 5, "36.4 samples/s (36.4 after 5 steps of warm-up), data wait"),
        (None, 5, "36.4 samples/s, data wait"),
    ],
)
def test_result_states_the_rate_without_the_warm_up_if_it_differs(results, capsys, monkeypatch, steady, warm_up, text):
    monkeypatch.setenv("COLUMNS", "500")
    result = {
        **results[0],
        "samples_per_s": 36.4,
        "steady_samples_per_s": steady,
        "warm_up_steps": warm_up,
        "checkpoints": {},
    }
    print_result(result, "runs", saved=False)
    assert text in capsys.readouterr().out


def test_wrapped_line_does_not_break_before_a_percent_sign():
    assert wrap_line("a b 0.1 %, c", 8, 2) == ["a b", "  0.1 %,", "  c"]
