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
    result.update(samples_per_s=36.4)
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
