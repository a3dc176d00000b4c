# SPDX-License-Identifier: Apache-2.0
"""Tests the demo's physics: ratios preserved by the scale factor F, the mount's rates, the prediction for each path."""

import tomllib

import pytest

from penstock import tiers
from penstock.demo.mount_tier import as_toml, mounted
from penstock.demo.paths import PATHS
from penstock.demo.predict import (
    Costs,
    Limits,
    Probe,
    direct_raw,
    higher_demand,
    published_job,
    rehearsal,
    saturation_nodes,
    staging,
)
from penstock.demo.sizes import SIZES
from penstock.errors import ConfigError
from penstock.plan.reference_job import JOB, PUBLISHED
from penstock.price import book

COSTS = Costs.of(book.load())
PROBE = Probe(inflate_s_per_byte=1 / 1.5e9, decode_s_per_byte=1 / 8e9)
BY_NAME = {p.name: p for p in PATHS}
SMALL = SIZES["small"]


def limits(path):
    tier = tiers.find(path.tier)
    return Limits.of(mounted(tier, JOB.sample_bytes) if path.mount else tier)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_scale_keeps_the_time_of_a_file_and_of_a_batch(size):
    for path in PATHS:
        there = limits(path)
        here = there.scaled(size.scale)
        assert size.sample_bytes / here.account_bytes_per_s == pytest.approx(
            JOB.sample_bytes / there.account_bytes_per_s
        )
        assert size.sample_bytes / here.connection_bytes_per_s == pytest.approx(
            JOB.sample_bytes / there.connection_bytes_per_s
        )
        assert here.latency_s == there.latency_s


def test_scale_cut_requests_are_no_limit_on_either_scale():
    for path in PATHS:
        demand = JOB.global_batch / JOB.compute_step_s
        assert limits(path).scaled(SMALL.scale).requests_per_s > 2 * demand


def test_mounted_file_takes_what_the_study_saw():
    tier = tiers.find("azure-hot@2021")
    seen = tier.observation("fuse-reader-bytes").value
    output = Limits.of(mounted(tier, JOB.sample_bytes))
    assert output.latency_s + JOB.sample_bytes / output.connection_bytes_per_s == pytest.approx(JOB.sample_bytes / seen)


def test_mounted_tier_without_observation_is_refused():
    with pytest.raises(ConfigError, match="does not contain the observation"):
        mounted(tiers.find("s3-standard"), JOB.sample_bytes)


@pytest.mark.parametrize(
    "name", ["none", "azure-hot", "azure-hot@2021", "azure-premium", "s3-standard", "gcs-standard"]
)
def test_tier_as_toml_reads_back_the_same(name, tmp_path):
    tier = tiers.find(name)
    page = tmp_path / "page.toml"
    page.write_text(as_toml(tier))
    tomllib.loads(page.read_text())
    assert tiers.find(tier.name, page) == tier


def test_published_mount_is_met_by_construction():
    output = published_job(BY_NAME["as-published"], limits(BY_NAME["as-published"]), COSTS, PROBE)
    assert output.limited_by == "reader"
    assert output.run_h > PUBLISHED["hot-mount"].run_h_value
    assert output.cost.total_usd == pytest.approx(PUBLISHED["hot-mount"].usd_value, rel=0.05)


def test_same_files_without_the_mount_are_far_faster():
    path = BY_NAME["as-published"]
    output = direct_raw(path, limits(path), COSTS, PROBE)
    assert output.limited_by == "nic"
    assert output.run_h < 0.25 * published_job(path, limits(path), COSTS, PROBE).run_h


@pytest.mark.parametrize("name", ["streamed-hot", "streamed-premium", "staged"])
def test_other_paths_are_bound_by_the_accelerators(name):
    output = published_job(BY_NAME[name], limits(BY_NAME[name]), COSTS, PROBE)
    assert output.limited_by == "compute"
    assert output.cost.total_usd == pytest.approx(PUBLISHED["pool"].usd_value, rel=0.08)


def test_streaming_spends_the_account_at_about_25_nodes():
    assert (
        24 <= saturation_nodes(BY_NAME["streamed-hot"], limits(BY_NAME["streamed-hot"]), COSTS, PROBE) <= 27
    )  # as in STUDIES A


def test_hungrier_accelerator_meets_the_network_card():
    assert higher_demand(BY_NAME["streamed-hot"], limits(BY_NAME["streamed-hot"]), COSTS, PROBE).limited_by == "nic"


def test_staging_model_is_faster_than_the_article_and_says_what_binds():
    output = staging(limits(BY_NAME["staged"]), PROBE)
    assert output.limited_by == "disk"
    assert 7 < output.stage_s / 60 < 13


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.name)
def test_rehearsal_is_foretold_like_the_job_it_stands_for(path):
    # With enough cores, the rehearsal at scale factor F runs at the published job's rate, apart from the network card's limit.
    here = rehearsal(path, limits(path), SMALL, stored_bytes=JOB.stored_bytes / 8, cores=64, probe=PROBE)
    there = published_job(path, limits(path), COSTS, PROBE)
    assert here.samples_per_s == pytest.approx(there.samples_per_s, rel=0.05)
