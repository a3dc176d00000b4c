# SPDX-License-Identifier: Apache-2.0
"""Tests study A: its inverted figures are within the stated tolerances, its predictions follow from limits, and its
paths run at tiny size.
"""

from __future__ import annotations

import json

import pytest

from penstock.study.run import load_module
from penstock.study.spec import find_study, studies_folder

STUDY = find_study("cosmoflow-staged", studies_folder())


@pytest.fixture(scope="module")
def predicted(run_cli, tmp_path_factory):
    out = tmp_path_factory.mktemp("a")
    done = run_cli("study", "run", "cosmoflow-staged", "--only", "prediction", "-o", out, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)["parts"][0]["result"]
    return (
        {column: {k: v["value"] for k, v in result[column].items()} for column in ("inverted", "predicted")},
        result,
        out,
    )


def test_published_table_follows_from_the_publications_rates(predicted):
    inverted, published = predicted[0]["inverted"], {each.id: each.published for each in STUDY.expected.figure}
    for name in ("epoch-pool", "hours-pool", "usd-pool", "usd-premium", "usd-hot", "over-hot"):
        assert inverted[name] == pytest.approx(published[name], rel=0.05), name
    assert inverted["epoch-premium"] == pytest.approx(75, rel=0.09)
    assert inverted["hours-premium"] > 60
    assert inverted["hours-hot"] > 110
    assert inverted["epoch-hot"] > 120


def test_staging_of_raw_files_is_predicted_within_two_percent_from_the_card(predicted):
    columns, result, _ = predicted
    assert columns["predicted"]["stage-raw"] == pytest.approx(35, rel=0.02)
    assert "network cards" in result["predicted"]["stage-raw"]["note"]


def test_staging_of_gzip_names_decompression_or_the_write(predicted):
    columns, result, out = predicted
    assert "the remaining cause is decompression or the write" in result["data"]["reason"]
    assert columns["predicted"]["stage-gzip"] < 13 * 0.7
    assert "1.63 GB/s" in (out / "report.md").read_text()


def test_streamed_gzip_feeds_four_nodes_and_a_pool_pays_at_26(predicted):
    columns, result, out = predicted
    assert columns["predicted"]["epoch-stream"] == pytest.approx(2048 / 2.3 / 60, rel=0.001)
    assert result["predicted"]["epoch-stream"]["note"] == "the accelerators"
    # 6.25 GB/s / (2.3 steps/s x 32 samples a node x 3.36 MB) = 25.3
    assert columns["predicted"]["pool-pays-measured"] == 26
    text = (out / "report.md").read_text()
    assert "| hours, streamed gzip | – | – | 11.9 h | modelled, not measured |" in text
    assert "**Contradiction in the publication**: Premium" in text


def test_predictions_use_no_rate_of_the_publication():
    module = load_module(STUDY, "prediction")
    limits = {**STUDY.tables["limits"], "v100_samples_per_s": 2 * STUDY.tables["limits"]["v100_samples_per_s"]}
    job = module.msgspec.structs.replace(
        module.JOB, compute_step_s=module.JOB.batch_per_rank / limits["v100_samples_per_s"]
    )
    found = module._predictions(job, limits, 1.0)
    # With accelerators twice as fast, the pool's disks are the limit: 128 samples of 16.78 MB at 4 x 2.5 GB/s.
    assert found["pool"].step_s == pytest.approx(128 * 16_777_216 / 10e9)
    assert found["pool"].limited_by == "disk"


@pytest.mark.needs_torch
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_paths_run_at_tiny_size_with_the_same_losses(run_cli, tmp_path):
    done = run_cli(
        "study", "run", "cosmoflow-staged", "--size", "tiny", "--only", "paths", "-o", tmp_path / "out", timeout_s=390
    )
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "out/results.json").read_text())["parts"][0]["result"]
    assert {"epoch-hot", "epoch-premium", "epoch-stream", "epoch-pool"} == set(found["measured"])
    assert {value["scale"] for value in found["measured"].values()} == {0.125}
    assert found["measured"]["epoch-hot"]["value"] > found["measured"]["epoch-premium"]["value"]
    assert found["claims"][0] | {"holds": True, "must": True} == found["claims"][0]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "demo.html",
        "report.html",
        "report.md",
        "results.json",
    ]


@pytest.mark.needs_root
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_staging_moves_every_byte_through_the_limited_cards_and_leaves_nothing(run_cli, tmp_path):
    done = run_cli(
        "study", "run", "cosmoflow-staged", "--size", "tiny", "--only", "staging", "-o", tmp_path / "out", "--scratch", tmp_path,
        timeout_s=290,
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "out/results.json").read_text())["parts"][0]["result"]
    rows, card = found["data"]["rows"], found["data"]["card_bytes_per_s"]
    assert card == 625e6 / 8
    assert rows["raw"]["bytes_out"] == rows["gzip"]["bytes_out"] == found["data"]["bytes"]["raw"]
    # A burst of 256 kB and the buffers of the kernel are small against 134 MB for each host.
    assert rows["raw"]["seconds"] >= 0.9 * found["data"]["bytes"]["raw"] / 4 / card
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
