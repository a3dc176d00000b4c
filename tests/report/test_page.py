# SPDX-License-Identifier: Apache-2.0
"""Tests that the page is complete, makes no request, escapes its input, and draws in a real browser."""

import html.parser
import json
import os
import re
import shutil
import subprocess

import msgspec
import pytest

from penstock.report.comparison import read, write
from penstock.report.comparison_page import page, write_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Addresses(html.parser.HTMLParser):
    """Collects all addresses that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.found += [
            v for k, v in attrs if k in {"src", "href", "srcset", "data", "action"} and not v.startswith(("data:", "#"))
        ]


@pytest.fixture
def made(facts):
    return page(facts)


def test_page_fetches_nothing(made):
    seen = Addresses()
    seen.feed(made)
    assert seen.found == []
    assert not re.search(r"@import|url\(\s*['\"]?http", made)
    assert "default-src 'none'" in made  # so a browser would also block a fetch


def test_page_is_under_three_megabytes(made):
    assert len(made.encode()) < 3e6


def test_page_names_every_path_figure_and_caveat(made, facts):
    for path in facts.paths:
        assert path.label in made
    assert all(note.replace("'", "&#x27;") in made for note in facts.notes)
    assert facts.learning.digest[:16] in made
    assert "older than 12 months" in made


def test_page_gives_the_reason_where_the_rehearsal_missed_the_model(made, facts):
    assert 'class="missed"' not in made
    slow = msgspec.structs.replace(facts.paths[1], model_samples_per_s=600.0, missed="<slow> steps")
    text = page(msgspec.structs.replace(facts, paths=[facts.paths[0], slow]))
    assert f"{slow.label}: 289 samples/s, predicted 600 (&lt;slow&gt; steps)." in text


def test_page_hostile_text_stays_text(facts):
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(1)">'
    bad = msgspec.structs.replace(
        facts, lead=evil, paths=[msgspec.structs.replace(p, label=evil + str(i)) for i, p in enumerate(facts.paths)]
    )
    text = page(bad)
    assert "<script>alert" not in text
    assert "<img" not in text[: text.index('id="specs"')]
    specs = re.search(r'id="specs">(.*?)</script>', text, re.DOTALL)
    assert "rates" in json.loads(specs.group(1))


def test_comparison_survives_the_disk(facts, tmp_path):
    write(facts, tmp_path / "comparison.json")
    assert read(tmp_path / "comparison.json") == facts
    assert [p.name for p in tmp_path.iterdir()] == ["comparison.json"]


@pytest.mark.needs_browser
def test_page_opened_draws_every_chart(facts, tmp_path):
    assert BROWSER, "no Chromium here: make setup-peers installs it"
    file = tmp_path / "report.html"
    write_page(facts, file)
    dom = opened(file, tmp_path)
    assert 'data-charts="drawn"' in dom
    for name in ("rates", "steps", "hours", "losses", "scaling"):
        place = dom[dom.index(f'id="chart-{name}"') :]
        drawn = place[: place.index("</figure>")]
        assert "<svg" in drawn, name
        marks = len(
            re.findall(r"<path [^>]*aria-roledescription=\"(?:bar|line mark|point|tick)", drawn)
        ) or drawn.count("mark-")
        assert marks >= 2, name


def opened(file, tmp_path):
    """The document after its scripts have run, in a browser with a new profile."""
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    done = subprocess.run(
        [
            BROWSER,
            *quiet,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1200,2400",
            "--virtual-time-budget=5000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-400:]
    return done.stdout


def test_loss_chart_long_training_is_thinned_to_means(facts):
    from penstock.report.charts import losses, per_point

    curve = [1 / (1 + i) for i in range(1024)]
    long = msgspec.structs.replace(facts, paths=[msgspec.structs.replace(p, losses=curve) for p in facts.paths])
    assert per_point(1024) == 16
    points = [
        row
        for values in losses(long)["layer"][:1]
        for row in values["data"]["values"]
        if row["path"] == facts.paths[0].label
    ]
    assert len(points) == 64
    assert points[-1]["step"] == 1024
    assert points[0]["loss"] == sum(curve[:16]) / 16
