# SPDX-License-Identifier: Apache-2.0
"""Tests of the page of a plan: escaped texts, unknown prices, and charts that a browser draws."""

from __future__ import annotations

import datetime as dt
import re

import msgspec
import pytest

from penstock.plan.result import make_plan
from penstock.plan.spec_file import parse
from penstock.price.book import load
from penstock.report.plan_page import MAX_ROWS, plan_charts, plan_page
from tests.plan.conftest import STUDY_A
from tests.report.test_page import BROWSER, opened

TODAY = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)


def plan(**changes):
    document = msgspec.json.decode(msgspec.json.encode(STUDY_A)) | changes
    return make_plan(parse(document), load(), TODAY)


def test_plan_page_escapes_texts_and_has_every_row_of_a_small_plan():
    result = plan(name="<b>bold</b>")
    page = plan_page(result)
    assert "<b>bold</b>" not in page
    assert "&lt;b&gt;bold" in page
    assert page.count('<th scope="row">') >= len(result.rows)
    assert "older than 12 months" in page


def test_plan_page_has_the_break_even_of_each_path_that_stages():
    result = plan(nodes="40")
    point = next(each for each in result.break_even if each.path == "gzip pool")
    page = plan_page(result)
    assert "Break-even of paths that stage" in page
    cells = rf'<th scope="row">gzip pool</th><td class="">{point.against}</td><td class="">40 x ND40rs_v2</td>'
    assert f'{cells}<td class="n">{point.from_epochs:,}</td>' in page


def test_plan_page_of_many_rows_is_small_and_says_what_it_leaves_out():
    result = plan(nodes="1..400")
    page = plan_page(result)
    assert len(page) < 3_000_000
    assert f"{len(result.rows) - MAX_ROWS:,} more rows are left out" in page


def test_plan_page_without_prices_has_no_frontier_and_lists_what_is_unknown():
    document = msgspec.json.decode(msgspec.json.encode(STUDY_A))
    del document["machine"][0]["price"]
    result = make_plan(parse(document), load(), TODAY)
    assert "frontier" not in plan_charts(result)
    assert "ND40rs_v2: no price" in plan_page(result)


@pytest.mark.needs_browser
def test_plan_page_opened_draws_its_charts(tmp_path):
    assert BROWSER, "no Chromium here: make setup-peers installs it"
    file = tmp_path / "plan.html"
    file.write_text(plan_page(plan(nodes="1..40")))
    dom = opened(file, tmp_path)
    assert 'data-charts="drawn"' in dom
    for name in ("frontier", "scaling", "sensitivity"):
        drawn = dom[dom.index(f'id="chart-{name}"') :]
        drawn = drawn[: drawn.index("</figure>")]
        assert re.findall(r'aria-roledescription="(?:point|bar|line mark)', drawn), name
