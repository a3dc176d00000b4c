# SPDX-License-Identifier: Apache-2.0
"""Tests of `penstock plan`: tables of 80 and 200 columns, JSON, what-if, target, page, log and errors."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from penstock.cli.app import penstock
from penstock.errors import ConfigError
from tests.plan.test_predict import CARD

SPEC = """
name = "images"
nodes = 2

[dataset]
samples = 1_000_000
raw = "120GB"

[workload]
epochs = 10
batch = 64
samples_per_s = 400
unit = "images"

[[machine]]
name = "8xV100"
accelerators = 8
cores = 40
nic = "25Gbit/s"
disk = "2TB"
disk_read = "3GB/s"
disk_write = "2GB/s"
price = "22 USD"

[[store]]
name = "bucket"
tier = "s3-standard"
account = "1.5GB/s"

[[path]]
kind = "stream"
store = "bucket"

[[path]]
kind = "pool"
store = "bucket"

[[path]]
kind = "mount"
store = "bucket"
reader = "40MB/s"
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "spec.toml"
    file.write_text(SPEC)
    return file


def invoke(*arguments, columns=80, code=0):
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(penstock, ["plan", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_plan_table_fits_80_columns_and_has_every_path(spec):
    out = invoke(spec).stdout
    assert max(map(len, out.splitlines())) <= 80
    for word in ("stream plain, bucket", "pool plain, bucket", "mount plain, bucket", "frontier", "Demand of 16"):
        assert word in out


def test_plan_table_of_200_columns_is_one_grid(spec):
    out = invoke(spec, columns=200).stdout
    assert max(map(len, out.splitlines())) <= 200
    head = next(line for line in out.splitlines() if line.startswith("path"))
    assert re.search(r"before .*compute .*egress .*total .*limited by", head)


def test_plan_what_if_changes_nodes_and_long_tables_are_reduced(spec):
    out = invoke(spec, "--nodes", "1..64", "--dry-run").stdout
    assert "more rows are dominated or repeat a path (--all shows them)" in out
    assert out.count("stream plain") < 20
    assert invoke(spec, "--nodes", "1..64", "--dry-run", "--all").stdout.count("stream plain") >= 64


def test_plan_logs_predictions_unless_dry_run(spec):
    invoke(spec, "--dry-run")
    assert not (spec.parent / "runs").exists()
    result = invoke(spec)
    lines = (spec.parent / "runs/predictions.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["id"].rpartition(".")[0] in result.stderr
    assert "logged" not in result.stdout


def test_plan_json_is_one_document_on_stdout(spec):
    plain = json.loads(invoke(spec, "--json").stdout)
    assert plain["rows"][0]["prediction"]["path"] == "stream plain, bucket"
    assert plain["rows"][0]["prediction"]["money"]["total"] > 0


def test_plan_target_names_the_cheapest_row_that_reaches_it(spec):
    out = invoke(spec, "--nodes", "1..16", "--target", "10000 images/s").stdout
    line = next(line for line in out.splitlines() if line.startswith("Target"))
    assert float(re.search(r"([\d,]+) images/s, ", line.partition("cost:")[2])[1].replace(",", "")) >= 10_000


def test_plan_target_that_none_reaches_exits_with_1_and_names_the_limit(spec):
    result = invoke(spec, "--nodes", "8", "--target", "90000 images/s", code=1)
    assert "none of 3 rows reaches it" in result.stderr
    assert "limited by" in result.stderr


def test_plan_target_is_in_the_json(spec):
    plain = json.loads(invoke(spec, "--nodes", "1..16", "--target", "10000 images/s", "--json").stdout)
    ids = [row["id"] for row in plain["rows"] if row["prediction"]["samples_per_s"] >= 10_000]
    assert plain["target"]["reached_by"] in ids
    nothing = json.loads(invoke(spec, "--target", "1s", "--json", code=1).stdout)
    assert nothing["target"]["reached_by"] is None
    assert nothing["target"]["nearest"] in [row["id"] for row in nothing["rows"]]


def test_plan_with_spot_states_the_expected_loss(spec):
    own = SPEC.replace('price = "22 USD"', 'price = "22 USD"\nspot_price = "7 USD"')
    spec.write_text(own + '\n[spot]\ninterruptions_per_hour = 0.05\ncheckpoint_every = "15min"\n')
    out = " ".join(invoke(spec).stdout.split())
    assert re.search(r"8xV100 spot is expected to lose .* to interruptions and checkpoints", out)
    assert out.count("Demand of") == 1  # spot machines ask for the same
    assert "spot" not in invoke(spec, "--no-spot").stdout


def test_plan_without_prices_states_the_sensitivity_of_the_fastest_row(spec):
    spec.write_text(SPEC.replace('price = "22 USD"', ""))
    out = " ".join(invoke(spec).stdout.split())
    assert "Sensitivity of the fastest row (no cost is known)" in out
    assert "cheapest" not in out


def test_plan_with_a_probed_store_states_the_range_of_the_epoch(spec):
    (spec.parent / "card.toml").write_text(CARD)
    spec.write_text(SPEC.replace('tier = "s3-standard"\naccount = "1.5GB/s"', 'tier = "card.toml#mine"'))
    out = " ".join(invoke(spec).stdout.split())
    assert re.search(r"within the uncertainty of the measured limits: \S.* to \S", out)


def test_plan_region_without_an_egress_price_says_so(spec):
    own = SPEC.replace('tier = "s3-standard"\n', "") + '\n[place]\nregion = "us-east-1"\n'
    spec.write_text(own)
    out = " ".join(invoke(spec, "--region", "eu-west-1").stdout.split())
    assert "egress to another region: no price; set place.egress_price" in out
    assert "unknown" in out


def test_plan_unknown_key_is_refused_with_the_nearest(spec):
    spec.write_text(SPEC.replace("disk_read", "disk_reed"))
    with pytest.raises(ConfigError, match="disk_reed: unknown key") as caught:
        invoke(spec)
    assert "`disk_read`" in caught.value.hint


def test_plan_of_two_files_is_refused(spec):
    with pytest.raises(ConfigError, match="2 plan files"):
        invoke(spec, spec)


def test_plan_page_is_one_offline_file(spec):
    invoke(spec, "--nodes", "1..8", "--output", "plan.html")
    page = (spec.parent / "plan.html").read_text()
    assert len(page) < 3_000_000
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.DOTALL)[1])
    assert set(specs) == {"frontier", "scaling", "sensitivity"}
    assert "Predictions" in page
    assert not re.search(r'(src|href)="https?:', page)


def test_plan_check_without_a_log_tells_what_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(FileNotFoundError, match="contains no runs"):
        invoke("--check", "runs")


def test_plan_check_reads_a_demo(tmp_path):
    (tmp_path / "comparison.json").write_text(
        json.dumps(
            {
                "rehearsal": {"samples": 100},
                "paths": [
                    {"label": "a", "samples_per_s": 10, "model_samples_per_s": 11, "limited_by": "x"},
                    {"label": "b", "samples_per_s": 10, "model_samples_per_s": 8, "limited_by": "x"},
                ],
            }
        )
    )
    out = invoke("--check", tmp_path, "--output", tmp_path / "errors.md").stdout
    assert "median 17.0 %, worst 25.0 %" in out
    assert "| b |" in (tmp_path / "errors.md").read_text()
