# SPDX-License-Identifier: Apache-2.0
"""Opens a study's page in headless Chromium: charts drawn, no console error, no request, readable in both schemes."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.study.page import study_page
from penstock.study.result import read_result
from tests.report.browser import browser

pytestmark = pytest.mark.needs_browser
CONTRAST = (Path(__file__).resolve().parents[1] / "report/contrast.js").read_text()


def test_page_draws_its_charts_without_error_or_request_and_is_readable(run_cli, tmp_path):
    done = run_cli("study", "run", "cosmoflow-staged", "--only", "prediction", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    result = read_result(tmp_path / "out")
    file = tmp_path / "page.html"
    file.write_text(study_page(result))
    with browser(tmp_path) as tab:
        assert tab.open(file) == "drawn"
        charts = tab.run("[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg path').length)")
        assert len(charts) == 2
        assert min(charts) >= 3
        assert tab.messages == []
        assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
        assert tab.run("document.querySelector('h1').textContent").startswith("On 4 nodes")
        for scheme in ("light", "dark"):
            tab.media(scheme=scheme)
            assert tab.run(CONTRAST)["found"] == []
