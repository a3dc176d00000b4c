# SPDX-License-Identifier: Apache-2.0
"""Tests emulated accelerators: DLIO's input files, result keys and formula, and the harness's own overhead."""

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.bench.checkpoint import measure
from penstock.bench.importers import dlio
from penstock.datasets.emulated import generate
from penstock.errors import ConfigError, PenstockError
from penstock.protocols import WorkloadSpec
from penstock.train.utilisation import Harness, epoch_utilisation, utilisation, verdict
from penstock.workloads.emulated import MODELS, Emulated

UNET = """
model: unet3d
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: True}
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 12
  num_samples_per_file: 1
  record_length: 40000
  record_length_stdev: 10000
reader: {data_loader: pytorch, batch_size: 3, read_threads: 4, file_shuffle: seed}
train: {epochs: 2, computation_time: 0.01}
checkpoint: {model_size: 100001}
metric: {au: 0.5}
"""


def epoch(rank, number, *, wall_s=2.0, compute_s=1.0, first_s=1.0, first_compute_s=0.1, samples=10):
    return {
        "rank": rank, "epoch": number, "steps": 10, "samples": samples, "wall_s": wall_s, "compute_s": compute_s,
        "first_s": first_s, "first_compute_s": first_compute_s,
    }  # fmt: skip


def test_utilisation_leaves_the_first_step_out():
    assert epoch_utilisation(epoch(0, 0)) == pytest.approx(0.9)
    assert epoch_utilisation(epoch(0, 0, wall_s=1.0)) == 0.0  # the formula excludes the first step


def test_utilisation_is_the_mean_over_ranks_of_each_epoch():
    times = [epoch(0, 0), epoch(1, 0, wall_s=2.8), epoch(0, 1, wall_s=2.8), epoch(1, 1, wall_s=2.8)]
    assert utilisation(times) == pytest.approx([0.7, 0.5])


def test_verdict_is_refused_where_the_loop_costs_too_much():
    reached = [1.0, 0.75]
    assert verdict(Harness(100, 0.1, 0.0005, 0.995), reached, 0.87).result == "pass"
    assert verdict(Harness(100, 0.1, 0.0005, 0.995), reached, 0.88).result == "fail"
    refused = verdict(Harness(100, 0.1, 0.002, 0.98), reached, 0.1)
    assert refused.result == "refused"
    assert "2.0 %" in refused.reason
    ranks = verdict(Harness(100, 0.1, 0.002, 0.98, barrier_s=0.0019), reached, 0.1)
    assert "1900.0 us of it in barriers" in ranks.reason


def test_dlio_workload_file_unused_keys_are_reported(tmp_path):
    file = tmp_path / "unet3d.yaml"
    file.write_text(UNET)
    output = dlio.read(file)
    assert (output.epochs, output.steps, output.seed, output.data, output.checkpoint_bytes) == (
        2,
        None,
        123,
        "data/unet3d/train",
        100001,
    )
    assert set(output.passed_over) == {"reader.data_loader", "reader.read_threads", "reader.file_shuffle"}
    demand = Emulated().demand(WorkloadSpec(seed=0, global_batch=3, accelerator="dlio", settings=output.settings))
    assert demand.facts["step_s"] == 0.01
    assert demand.samples_per_s == pytest.approx(300)
    assert demand.facts["au_required"] == 0.5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("dataset: 7", "the section `dataset` is missing"),
        ("train: [1]", "`train` is not a table"),
        ("{", "is not valid YAML"),
        ("reader: {batch_size: many}", r"batch_size must be a number \(got 'many'"),
        ("reader: {preprocess_time: 0.1}", "preprocessing time"),
        ("dataset: {format: npz}", r"record_length must be a number \(got None"),
    ],
)
def test_workload_file_that_cannot_be_is_refused_with_the_reason(tmp_path, change, why):
    file = tmp_path / "w.yaml"
    file.write_text(
        f"dataset: {{record_length: 10}}\n{change}\n" if "dataset" not in change and change != "{" else change
    )
    with pytest.raises(ConfigError, match=why):
        dlio.read(file)


@pytest.mark.parametrize("settings", [{"model": "gpt9"}, {"model": "unet3d", "batch": 2}, {"name": "x"}, {"colour": 1}])
def test_emulated_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(ConfigError):
        Emulated().demand(WorkloadSpec(seed=0, global_batch=1, accelerator="h100", settings=settings))


def test_published_step_times_are_those_of_the_configurations():
    assert {name: dict(model.step_s) for name, model in MODELS.items()} == {
        "unet3d": {"a100": 0.636, "h100": 0.323, "b200": 0.162},
        "resnet50": {"a100": 0.435, "h100": 0.224},
        "retinanet": {"b200": 0.04755},
        "dlrm": {"b200": 0.000375},
    }


def test_made_records_have_the_sizes_asked_for_and_compress_as_asked(tmp_path):
    import zlib

    generate(
        tmp_path / "a", format="npz", files=40, records_per_file=1, record_bytes=90_000, record_deviation_bytes=30_000
    )
    sizes = [np.load(file)["x"].nbytes for file in (tmp_path / "a").iterdir()]
    assert np.mean(sizes) == pytest.approx(90_000, rel=0.2)
    assert 10_000 < np.std(sizes) < 60_000
    for compresses in (1.0, 4.0):
        out = tmp_path / f"c{compresses}"
        generate(out, format="tfrecord", files=1, records_per_file=3, record_bytes=250_000, compresses=compresses)
        (file,) = out.iterdir()
        body = file.read_bytes()
        assert len(body) / len(zlib.compress(body)) == pytest.approx(compresses, rel=0.1)


@pytest.mark.needs_torch
def test_bench_accelerator_feeds_every_format_and_writes_dlios_summary(tmp_path, run_cli):
    workload = tmp_path / "unet3d.yaml"
    workload.write_text(UNET)
    made = run_cli("dataset", "emulated", workload, tmp_path / "npz")
    assert made.code == 0, made.err
    ran = run_cli(
        "bench", "accelerator", workload, tmp_path / "npz", "--against", "torch", "--checkpoint", tmp_path / "kept",
        "--summary", tmp_path / "summary.json", "--no-save", "--json", timeout_s=100,
    )  # fmt: skip
    output = json.loads(ran.out)
    assert ran.code == (0 if output["verdict"]["result"] != "fail" else 1), ran.err
    assert [row["reader"] for row in output["feeds"]] == ["penstock", "torch"]
    assert all(row["au"] > 0 for row in output["feeds"])
    assert output["checkpoint"]["bytes"] == 100001
    assert list((tmp_path / "kept").iterdir()) == []
    report = json.loads((tmp_path / "summary.json").read_text())
    assert report["epochs"] == 2
    assert report["metric"]["train_au_mean_percentage"] == pytest.approx(100 * output["feeds"][0]["au"])
    assert {
        f"train_{name}" for name in ("au_percentage", "au_meet_expectation", "throughput_samples_per_second")
    } <= report["metric"].keys()


@pytest.mark.parametrize("kind", ["tfrecord", "jpeg"])
def test_bench_accelerator_reads_records_and_pictures(tmp_path, run_cli, kind):
    workload = tmp_path / "w.yaml"
    workload.write_text(
        f"model: w\ndataset: {{format: {kind}, num_files_train: 6, record_length: 4096, record_length_resize: 1024}}\n"
        "reader: {batch_size: 2}\ntrain: {epochs: 1, computation_time: 0.01}\n"
    )
    assert run_cli("dataset", "emulated", workload, tmp_path / "data").code == 0
    ran = run_cli("bench", "accelerator", workload, tmp_path / "data", "--no-save", "--json", timeout_s=100)
    output = json.loads(ran.out)
    assert output["feeds"][0]["samples_per_s"] > 0, ran.err
    assert output["feeds"][0]["bytes_read"] >= sum(file.stat().st_size for file in (tmp_path / "data").iterdir())
    # The file states the number of records. Nothing is read to count them, since that would warm the caches before the
    # measurement.
    assert "all are read once" not in ran.err


def test_bench_accelerator_dry_run_reads_nothing(tmp_path, run_cli):
    ran = run_cli(
        "bench",
        "accelerator",
        "unet3d",
        tmp_path / "none",
        "--accelerator",
        "h100",
        "--ranks",
        "2",
        "--dry-run",
        "--json",
    )
    output = json.loads(ran.out)
    assert output["required"]["samples_per_s"] == pytest.approx(2 * 7 / 0.323)
    assert "feeds" not in output


def test_checkpoint_is_written_whole_by_every_rank_and_removed(tmp_path):
    times = measure(tmp_path / "kept", total_bytes=20_000_001, ranks=3)
    assert (times.bytes, len(times.write_s), len(times.restore_s)) == (20_000_001, 3, 3)
    assert min(times.write_s + times.restore_s) > 0
    assert list((tmp_path / "kept").iterdir()) == []


def test_checkpoint_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError):
        measure(tmp_path / "file" / "kept", total_bytes=10, ranks=1)
    with pytest.raises(ConfigError, match="is too small for"):
        measure(tmp_path, total_bytes=1, ranks=2)
    assert Path(tmp_path / "file").read_text() == ""
