# SPDX-License-Identifier: Apache-2.0
"""Tests of the training section of a report, from results that real runs saved."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from penstock.errors import Corrupt
from penstock.report.train_section import PARTS, read_training_runs, train_charts, train_section
from penstock.train import TrainSpec, run
from penstock.train.step_breakdown import PARTS as MEASURED

GOLDEN = Path(__file__).parents[1] / "bench/golden"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    common = {
        "workload": "cosmoflow",
        "data": "dummy://40",
        "global_batch": 1,
        "settings": {"voxels": 32},
        "accelerator": "h100",
        "runs": str(folder),
        "allow_debug": True,
    }
    run(TrainSpec(**common, label="plain <run>"))
    run(TrainSpec(**common, label="compared", compare_synthetic=True, turn_steps=4, max_turns=16))
    return folder


def test_report_page_has_the_timeline_and_the_cost_of_the_data_path(run_cli, runs, tmp_path):
    page = tmp_path / "page.html"
    done = run_cli(
        "report", str(runs), "-o", str(page), "--pictures", str(tmp_path / "pictures"), "--picture-format", "svg"
    )
    assert done.code == 0, done.err
    text = page.read_text()
    assert 'id="chart-train-timeline"' in text
    assert "What the data path costs" in text
    picture = (tmp_path / "pictures" / "train-timeline.svg").read_text()
    assert "rank 0" in picture
    assert "compute" in re.findall(r">([^<>]+)<", picture)


def test_charts_draw_each_part_of_each_step(runs):
    # Both runs may have begun in the same second, so their order is not known.
    records = {record.label: record for record in read_training_runs(runs)}
    assert set(records) == {"plain <run>", "compared"}
    plain = records["plain <run>"]
    charts = train_charts([plain])
    steps = plain.step_breakdown["timeline"]
    drawn = charts["train-timeline"]["data"]["values"]
    assert len(drawn) == sum(step[name] > 0 for step in steps for name in PARTS)
    assert max(bar["to"] for bar in drawn) == pytest.approx(1000 * (steps[-1]["began_s"] + steps[-1]["length_s"]))
    assert set(PARTS) == set(MEASURED)


def test_section_escapes_labels_and_is_empty_without_runs(runs):
    plain = [record for record in read_training_runs(runs) if record.label == "plain <run>"]
    assert "plain &lt;run&gt;" in train_section(plain)
    assert train_section([]) == ""
    assert train_charts([]) == {}


@pytest.mark.parametrize("given", ["", "fio", "fio/result.json"])
def test_report_verb_reads_fio_results_named_result_json(run_cli, tmp_path, given):
    (tmp_path / "fio").mkdir()
    shutil.copy(GOLDEN / "fio-grouped.json", tmp_path / "fio/result.json")
    done = run_cli("report", str(tmp_path / given), "--json")
    assert done.code == 0, done.err
    assert read_training_runs(tmp_path / given) == []


def test_damaged_result_of_a_run_is_named(runs, tmp_path):
    (run, *_) = sorted(runs.glob("*/result.json"))
    (tmp_path / "result.json").write_bytes(run.read_bytes()[:-2])
    with pytest.raises(Corrupt, match=r"result\.json is not a valid result"):
        read_training_runs(tmp_path)
