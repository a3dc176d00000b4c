# SPDX-License-Identifier: Apache-2.0
"""Tests study C: its predictions and costs are those of a hand calculation, and its parts run end to end, tiny."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, RankFailed
from penstock.study.run import load_module
from penstock.study.spec import find_study

STUDIES = Path(__file__).resolve().parents[2] / "studies"
STUDY = find_study("imagenet-storage", STUDIES)
SPEC = STUDY.tables
limits, costs, sync, training, disks = (
    load_module(STUDY, name) for name in ("limits", "costs", "sync", "training", "disks")
)
IMAGE = 700e9 / 6.4e6
PARTS = ["limits", "disks", "object-store", "scaling", "distributed", "sync", "costs"]


@pytest.mark.parametrize(
    ("disk", "model", "gpus", "images_per_s", "limit"),
    [
        ("aws-gp2@2018", "resnet50", 4, 160e6 / IMAGE, "throughput"),
        ("aws-st1@2018", "resnet50", 4, 500, "IOPS"),
        ("aws-io1@2018", "resnet50", 4, 4 * 412, "the accelerators"),
        ("azure-premium-ssd@2018", "resnet50", 8, 250e6 / IMAGE, "throughput"),
        ("aws-gp2@2018", "resnet152", 8, 8 * 172.7, "the accelerators"),
        ("aws-io1@2018", "resnet50-amp", 8, 500e6 / IMAGE, "throughput"),
        ("gcp-local-ssd@2018", "trivial", 8, 32 / 0.005, "decoding on the cores"),
    ],
)
def test_prediction_is_the_slowest_limit(disk, model, gpus, images_per_s, limit):
    found, word = limits.on_disk(SPEC, disk, SPEC["model"][model], gpus)
    assert (found, word) == (pytest.approx(images_per_s, rel=1e-4), limit)


def test_s3_waits_for_latency_with_one_reader_per_gpu_and_refuses_those_of_two_nodes():
    amp = SPEC["model"]["resnet50-amp"]
    found, word = limits.on_store(SPEC, "s3-standard@2026", amp, 8)
    # 64 requests in flight for each of 8 GPUs, 100 ms and a transfer at 90 MB/s each.
    assert (found, word) == (pytest.approx(8 * 64 / (0.1 + IMAGE / 90e6), rel=1e-4), "latency")
    found, word = limits.on_store(SPEC, "s3-standard@2026", amp, 8, nodes=2)
    assert found == pytest.approx(5500)
    assert word == "requests/s of the store"


def test_heavy_model_factor_is_the_stated_rate():
    heavy = SPEC["model"]["resnet152"]
    assert heavy["factor"] * 91.8 == pytest.approx(heavy["images_per_s"], rel=1e-3)


@pytest.mark.parametrize(
    ("disk", "minutes", "limit"),
    [
        ("aws-gp2@2018", 700e9 / 160e6 / 60, "the disk's throughput"),
        ("aws-st1@2018", 700e9 / 500e6 / 60, "the disk's throughput"),
        ("gcp-local-ssd@2018", 700e9 / 1500e6 / 60, "the disk's throughput"),
    ],
)
def test_sync_of_700_gb_takes_what_the_disk_allows(disk, minutes, limit):
    seconds, word = sync.predict_sync(SPEC, disk, 700e9)
    assert (seconds / 60, word) == (pytest.approx(minutes), limit)


def test_io1_with_the_most_iops_costs_what_a_hand_computes():
    price = {"aws-ebs-io1-storage": 0.125, "aws-ebs-io1-iops": 0.065}.__getitem__
    # 640 GiB and 32,000 IOPS for an hour of a month of 730.
    assert costs.disk_usd_per_hour("aws-io1@2018", 100e9, price) == pytest.approx((640 * 0.125 + 32_000 * 0.065) / 730)
    # 2,000 GiB of data need a larger disk.
    more = costs.disk_usd_per_hour("aws-io1@2018", 2000 * 2**30, price)
    assert more == pytest.approx((2000 * 0.125 + 32_000 * 0.065) / 730)


def test_costs_name_what_is_dominated_and_the_cheapest_for_a_target():
    found = costs.run(type("Context", (), {"study": STUDY})())
    rows = {(row["model"], row["storage"]): row for row in found.data["frontier"]}
    # st1 is slower than gp2 with mixed precision, and costs more.
    assert rows["ResNet-50, AMP", "aws-st1@2018"]["dominated"]
    gp2, st1 = (rows["ResNet-50, AMP", f"aws-{name}@2018"] for name in ("gp2", "st1"))
    assert st1["images_per_s"] < gp2["images_per_s"]
    assert st1["usd_per_hour"] > gp2["usd_per_hour"]
    fastest = max(rows.values(), key=lambda row: (row["images_per_s"], -row["usd_per_hour"]))
    assert not fastest["dominated"]
    tables = {block.title: block for block in found.blocks if hasattr(block, "head")}
    [cheapest] = [table for title, table in tables.items() if title.startswith("The cheapest")]
    assert [row[0] for row in cheapest.rows] == ["4,000", "10,000", "20,000", "33,000"]
    nodes = [int(row[1]) for row in cheapest.rows]
    assert nodes == sorted(nodes)
    assert found.predicted["io1-usd-per-hour"].value == pytest.approx(2.959, abs=0.01)


def test_training_command_has_the_factor_of_gpus_and_scale():
    task = training.Training(
        data="/d", model=SPEC["model"]["resnet152"], gpus=4, scale=0.02, batch=8, images_per_s=10.0, seconds=4.0
    )
    argv = training.train_argv(task, Path("/out"))
    assert argv[argv.index("--set") + 1] == "accelerator_scale=0.150504"
    assert argv[argv.index("--steps") + 1] == "7"
    real = training.train_argv(
        training.Training(data="/d", model=SPEC["model"]["trivial"], gpus=0, scale=1, batch=8, epochs=2), Path("/out")
    )
    assert "--accelerator" not in real
    assert real[real.index("--epochs") + 1] == "2"


def test_unknown_size_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match="tiny, small, full"):
        STUDY.size("smal")


def run(tmp_path: Path, parts: str, studies: Path = STUDIES) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "study", "run", STUDY.name, "--size", "tiny", "--only", parts,
         "--output", tmp_path / "out", "--scratch", tmp_path, "--studies", studies],
        capture_output=True, text=True, check=False, env={**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert not list(tmp_path.glob("penstock-study-*")), "scratch folders are left"
    return {part["name"]: part["result"] for part in found["parts"]}


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.timeout(300)
def test_disks_at_tiny_size_have_the_published_limits(tmp_path):
    found = run(tmp_path, "disks")["disks"]
    cells = {cell["disk"]: cell for cell in found["data"]}
    assert {disk: cell["expected_limit"] for disk, cell in cells.items()} == {
        "aws-gp2@2018": "throughput", "aws-st1@2018": "IOPS",
    }  # fmt: skip
    # The trace of the kernel's counters, not the study's own arithmetic.
    assert {disk: cell["limit"] for disk, cell in cells.items()} == {
        "aws-gp2@2018": "throughput",
        "aws-st1@2018": "IOPS",
    }
    # In a run of seconds, the kernel allows up to 14 of these 10 I/Os per second; without a limit, there are hundreds.
    assert cells["aws-st1@2018"]["ios_per_s"] <= 500 * 0.02 * 1.6
    assert cells["aws-gp2@2018"]["mb_per_s"] <= 160 * 0.02 * 1.15
    assert cells["aws-gp2@2018"]["images_per_s"] > cells["aws-st1@2018"]["images_per_s"]
    losetup = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in losetup


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.timeout(300)
def test_training_that_fails_is_not_measured_and_the_others_are(tmp_path):
    studies = tmp_path / "studies"
    shutil.copytree(STUDY.folder, studies / STUDY.name, ignore=shutil.ignore_patterns("__pycache__"))
    spec = studies / STUDY.name / "spec.toml"
    text = spec.read_text()
    text = text.replace('disks = ["aws-gp2@2018", "aws-st1@2018"]', 'disks = ["aws-gp2@2018"]', 1)
    text = text.replace('models = ["resnet50-amp"]', 'models = ["resnet50-amp", "broken"]', 1)
    broken = '[model.broken]\nlabel = "Broken"\nworkload = "resnet50"\naccelerator = "no-such"\nimages_per_s = 100.0\n'
    spec.write_text(f"{text}\n{broken}")
    found = run(tmp_path, "disks", studies)["disks"]
    assert [(cell["disk"], cell["model"]) for cell in found["data"]] == [("aws-gp2@2018", "resnet50-amp")]
    [reason] = [text for text in found["not_measured"] if "Broken" in text]
    assert reason.startswith("aws-gp2@2018, Broken, 4 V100: ")
    assert "no-such" in reason
    assert "\n" not in reason
    [every] = [claim for claim in found["claims"] if claim["claim"].startswith("the limit of every training")]
    assert every["holds"] is not True
    assert every["here"].endswith("of 1, 1 not measured")


def test_table_without_any_training_is_an_error():
    def fails(disk: str, model: str, gpus: int):
        raise RankFailed(f"{disk}, {model}, {gpus}\ntwo lines", rank=0)

    with pytest.raises(RankFailed, match="all 2 trainings failed; the first: a, b, 4 two lines"):
        disks.measure_cells([("a", "b", 4), ("a", "b", 8)], fails)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_object_store_refuses_without_the_cache_and_nothing_from_it(tmp_path):
    found = run(tmp_path, "limits,object-store,costs")
    plain, cached = (found["object-store"]["data"][way] for way in ("without cache", "with node cache"))
    assert plain["throttles"] > 0
    assert cached["passes"][1]["requests"] in (0, None)
    assert len(plain["images_per_s"]) == len(cached["images_per_s"]) == 2
    assert found["object-store"]["measured"]["s3-cached"]["note"].endswith("; 0 requests refused")
    assert found["object-store"]["claims"][1]["here"] == "0 refusals"
    text = (tmp_path / "out/report.md").read_text()
    assert "~$15 an hour" in text
    assert "Which disk limits which model" in text


@pytest.mark.slow
@pytest.mark.needs_pool
@pytest.mark.needs_root
@pytest.mark.timeout(400)
def test_hdfs_and_sync_at_tiny_size_leave_nothing(tmp_path):
    found = run(tmp_path, "distributed,sync")
    served = {each["data_nodes"]: each for each in found["distributed"]["data"]}
    assert set(served) == {1, 2}
    assert all(len(each["late_s"]) == 2 and each["bytes_per_s"] > 0 for each in served.values())
    # A link of 25 Gbit/s x 0.002 carries at most 6.25 MB/s.
    assert served[1]["bytes_per_s"] < 6.3e6
    [copy] = found["sync"]["data"]
    assert copy["measured_s"] > 0.5 * copy["expected_s"]
    assert not [path for path in Path("/run/penstock-hosts").glob("c*") if path.is_dir()]
