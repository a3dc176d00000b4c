# SPDX-License-Identifier: Apache-2.0
"""Tests the report: every second belongs to one class, the limit is named, and the numbers add up."""

from __future__ import annotations

import re
import time

import pytest

import penstock
from penstock.emulator import Emulator
from penstock.feed.report import CLASSES, EpochMeasurements, make

from .conftest import dataset


def test_report_classes_sum_to_the_wall(made):
    loader = penstock.Loader(dataset(made([1] * 20)).shuffle(1), batch_size=4)
    for _ in loader:
        time.sleep(0.01)
    report = loader.report()
    assert sum(report[name] for name in CLASSES) == pytest.approx(report["wall_s"], rel=0.01)
    assert report["compute_s"] >= 0.05
    assert report["wait_s"] + report["compute_s"] == pytest.approx(report["wall_s"], rel=0.05)
    assert (report["samples"], report["batches"], report["complete"]) == (20, 5, True)
    assert report["bytes_out"] == 20 * (3 * 2 * 2 + 4 * 4)
    assert report["bytes_in"] == report_bytes(loader)
    assert 0 < report["first_batch_s"] <= report["wall_s"]
    assert dict(report)["limiting"] == report["limiting"]
    assert "limited by" in str(report)
    assert "20 samples" in str(report)


def report_bytes(loader):
    return loader.dataset.source.size_bytes


def test_report_of_a_broken_off_pass_covers_what_was_delivered(made):
    loader = penstock.Loader(dataset(made([1] * 20)).shuffle(1), batch_size=4)
    for _ in loader:
        break
    report = loader.report()
    assert (report["samples"], report["batches"], report["complete"]) == (4, 1, False)


def test_report_before_any_pass_is_all_zero(made):
    report = penstock.Loader(dataset(made([1])), batch_size=1).report()
    assert (report["samples"], report["wall_s"], report["first_batch_s"]) == (0, 0.0, None)


def test_report_names_what_limits():
    def limiting(**timing: float) -> str:
        counters = {"throttle_wait_s": timing.pop("throttled", 0.0), "first_byte_s": 1.0}
        waited = sum(value for name, value in timing.items() if name.startswith("wait"))
        measured = EpochMeasurements(
            wall_s=10.0, wait_s=waited, compute_s=10.0 - waited, timing=timing, counters=counters
        )
        return make(measured, {})["limiting"]

    assert limiting(wait_transfer_s=0.1) == "compute_s"
    assert limiting(wait_transfer_s=5.0) == "transfer_s"
    assert limiting(wait_first_byte_s=5.0) == "first_byte_s"
    assert limiting(wait_first_byte_s=5.0, throttled=9.0) == "throttle_s"
    assert limiting(wait_queue_s=5.0, busy_inflate_s=3.0, busy_decode_s=1.0) == "inflate_s"


def test_report_line_says_how_far_and_what_it_waits_for(made):
    loader = penstock.Loader(dataset(made([1] * 20)).shuffle(1), batch_size=4)
    assert loader.report().line().startswith("epoch 0 · 0 samples")
    for _ in loader:
        line = loader.report().line()
        assert len(line) <= 80
    assert line.startswith("epoch 0 · 20 samples")
    assert "waits" in line


def test_report_for_prometheus_is_its_text_format_and_sums_to_the_wall(made):
    loader = penstock.Loader(dataset(made([1] * 20)).shuffle(1), batch_size=4)
    for _ in loader:
        pass
    report = loader.report()
    result = report.prometheus()
    values = dict(re.findall(r"^(penstock_feed_\w+\{[^}]*\}) (\S+)$", result, re.MULTILINE))
    assert len(values) == sum(not line.startswith("#") for line in result.splitlines())
    seconds = [float(value) for name, value in values.items() if name.startswith("penstock_feed_seconds")]
    assert sum(seconds) == pytest.approx(report["wall_s"], rel=0.01)
    assert values['penstock_feed_samples{rank="0",epoch="0"}'] == "20"
    named = {name.partition("{")[0] for name in values}
    assert named == set(re.findall(r"^# TYPE (\w+) gauge$", result, re.MULTILINE))


THROTTLED = """
schema_version = 1
[[tier]]
name = "truth"
year = 2026
title = "503 above 100 requests/s"
[[tier.limit]]
what = "read-requests"
scope = "account"
value = 100.0
unit = "requests/s"
source = "this test"
as_of = "2026-11"
confidence = "ours"
[tier.burst]
value = 0.05
unit = "s"
source = "this test"
as_of = "2026-11"
confidence = "ours"
"""


def test_report_counts_the_requests_and_refusals_that_the_store_counted(made, tmp_path, monkeypatch):
    """The counts must be exact. benches/accounting.py compares the seconds with injected values."""
    folder = made([1] * 40)
    book = tmp_path / "truth.toml"
    book.write_text(THROTTLED)
    with Emulator(folder, tier="truth", tiers=book) as served:
        for name, value in served.env.items():
            monkeypatch.setenv(name, value)
        there = dataset(served.url, records_per_object=1).cache(False)
        loader = penstock.Loader(there, batch_size=4, rank=0, world=1, prefetch_next_epoch=False)
        before = served.stats()
        for _ in loader:
            pass
        after = served.stats()
    report = loader.report()
    assert report["throttles"] == after["throttles"] - before["throttles"] > 0
    assert report["requests"] == after["gets"] - before["gets"] == 40 + report["retries"]
    assert report["bytes_in"] == sum(path.stat().st_size for path in folder.iterdir())
    assert report["throttle_s"] > 0
    assert sum(report[name] for name in CLASSES) == pytest.approx(report["wall_s"], rel=0.01)
