# SPDX-License-Identifier: Apache-2.0
"""Tests the first table of a page: rates, money and runs compared, and that 100,000 rows make a small page."""

from __future__ import annotations

import datetime as dt
import json
import random

import msgspec
import pytest

from penstock.bench.rows import Latency, Results, write_results
from penstock.report.runs_section import money_text, run_lines, runs_charts, runs_section
from penstock.report.sweep import summarise
from penstock.report.sweep_page import sweep_page
from tests.bench.sweeps import MIB, Storage, make, row

TODAY = dt.date(2026, 11, 24)


def measured(label, factor=1.0, **more):
    """Reads of two sizes at three thread counts, at `factor` times the base rate."""
    rows = [row("READ", c, size, factor * 50.0 * c) for c in (1, 4, 16) for size in (MIB, 8 * MIB)]
    return [msgspec.structs.replace(one, label=label, **more) for one in rows]


def test_runs_are_compared_at_the_points_that_both_measured():
    slow = [*measured("slow", 0.5), msgspec.structs.replace(row("READ", 64, MIB, 1e6), label="slow")]
    first, second = run_lines([*measured("base"), *slow])
    assert (first.run, first.ratio, first.common) == ("base", None, 0)
    assert (second.run, second.common) == ("slow", 6)
    assert second.ratio == pytest.approx(0.5)


def test_runs_without_a_common_point_have_no_ratio():
    other = [msgspec.structs.replace(row("READ", 2, MIB, 100.0), label="other")]
    assert run_lines([*measured("base"), *other])[1].ratio is None


def test_rate_of_a_run_is_the_median_of_the_repeats_at_its_best_point():
    rows = [row("READ", 4, MIB, rate) for rate in (100.0, 110.0, 400.0)] + [row("READ", 1, MIB, 105.0)]
    (line,) = run_lines(rows)
    assert line.rate == pytest.approx(110 * MIB)
    assert (line.at, line.rows) == ("4 threads, 1.00 MiB", 4)


def test_p99_of_a_run_is_not_filled_by_another_percentile():
    timed = Latency(min_us=1, mean_us=2000, max_us=9000, percentiles_us={"50": 2000.0, "99.9": 8000.0})
    (line,) = run_lines(measured("", entry_latency=timed))
    assert (line.p50_us, line.p99_us) == (2000.0, None)


def test_money_is_summed_dated_and_never_invented():
    priced = measured("paid", usd=0.25, prices_as_of=("2024-07",))
    assert money_text(measured("free"), TODAY) == "Cost: none of these rows has one. Rows without a cost are not free."
    said = money_text([*priced, *measured("free")], TODAY)
    assert said.startswith("Cost: $1.50 for 6 rows; prices as of 2024-07, all older than 12 months (oldest: 28 months)")
    assert said.endswith("6 of 12 rows have no cost and are not counted.")
    paid, free = run_lines([*priced, *measured("free")])
    assert paid.usd == pytest.approx(1.5)
    moved = sum(one.last.bytes for one in priced)
    assert paid.usd_per_tb == pytest.approx(1.5 / moved * 1e12)
    assert (free.usd, free.usd_per_tb) == (None, None)


def test_section_leaves_out_columns_without_values():
    plain = runs_section(run_lines(measured("")), "Cost: x.", {})
    assert "best rate" in plain
    assert not any(f">{name}<" in plain for name in ("run", "p50", "cost", "against the first", "failed requests"))
    timed = Latency(min_us=1, mean_us=2000, max_us=9000, percentiles_us={"50": 2000.0, "99": 8000.0})
    rows = [*measured("a", entry_latency=timed, errors_by_class={"503": 7}), *measured("<b>", 2.0, usd=0.1)]
    full = runs_section(run_lines(rows), "Cost: x.", runs_charts(run_lines(rows)))
    assert all(f">{name}<" in full for name in ("run", "p50", "p99", "cost", "against the first", "failed requests"))
    assert "2.00 ms" in full
    assert "×2.00" in full
    assert ">42<" in full
    assert "&lt;b&gt;" in full


def test_page_has_the_answer_the_table_and_the_money_before_the_charts():
    rows = (*measured("one", usd=0.1), *measured("two", 2.0))
    text = sweep_page(summarise(Results(rows=rows)), rows)
    order = [text.index(part) for part in ("<h1>", "best rate", "Cost: $0.60", 'id="chart-runs"', "chart-surface-0", "Where it comes from")]  # fmt: skip
    assert order == sorted(order)
    assert "READ, one" in text
    assert "READ, two" in text


def test_report_of_several_folders_compares_them(run_cli, tmp_path):
    for name, factor in (("a/run", 1.0), ("b/run", 3.0)):
        write_results(tmp_path / name, measured("", factor), spec={})
    page = tmp_path / "compared.html"
    done = run_cli("report", str(tmp_path / "a/run"), str(tmp_path / "b/run"), "--output", str(page), "--json")
    assert done.code == 0, done.err
    assert [(line["run"], line["ratio"]) for line in json.loads(done.out)["runs"]] == [
        ("a/run", None),
        ("b/run", pytest.approx(3.0)),
    ]
    assert "2 runs." in page.read_text()
    twice = run_cli("report", str(tmp_path / "a/run"), str(tmp_path / "a/run"), "--output", str(page))
    assert (twice.code, "given twice" in twice.err) == (2, True)
    (tmp_path / "empty").mkdir()
    assert run_cli("report", str(tmp_path / "a/run"), str(tmp_path / "empty")).code == 3


def test_report_of_a_plan_file_says_what_to_run(run_cli, tmp_path):
    done = run_cli("report", str(tmp_path / "plan.toml"))
    assert "penstock plan" in done.err


def test_page_of_100_000_rows_is_under_three_megabytes():
    at = random.Random(3)
    storage = Storage("queues", 3e-3, 8e8, 6_000, 12e9, contention=0.15)
    base = make(storage, [1, 2, 4, 8, 16, 32, 64, 128], [65536, 262144, MIB, 4 * MIB, 64 * MIB], noise=0.03).rows
    labels = [f"run {number}" for number in range(50)]
    rows = tuple(msgspec.structs.replace(at.choice(base), label=labels[n % 50]) for n in range(100_000))
    report = summarise(Results(rows=rows))
    text = sweep_page(report, rows)
    assert report.rows == 100_000
    assert len(report.runs) == 50
    assert len(text.encode()) < 3e6
    assert text.count("<tr>") < 500
