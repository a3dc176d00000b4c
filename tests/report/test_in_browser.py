# SPDX-License-Identifier: Apache-2.0
"""Opens pages in headless Chromium: charts, errors, requests, contrast in each scheme and in print, and the keyboard."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.bench.rows import Results
from penstock.report.comparison_page import page
from penstock.report.explain_page import explain_page
from penstock.report.plan_page import plan_page
from penstock.report.sweep import summarise
from penstock.report.sweep_charts import sweep_charts
from penstock.report.sweep_page import sweep_page
from tests.bench.sweeps import MIB, Storage, make, row
from tests.report.browser import browser
from tests.report.conftest import comparison
from tests.report.test_explain_page import explanation
from tests.report.test_plan_page import plan
from tests.report.test_sweep import rich

pytestmark = pytest.mark.needs_browser
CONTRAST = Path(__file__).with_name("contrast.js").read_text()
SCHEMES = [("light", "screen"), ("dark", "screen"), ("light", "print"), ("dark", "print")]


def sweep_results():
    storage = Storage("queues", 3e-3, 8e8, 6_000, 12e9, contention=0.15)
    rows = make(storage, [1, 8, 32, 128], [262144, MIB, 64 * MIB], noise=0.03).rows
    rows = [rich(one, number) if number % 5 == 0 else one for number, one in enumerate(rows)]
    return Results(rows=(*rows, *(row("STAT", c, MIB, min(c / 1e-3, 9_000)) for c in (1, 8, 32))))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    results = sweep_results()
    labelled = [
        msgspec.structs.replace(one, label=name, usd=0.1, prices_as_of=("2024-07",))
        for name in ("a", "b")
        for one in results.rows
    ]
    compared = Results(rows=tuple(labelled))
    texts = {
        "comparison": page(comparison()),
        "sweep": sweep_page(summarise(results), results.rows),
        "runs": sweep_page(summarise(compared), compared.rows),
        "plan": plan_page(plan()),
        "explain": explain_page(explanation()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(params=["comparison", "sweep", "runs", "plan"])
def shown(request, pages, tab):
    tab.media()
    tab.messages.clear()
    tab.requests.clear()
    assert tab.open(pages[request.param]) == "drawn"
    return request.param


def test_page_draws_its_charts_without_error_or_request(shown, tab):
    charts = tab.run(
        "[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg path, svg rect').length)"
    )
    assert len(charts) == len(tab.run("Object.keys(JSON.parse(document.getElementById('specs').textContent))"))
    assert min(charts) >= 3
    assert tab.messages == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in tab.requests) == 1


@pytest.mark.parametrize(("scheme", "media"), SCHEMES)
def test_page_text_contrast_is_at_least_4_5(pages, tab, scheme, media):
    for file in pages.values():
        tab.media(scheme, media)
        assert tab.open(file) in ("drawn", None)
        found = tab.run(CONTRAST)
        assert found["seen"] > 100
        assert found["found"] == []


def test_contrast_check_finds_a_faint_text(pages, tab):
    tab.media()
    tab.open(pages["sweep"])
    tab.run("document.querySelector('.lead').style.color = '#aaa'")
    tab.run("document.querySelector('.chart svg text').style.fill = '#bbb'")
    assert len(tab.run(CONTRAST)["found"]) == 2


def test_page_colours_follow_the_scheme_and_print_is_light(shown, tab):
    colours = {}
    for scheme, media in SCHEMES:
        tab.media(scheme, media)
        colours[scheme, media] = tab.run(
            "[getComputedStyle(document.documentElement).getPropertyValue('--ink').trim(),"
            " getComputedStyle(document.querySelector('.chart svg .role-axis-label text')).fill]"
        )
    assert colours["light", "screen"] != colours["dark", "screen"]
    assert colours["dark", "print"] == colours["light", "print"] == colours["light", "screen"]


def test_chart_is_named_by_its_caption(shown, tab):
    names = tab.run(
        "[...document.querySelectorAll('figure')].filter(f => f.querySelector('svg')).map(f =>"
        " [f.querySelector('[role=graphics-document]').getAttribute('aria-label'), f.querySelector('figcaption').textContent])"
    )
    assert names
    assert all(name == caption for name, caption in names)


def test_page_is_usable_by_keyboard(shown, tab):
    stops = []
    for _ in range(12):
        tab.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        tab.send("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        stop = tab.run(
            "(e => [e.className, e.getAttribute('aria-label') || '', getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        if stops and stop == stops[0]:
            break
        stops.append(stop)
    assert stops[0][0] == "skip"
    assert all(outline != "none" for name, _, outline in stops if name)
    tables = [label for name, label, _ in stops if name == "scroll"]
    assert tables
    assert all(label.startswith("table of ") for label in tables)
    assert tab.run("document.documentElement.lang") == "en"
    assert tab.run("document.querySelectorAll('h1').length") == 1
    assert tab.run("document.querySelectorAll('main').length") == 1


def test_page_fits_a_narrow_screen_and_a_printed_page(shown, tab, tmp_path):
    tab.send("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    try:
        tab.run("document.documentElement.offsetWidth")
        assert tab.run("document.documentElement.scrollWidth") <= 400
        assert tab.run("Math.max(...[...document.querySelectorAll('.chart svg')].map(s => s.getBoundingClientRect().right))") <= 400  # fmt: skip
    finally:
        tab.send("Emulation.clearDeviceMetricsOverride")
    tab.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"


def test_sweep_page_has_a_figure_for_each_chart(pages):
    results = sweep_results()
    text = pages["sweep"].read_text()
    assert all(f'id="chart-{name}"' in text for name in sweep_charts(summarise(results).groups, results.rows))
