# SPDX-License-Identifier: Apache-2.0
"""Tests that the repository's reference runs are readable and small.

Also tests that `penstock report` produces a verdict and an HTML page from each. Issue 6, point 7.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench.rows import read_results

ROOT = Path(__file__).resolve().parents[2] / "results"
RUNS = sorted(path.parent for path in ROOT.rglob("rows.jsonl"))


def test_reference_runs_are_there_and_small():
    assert len(RUNS) >= 4
    assert sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_reference_run_gives_a_page_and_a_verdict_from_its_rows(run, run_cli, tmp_path):
    kept = read_results(run)
    assert kept.rows
    assert kept.provenance is not None
    assert kept.provenance.build_profile == "release"
    assert not any(row.invalid for row in kept.rows)
    result = run_cli("report", run, "--json", "--output", tmp_path / "page.html")
    assert result.code == 0, result.err
    assert json.loads(result.out)["headline"]
    assert "<html" in (tmp_path / "page.html").read_text()[:200].lower()
