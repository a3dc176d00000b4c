# SPDX-License-Identifier: Apache-2.0
"""Tests of staging inside a run: its time counts, and the losses are those of the original data."""

from __future__ import annotations

import json

import pytest

from penstock.datasets import cosmoflow
from penstock.errors import ConfigError, PenstockError
from penstock.train import TrainSpec, run

pytestmark = pytest.mark.needs_torch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    cosmoflow.generate(folder, samples=12, voxels=32, seed=3)
    return folder


def spec(data, **fields):
    made = {
        "workload": "cosmoflow",
        "data": str(data),
        "global_batch": 4,
        "settings": {"voxels": 32, "filters": 2, "base_batch": 8},
        "threads": 1,
        "seed": 5,
    }
    return TrainSpec(**{**made, **fields})


@pytest.mark.parametrize("ranks", [1, 2])
def test_staged_run_learns_the_same_and_counts_the_staging(data, tmp_path, ranks):
    log = tmp_path / "log"
    direct = run(spec(data, ranks=ranks))
    staged = run(spec(data, ranks=ranks, stage=str(tmp_path / "staged"), stage_decompress=True, mllog=str(log)))
    assert staged["losses"] == direct["losses"]
    assert len(list((tmp_path / "staged").glob("*.tfrecord"))) == 12
    assert direct["stage_s"] == 0
    assert 0 < staged["stage_s"] < staged["time_to_train_s"] <= staged["wall_s"]
    assert staged["time_to_train_s"] > staged["stage_s"] + staged["train_s"]
    keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in log.read_text().splitlines()]
    order = [keys.index(key) for key in ("run_start", "staging_start", "staging_stop", "epoch_start")]
    assert order == sorted(order)


def test_failed_staging_ends_the_run_with_its_own_error(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match="file"):
        run(spec(data, stage=str(tmp_path / "file" / "staged")))


def test_staging_of_synthetic_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="synthetic data cannot be staged"):
        run(spec("dummy://8", stage=str(tmp_path)))
