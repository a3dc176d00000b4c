# SPDX-License-Identifier: Apache-2.0
"""Tests the page of a scaling sweep. Issue 16, point 6."""

from __future__ import annotations

import re

import pytest

from penstock.bench.app.cells import Cell, Run
from penstock.bench.app.document import document, load, save
from penstock.bench.app.spec import Spec, variants_of
from penstock.bench.app.summary import summarise
from penstock.errors import Corrupt
from penstock.report.scaling_page import scaling_charts, scaling_page
from tests.report.test_page import BROWSER, opened


@pytest.fixture
def sweep(tmp_path):
    """A saved sweep: native and a container at 1, 2 and 4 ranks, of which one failed; its command contains markup."""
    spec = Spec(
        command=("md", "<script>"),
        ranks=(1, 2, 4),
        repeats=3,
        variant=variants_of("charliecloud:/i", ("host-mpirun",), (), env={"TOKEN": "secret-value"}),
    )
    cells = []
    for variant in spec.variant:
        for size in spec.sizes(variant):
            walls = [(8 / size.ranks) * (1 + 0.01 * turn) for turn in range(3)]
            runs = [Run(round=r, wall_s=w, cpus=("0",) * size.ranks) for r, w in enumerate(walls)]
            cells.append(Cell(variant=variant.name, ranks=size.ranks, nodes=1, problem_size=1, runs=runs))
    cells[2].runs, cells[2].error = [], "rank 0 on n0: exit code 3: <b>no memory</b>"
    save(document(spec, cells, summarise(spec, cells), notes=["a note"]), tmp_path)
    return tmp_path


def test_page_shows_sizes_failures_and_comparisons_escaped(sweep):
    page = scaling_page(load(sweep))
    text = page[: page.index('<script type="application/json"')]
    assert "<h1>Strong scaling</h1>" in text
    assert "failed: rank 0 on n0: exit code 3: &lt;b&gt;no memory&lt;/b&gt;" in text
    assert "charliecloud, host mpirun, 2 ranks: no difference shown, ≤ 0.0 %" in text
    assert "a note." in text
    assert set(scaling_charts(load(sweep).summary)) == {"speed-up", "cost"}


def test_document_leaves_out_the_values_of_variables(sweep):
    assert "secret-value" not in (sweep / "scaling.json").read_text()
    assert load(sweep).spec["variant"][0]["env"] == {"TOKEN": "…"}


def test_document_that_is_not_one_is_corrupt(tmp_path):
    for text in ("{}", "[", '{"schema_version": 99}'):
        (tmp_path / "scaling.json").write_text(text)
        with pytest.raises(Corrupt, match=r"scaling.json"):
            load(tmp_path)


def test_report_verb_writes_the_page_and_pictures(sweep, run_cli):
    done = run_cli("report", sweep, "--pictures", sweep / "pictures", "--picture-format", "svg")
    assert done.code == 0, done.err
    assert (sweep / "report.html").read_text().startswith("<!doctype html>")
    assert sorted(file.name for file in (sweep / "pictures").iterdir()) == ["cost.svg", "speed-up.svg"]
    assert run_cli("report", sweep, "--csv", sweep / "x.csv").code == 2


@pytest.mark.needs_browser
def test_page_opened_draws_both_charts(sweep):
    assert BROWSER, "no Chromium here: make setup-peers installs it"
    file = sweep / "report.html"
    file.write_text(scaling_page(load(sweep)))
    dom = opened(file, sweep)
    assert 'data-charts="drawn"' in dom
    for name in ("speed-up", "cost"):
        drawn = dom[dom.index(f'id="chart-{name}"') :]
        drawn = drawn[: drawn.index("</figure>")]
        assert len(re.findall(r"<path [^>]*aria-roledescription=\"point", drawn)) >= 2, name
