# SPDX-License-Identifier: Apache-2.0
"""Tests of MLPerf's log lines against the rules of its checker for CosmoFlow (hpc_3.0.0), restated here.

`needs_specs` runs the published checker itself.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import NoSpace, PenstockError
from penstock.ranks import Rank
from penstock.train import TrainSpec, run
from penstock.train.mllog import MlLog
from penstock.train.source import DummyFeed

pytestmark = pytest.mark.needs_torch

_ROOT = Path(__file__).resolve().parents[2]
ONCE = [
    "submission_org",
    "submission_platform",
    "submission_division",
    "submission_status",
    "submission_benchmark",
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
    "number_of_nodes",
    "accelerators_per_node",
    "global_batch_size",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_warmup_epochs",
    "opt_learning_rate_warmup_factor",
    "opt_learning_rate_decay_boundary_epochs",
    "opt_learning_rate_decay_factor",
]


class Easy(DummyFeed):
    """Samples whose targets are all 0, so that the model reaches MLPerf's target within an epoch."""

    def __init__(self, request):
        super().__init__(request)
        for batch in [*self._batches, *self._full]:
            batch["y"][:] = 0


def spec(file, **fields):
    made = {
        "workload": "cosmoflow",
        "data": "dummy://16",
        "validation": "dummy://4",
        "global_batch": 4,
        "settings": {"recipe": "demo", "filters": 2},
        "threads": 1,
        "epochs": 2,
        "mllog": str(file),
    }
    return TrainSpec(**{**made, **fields})


def lines(file):
    read = file.read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in read)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in read]


def test_log_of_a_run_that_reaches_the_target_follows_the_rules(tmp_path):
    run(spec(tmp_path / "log"), source=Easy)
    found = lines(tmp_path / "log")
    keys = [line["key"] for line in found]
    counts = Counter(keys)
    assert {key: counts[key] for key in ONCE} == dict.fromkeys(ONCE, 1)
    assert counts["cache_clear"] >= 1
    order = ["init_start", "init_stop", "run_start", "epoch_start", "eval_start", "eval_stop", "run_stop"]
    assert [keys.index(key) for key in order] == sorted(keys.index(key) for key in order)
    by_key = {line["key"]: line for line in found}
    assert by_key["opt_name"]["value"] == "sgd"
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    assert by_key["train_samples"]["value"] == 16
    assert by_key["eval_samples"]["value"] == 4
    errors = [line for line in found if line["key"] == "eval_error"]
    assert [line["metadata"]["epoch_num"] for line in errors] == [1, 2]
    assert errors[-1]["value"] <= 0.124
    for key in ("epoch_start", "epoch_stop", "eval_start", "eval_stop"):
        assert [line["metadata"]["epoch_num"] for line in found if line["key"] == key] == [1, 2]
    assert [line["time_ms"] for line in found] == sorted(line["time_ms"] for line in found)


def test_log_of_a_run_that_misses_the_target_or_fails_is_aborted(tmp_path):
    run(spec(tmp_path / "log", epochs=1))
    assert lines(tmp_path / "log")[-1]["metadata"]["status"] == "aborted"
    wild = {"recipe": "demo", "filters": 2, "base_learning_rate": 1e30}
    with pytest.raises(PenstockError, match="diverged"):
        run(spec(tmp_path / "log", settings=wild))
    assert lines(tmp_path / "log")[-1]["key"] == "run_stop"
    assert lines(tmp_path / "log")[-1]["metadata"]["status"] == "aborted"


def image_spec(file):
    """ResNet-50 on tiny images: 1 step of 2 per epoch, so that the validation follows an incomplete epoch."""
    settings = {"recipe": "demo", "image_size": 32}
    return spec(
        file, workload="resnet50", global_batch=2, data="dummy://4", validation="dummy://16", settings=settings, steps=1
    )


def test_log_of_resnet50_has_the_name_and_metric_of_mlperf(tmp_path):
    run(image_spec(tmp_path / "log"))
    by_key = {line["key"]: line for line in lines(tmp_path / "log")}
    assert by_key["submission_benchmark"]["value"] == "resnet"
    assert 0 <= by_key["eval_accuracy"]["value"] <= 1
    keys = ("epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "eval_stop")
    assert {key: by_key[key]["metadata"]["epoch_num"] for key in keys} == dict.fromkeys(keys, 1)


@pytest.mark.parametrize(
    ("workload", "metrics", "status"),
    [
        ("resnet50", {"top1": 0.759}, "success"),
        ("resnet50", {"top1": 0.758}, "aborted"),
        ("resnet18", {"top1": 0.9}, "aborted"),  # MLPerf has no target for it
        ("cosmoflow", {"mae": 0.125}, "aborted"),
    ],
)
def test_log_is_a_success_if_the_target_of_the_workload_is_reached(tmp_path, workload, metrics, status):
    made = spec(tmp_path / "log", workload=workload)
    log = MlLog(str(tmp_path / "log"))
    log.begin(made)
    log.run_begins(made, Rank(), {}, has_gpus=False)
    log.evaluated(metrics, 1)
    log.close(is_complete=True)
    assert lines(tmp_path / "log")[-1]["metadata"]["status"] == status


def test_log_of_two_ranks_is_written_once(tmp_path):
    run(spec(tmp_path / "log", ranks=2, epochs=1))
    assert Counter(line["key"] for line in lines(tmp_path / "log"))["run_start"] == 1


def test_log_that_cannot_be_written_ends_the_run_at_its_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match="cannot be written"):
        run(spec(tmp_path / "file" / "log"))


def test_log_on_a_full_disk_is_no_space_and_hides_no_other_error():
    log = MlLog("/dev/full")
    with pytest.raises(NoSpace, match="/dev/full"):
        log.start("init")
    log.close(is_complete=False)
    log = MlLog("/dev/full")
    with pytest.raises(NoSpace):
        log.start("init")
    with pytest.raises(NoSpace, match="/dev/full"):
        log.close(is_complete=True)


@pytest.mark.needs_specs
@pytest.mark.parametrize("rules", ["2.0.0", "3.0.0"])
def test_published_checker_accepts_the_log(tmp_path, rules):
    run(spec(tmp_path / "log"), source=Easy)
    _check(tmp_path, "hpc", rules)


@pytest.mark.needs_specs
@pytest.mark.parametrize("rules", ["3.1.0", "4.0.0"])
def test_published_checker_accepts_the_log_of_resnet50(tmp_path, rules):
    run(image_spec(tmp_path / "log"))
    _check(tmp_path, "training", rules)


def _check(tmp_path, usage, rules):
    argv = [str(_ROOT / ".tools/specs/bin/python"), "-m", "mlperf_logging.compliance_checker"]
    argv += ["--usage", usage, "--ruleset", rules, "--werror", "--log_output", str(tmp_path / "out"), "log"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "SUCCESS" in (tmp_path / "out").read_text() + done.stdout + done.stderr
