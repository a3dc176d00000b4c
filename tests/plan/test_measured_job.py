# SPDX-License-Identifier: Apache-2.0
"""Tests of predictions that start from a measured training run."""

from __future__ import annotations

import msgspec
import pytest

from penstock.bench.results import RunRecord
from penstock.errors import ConfigError
from penstock.plan.measured_job import job_from_run
from penstock.plan.model import Route, predict
from penstock.train import TrainSpec, run

DATASET = {
    "samples": 1000,
    "epochs": 2,
    "stored_bytes": 1_000_000,
    "nic_bytes_per_s": 1e9,
    "account_bytes_per_s": 1e9,
}


@pytest.fixture(scope="module")
def record():
    spec = TrainSpec(
        workload="cosmoflow", data="dummy://80", global_batch=4, settings={"voxels": 32}, accelerator="h100"
    )
    return msgspec.convert(run(spec), RunRecord)


def test_prediction_from_a_run_has_its_compute_time_and_communication(record):
    parts = {**record.step_breakdown["parts"], "exposed_communication_s": 0.002, "slowest_rank_wait_s": 0.5}
    measured = msgspec.structs.replace(record, step_breakdown={**record.step_breakdown, "parts": parts}, world=2)
    job = job_from_run(measured, **DATASET, nodes=2)
    assert (job.nodes, job.ranks_per_node, job.batch_per_rank, job.global_batch) == (2, 1, 2, 4)
    assert job.sample_bytes == 32**3 * 8 + 16
    # Batch 4 on an emulated H100: 14 ms, and the loop's own work.
    assert job.compute_step_s == pytest.approx(0.014 + parts["other_s"], abs=1e-9)
    fast = predict(job, Route("memory", wire_bytes=1.0), usd_per_node_hour=1.0)
    assert fast.step_s == pytest.approx(job.compute_step_s + 0.002)
    assert fast.limited_by == "compute"
    slow = predict(job, Route("store", wire_bytes=1e8), usd_per_node_hour=1.0)
    assert slow.limited_by == "account"
    assert slow.step_s == pytest.approx(4 * 1e8 / 1e9 + 0.002)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"invalid": ("debug build",)}, "INVALID: debug build"),
        ({"step_breakdown": {}}, "no breakdown"),
        ({"world": 3}, "cannot be divided equally among 2 nodes"),
    ],
)
def test_run_that_cannot_be_used_is_refused(record, change, message):
    with pytest.raises(ConfigError, match=message):
        job_from_run(msgspec.structs.replace(record, **change), **DATASET, nodes=2)
