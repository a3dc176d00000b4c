# SPDX-License-Identifier: Apache-2.0
"""Tests of predictions of plan files: the published study within its tolerances, and the direction of each limit."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.plan.analysis import LIMITS, demand, epoch_range, sensitivity
from penstock.plan.predict import expected_spot_s, predict
from penstock.plan.reference_job import PUBLISHED, STAGE_GZIP_MIN, STAGE_RAW_MIN
from penstock.plan.scenario import scenarios
from penstock.plan.spec_file import parse
from penstock.price.book import load

BOOK = load()


def predictions(document):
    return {row.path: row for row in (predict(scenario) for scenario in scenarios(parse(document), BOOK))}


def scenario_of(document, path):
    return next(scenario for scenario in scenarios(parse(document), BOOK) if scenario.path == path)


@pytest.mark.parametrize(
    ("path", "key", "time_tolerance"),
    [
        ("pool, as published", "pool", 0.05),
        ("Premium mount", "premium-mount", 0.09),  # the article's rate and time disagree by 8 %
    ],
)
def test_replay_of_a_published_rate_gives_the_published_epoch(document, path, key, time_tolerance):
    row = predictions(document)[path]
    assert row.epoch_s / 60 == pytest.approx(PUBLISHED[key].epoch_min_value, rel=time_tolerance)


@pytest.mark.parametrize(
    ("path", "key", "time_tolerance"),
    [
        ("pool, as published", "pool", 0.05),
        ("Premium mount", "premium-mount", 0.09),
        ("Hot mount", "hot-mount", 0.05),
    ],
)
def test_replay_of_a_published_rate_gives_the_published_hours_and_money(document, path, key, time_tolerance):
    row = predictions(document)[path]
    assert row.run_s / 3600 == pytest.approx(PUBLISHED[key].run_h_value, rel=time_tolerance)
    # The article's formula: nodes x price x hours, without staging, storage and requests.
    assert row.money.compute * row.run_s / row.job_s == pytest.approx(PUBLISHED[key].usd_value, rel=0.05)
    assert row.money.total == pytest.approx(row.money.compute, rel=0.02)


def test_stage_of_the_raw_files_takes_the_published_35_minutes(document):
    row = predictions(document)["pool, as published"]
    assert row.stage_s / 60 == pytest.approx(STAGE_RAW_MIN, rel=0.02)
    assert row.stage_limited_by == "nic"


def test_stage_of_the_gzip_files_is_shorter_than_published_because_its_cause_is_no_stated_limit(document):
    document["machine"][0]["disk_write"] = "100GB/s"
    document["workload"]["inflate"] = "100GB/s"
    row = predictions(document)["gzip pool"]
    assert row.stage_limited_by == "nic"
    assert row.stage_s / 60 == pytest.approx(7.7, abs=0.1)
    assert row.stage_s / 60 < STAGE_GZIP_MIN


def test_streamed_gzip_keeps_the_published_accelerators_busy(document):
    row = predictions(document)["stream gzip"]
    assert (row.limited_by, row.wait_share, row.before_s) == ("compute", 0.0, 0.0)


def test_pool_pays_where_the_account_is_exhausted(document):
    document["nodes"] = "24,28"
    rows = [predict(scenario) for scenario in scenarios(parse(document), BOOK)]
    limits = {(row.path, row.nodes): row.limited_by for row in rows}
    assert limits["stream gzip", 24] == "compute"
    assert limits["stream gzip", 28] == "account"  # STUDIES A: about 25 nodes
    assert limits["gzip pool", 28] == "compute"


def test_prices_that_are_missing_are_unknown_and_never_zero(document):
    del document["machine"][0]["price"]
    row = predictions(document)["stream gzip"]
    assert row.money.compute is None
    assert row.money.total is None
    assert any("ND40rs_v2: no price" in text for text in row.money.unknown)


def test_price_of_a_region_that_the_book_lacks_is_unknown(document):
    document["place"]["region"] = "Atlantis"
    row = predictions(document)["stream gzip"]
    assert row.money.compute is None
    assert any("in Atlantis (the book has" in text for text in row.money.unknown)


def test_region_of_another_price_changes_only_money(document):
    here = predictions(document)["pool, as published"]
    document["place"]["region"] = "East US"
    there = predictions(document)["pool, as published"]
    assert there.run_s == here.run_s
    assert there.money.compute / here.money.compute == pytest.approx(22.032 / 26.438)  # -16.7 %


def test_node_cache_reads_each_sample_once_per_node_on_one_node(document):
    document["nodes"] = 1
    row = predictions(document)["node cache"]
    assert row.bytes_read == pytest.approx(1.1e12 * 262_144 / 327_680)


def test_node_cache_on_many_nodes_misses_as_a_simulation_of_a_global_shuffle_does(document):
    document["nodes"], document["workload"]["epochs"] = 8, 5
    row = predictions(document)["node cache"]
    rng, samples, nodes = random.Random(7), 4_000, 8
    held = [set() for _ in range(nodes)]
    misses = 0
    for _ in range(5):
        order = rng.sample(range(samples), samples)
        for position, sample in enumerate(order):
            node = held[position * nodes // samples]
            misses += sample not in node
            node.add(sample)
    epoch_bytes = 1.1e12 * 262_144 / 327_680
    assert row.bytes_read / epoch_bytes == pytest.approx(misses / samples, rel=0.02)


def test_node_cache_too_small_for_the_dataset_keeps_its_share(document):
    document["nodes"] = 1
    document["machine"][0]["disk"] = "0.55TB"  # half of the gzip'd dataset
    row = predictions(document)["node cache"]
    assert row.bytes_read == pytest.approx(1.1e12 * 0.8 * (1 + 47 / 2))


def test_dataset_larger_than_the_disks_is_impossible_and_names_them(document):
    document["machine"][0]["disk"] = "1TB"
    row = predictions(document)["gzip pool"]
    assert row.impossible == "the nodes' disks: 1.27 TB per node are needed, and 1 TB are there"


def test_batch_larger_than_an_epoch_is_impossible(document):
    document["dataset"] |= {"samples": 100, "held_out": 0, "raw": "1GB", "stored": "0.3GB"}
    assert "global batch (128 samples" in predictions(document)["stream gzip"].impossible


def test_reads_across_regions_pay_egress_in_every_epoch_and_a_copy_pays_once(document):
    document["place"] |= {"data_region": "West US", "egress_price": "0.02 USD", "link": "5Gbit/s"}
    across = predictions(document)["stream gzip"]
    assert across.limited_by == "link"
    assert across.money.egress == pytest.approx(across.bytes_read / 2**30 * 0.02)
    document["place"]["replicate"] = True
    copied = predictions(document)["stream gzip"]
    assert copied.money.egress == pytest.approx(1.1e12 / 2**30 * 0.02)
    assert copied.before_s == pytest.approx(1.1e12 / 0.625e9)
    assert copied.limited_by == "compute"


def test_staging_across_regions_is_limited_by_the_link(document):
    document["place"] |= {"data_region": "West US", "egress_price": "0.02 USD", "link": "5Gbit/s"}
    row = predictions(document)["gzip pool"]
    assert row.stage_limited_by == "link"
    assert row.stage_s == pytest.approx(1.1e12 / 0.625e9)


def test_sensitivity_of_a_copy_between_regions_contains_the_link(document):
    document["place"] |= {"data_region": "West US", "egress_price": "0.02 USD", "link": "5Gbit/s", "replicate": True}
    scenario = scenario_of(document, "stream gzip")
    link = next(row for row in sensitivity(scenario) if row.limit == "link between regions")
    assert link.time_less_s - link.time_more_s == pytest.approx(1.1e12 / 0.625e9 * (1 / 0.8 - 1 / 1.2))


def test_pool_with_more_copies_than_nodes_keeps_one_on_each_node(document):
    document["nodes"] = 1
    document["machine"][0]["disk"] = "6TB"
    one = predictions(document)["gzip pool"]
    document["path"][1]["copies"] = 2
    assert predictions(document)["gzip pool"] == one
    assert not one.impossible


def test_spot_pool_that_cannot_stage_between_interruptions_is_impossible(document):
    document["nodes"] = 4
    document["path"][1]["ready"] = "5min"
    document["path"][1]["staged_in"] = "2h"
    document["spot"] = {"interruptions_per_hour": 70, "checkpoint_every": "1min"}
    rows = [predict(scenario) for scenario in scenarios(parse(document), BOOK)]
    pool = next(row for row in rows if row.path == "gzip pool" and row.machine.endswith("spot"))
    assert pool.impossible.startswith("interruptions")
    assert next(r for r in rows if r.path == "stream gzip" and r.machine.endswith("spot")).impossible == ""


def test_reads_across_regions_pay_the_price_of_the_stores_cloud(document):
    document["place"]["data_region"] = "West US"
    row = predictions(document)["stream gzip"]
    price = BOOK.find("azure-egress-cross-region")
    assert price.value > 0
    assert row.money.egress == pytest.approx(row.bytes_read / 2**30 * price.value)


def test_reads_across_zones_pay_the_given_price_or_are_unknown(document):
    document["place"]["cross_zone"] = True
    assert predictions(document)["stream gzip"].money.egress is None
    document["place"]["egress_price"] = "aws-egress-cross-zone"
    row = predictions(document)["stream gzip"]
    assert row.money.egress == pytest.approx(row.bytes_read / 2**30 * BOOK.find("aws-egress-cross-zone").value)


def test_reads_across_regions_without_a_price_have_no_known_cost(document):
    document["place"]["data_region"] = "West US"
    document["store"][0] = {"name": "hot", "account": "50Gbit/s"}
    row = predictions(document)["stream gzip"]
    assert row.money.egress is None
    assert any("egress to another region: no price" in text for text in row.money.unknown)


def test_spot_machine_is_cheaper_and_loses_work(document):
    document["machine"][0]["spot_price"] = "azure-vm-nd40rs_v2-spot"
    document["spot"] = {"interruptions_per_hour": 0.05, "checkpoint_every": "15min", "checkpoint": "10s"}
    rows = [predict(scenario) for scenario in scenarios(parse(document), BOOK)]
    steady, spot = (
        next(r for r in rows if r.path == "stream gzip" and r.machine.endswith(end)) for end in ("v2", "spot")
    )
    assert steady.lost_s == 0
    # About 0.2 interruptions per hour, each of which loses half an interval and a restart of 5 min.
    assert 0.02 * spot.run_s < spot.lost_s < 0.08 * spot.run_s
    assert spot.money.compute / steady.money.compute == pytest.approx(2.908 / 26.438 * spot.job_s / steady.job_s)
    pool = next(row for row in rows if row.path == "gzip pool" and row.machine.endswith("spot"))
    assert pool.lost_s > spot.lost_s  # an interrupted pool stages again


def test_spot_expected_time_agrees_with_a_simulation():
    rng = random.Random(3)
    rate, every, write, restart, work = 1 / 1800, 600.0, 30.0, 120.0, 6000.0

    def once():
        clock, done = 0.0, 0.0
        left = rng.expovariate(rate)
        while done < work:
            if left > every + write:
                clock, left, done = clock + every + write, left - every - write, done + every
                continue
            clock, left = clock + left, rng.expovariate(rate)
            while left < restart:
                clock, left = clock + left, rng.expovariate(rate)
            clock, left = clock + restart, left - restart
        return clock

    simulated = sum(once() for _ in range(4000)) / 4000
    model = expected_spot_s(work, rate_per_s=rate, every_s=every, checkpoint_s=write, restart_s=restart)
    assert model == pytest.approx(simulated, rel=0.03)


def test_spot_that_never_reaches_a_checkpoint_is_endless():
    assert expected_spot_s(1.0, rate_per_s=10.0, every_s=600, checkpoint_s=1, restart_s=1) == math.inf


@pytest.mark.parametrize("path", ["gzip pool", "stream gzip", "node cache"])
@pytest.mark.parametrize("limit", sorted(set(LIMITS) - {"step time of the accelerators", "latency", "price of a node"}))
def test_more_of_a_limit_never_slows_a_job(document, path, limit):
    document["nodes"] = 30
    scenario = scenario_of(document, path)
    times = [predict(LIMITS[limit](scenario, factor)).finish_s for factor in (0.5, 0.8, 1.0, 1.2, 2.0)]
    assert times == sorted(times, reverse=True)


def test_sensitivity_of_a_job_on_one_limit_is_its_whole_time(document):
    document["nodes"] = 60
    document["workload"] |= {"reference": "cosmoflow/v100"}
    rows = {row.limit: row for row in sensitivity(scenario_of(document, "stream gzip"))}
    assert rows["account bandwidth"].time_elasticity == pytest.approx(-1.0)
    assert rows["network card"].time_elasticity == 0
    assert rows["price of a node"].money_elasticity == pytest.approx(1.0, abs=0.02)


def test_demand_of_the_published_job_is_a_quarter_gigabyte_per_second_and_node(document):
    need = demand(scenario_of(document, "stream gzip"))
    assert need.samples_per_s == pytest.approx(2.3 * 128)
    assert need.node_bytes_per_s == pytest.approx(0.25e9, rel=0.02)  # STUDIES A (D)
    assert need.opens_per_s == pytest.approx(need.samples_per_s)


def test_demand_is_just_met_by_a_store_of_that_size(document):
    need = demand(scenario_of(document, "stream gzip"))
    for factor, limit in ((1.001, "compute"), (0.999, "account")):
        sized = copy_of(document, need.bytes_per_s * factor)
        assert predict(scenario_of(sized, "stream gzip")).limited_by == limit


def copy_of(document, rate):
    changed = msgspec.json.decode(msgspec.json.encode(document))
    changed["store"][0]["account"] = f"{rate:.0f}B/s"
    return changed


def test_reader_alone_is_no_faster_than_the_account(document):
    document["path"] = [{"kind": "mount", "store": "hot", "name": "mount"}]
    document["store"] = [{"name": "hot", "account": "100MB/s", "latency": "30ms"}]
    document["machine"][0] |= {"accelerators": 1}
    document["nodes"] = 1
    scenario = scenario_of(document, "mount")
    sample = 5.1e12 / 327_680
    # Four files in turn, each with its latency, and then the computation: nothing overlaps.
    expected = scenario.job.compute_step_s + 4 * (0.03 + sample / 100e6)
    assert predict(scenario).step_s == pytest.approx(expected)


def test_storage_price_of_another_region_is_used_and_named(document):
    document["place"]["region"] = "Atlantis"
    scenario = scenario_of(document, "stream gzip")
    assert scenario.prices.node_hour is None  # machines differ too much between regions
    assert scenario.prices.gib_month == BOOK.find("azure-hot-storage").value
    assert any("no price of azure-hot-storage in Atlantis; that of" in text for text in scenario.prices.substituted)


def test_planes_are_cheaper_to_decompress_after_the_first_epoch_of_a_node_cache(document):
    document["nodes"] = 1
    document["machine"][0]["cores"] = 1
    document["dataset"]["planes"] = "1.0TB"
    document["workload"] |= {"reference": "cosmoflow/v100", "inflate": "0.3GB/s", "inflate_planes": "3GB/s"}
    document["path"] = [
        {"name": "gzip", "kind": "node-cache", "store": "hot", "form": "gzip"},
        {"name": "planes", "kind": "node-cache", "store": "hot", "form": "gzip", "keep": "planes"},
    ]
    rows = predictions(document)
    assert rows["gzip"].limited_by == "inflate"
    assert rows["planes"].first_epoch_s == pytest.approx(rows["gzip"].first_epoch_s)
    # One core: 15.6 MB of a sample at 3 instead of 0.3 GB/s.
    assert rows["planes"].step_s < rows["gzip"].step_s / 3


def test_machine_with_several_numbers_of_accelerators_is_planned_for_each(document):
    document["machine"][0]["accelerators"] = [4, 8]
    rows = [predict(scenario) for scenario in scenarios(parse(document), BOOK) if scenario.path == "stream gzip"]
    assert [(row.accelerators, row.machine) for row in rows] == [
        (16, "ND40rs_v2 (4 of its accelerators)"),
        (32, "ND40rs_v2 (8 of its accelerators)"),
    ]
    assert rows[0].epoch_s == pytest.approx(2 * rows[1].epoch_s)
    document["machine"][0]["accelerators"] = [4, 4]
    with pytest.raises(ConfigError, match="different numbers above 0"):
        parse(document)


CARD = """
schema_version = 1
[[tier]]
name = "mine"
year = 2026
title = "a probed store"
[[tier.limit]]
what = "read-bytes"
scope = "account"
value = 500000000.0
unit = "bytes/s"
source = "penstock probe"
as_of = "2026-11"
confidence = "measured"
uncertainty = 0.1
[[tier.latency]]
what = "read"
p50_ms = 20.0
p99_ms = 30.0
source = "penstock probe"
as_of = "2026-11"
confidence = "measured"
uncertainty = 0.2
"""


def test_epoch_range_of_a_probed_store_is_its_uncertainty(document, tmp_path):
    (tmp_path / "card.toml").write_text(CARD)
    document["store"][0]["tier"] = f"{tmp_path / 'card.toml'}#mine"
    scenario = scenario_of(document, "stream gzip")
    row = predict(scenario)
    assert row.limited_by == "account"
    low, high = epoch_range(scenario)
    assert low == pytest.approx(row.epoch_s / 1.1)
    assert high == pytest.approx(row.epoch_s / 0.9)
    document["store"][0]["account"] = "500MB/s"  # stated in the plan file: no longer uncertain
    assert epoch_range(scenario_of(document, "stream gzip")) == (row.epoch_s, row.epoch_s)
    document["store"][0]["latency"] = "20ms"
    assert epoch_range(scenario_of(document, "stream gzip")) is None
