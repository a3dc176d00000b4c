# SPDX-License-Identifier: Apache-2.0
"""Tests the whole demo at its smallest size, through the CLI: the same code as the real demo on a fraction of the data."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.report.comparison import read

PENSTOCK = Path(sys.executable).with_name("penstock")
pytestmark = [pytest.mark.needs_torch]


@pytest.fixture(scope="module")
def shown(tmp_path_factory, run_cli):
    folder = tmp_path_factory.mktemp("demo")
    return folder, run_cli("demo", "--size", "tiny", "--json", cwd=folder, timeout_s=240)


@pytest.mark.timeout(300)
def test_demo_tiny_says_what_the_issue_asks(shown):
    folder, done = shown
    assert done.code in {0, 1}, done.err  # so little data may not train the network; the real size must
    facts = json.loads(done.out)
    assert len(facts["paths"]) == 4
    assert facts["loss_identical"] is True
    curves = {json.dumps(p["losses"]) for p in facts["paths"].values()}
    assert len(curves) == 1
    assert len(set(json.loads(curves.pop()))) > 5
    rates = {name: p["samples_per_s"] for name, p in facts["paths"].items()}
    assert rates["streamed-hot"] > 1.3 * rates["as-published"]
    for path in facts["paths"].values():
        assert path["bytes"] > 0
        assert path["first_batch_s"] > 0
        assert 0 <= path["wait_share"] <= 1
        assert path["throttles"] == 0
    assert facts["paths"]["staged"]["stage_s"] > 0
    assert facts["scale"] == 0.125
    assert Path(facts["report"]) == folder / "penstock-demo" / "report.html"


@pytest.mark.timeout(300)
def test_demo_tiny_leaves_report_comparison_and_runs_only(shown):
    folder, done = shown
    out = folder / "penstock-demo"
    assert sorted(p.name for p in out.iterdir()) == ["comparison.json", "report.html", "runs"]
    facts = read(out / "comparison.json")
    assert {p.run for p in facts.paths} <= {p.name for p in (out / "runs").iterdir()}
    assert "report.html" in done.out
    secret = [line for line in done.err.splitlines() if "secret" in line.lower()]
    assert secret == []


@pytest.mark.timeout(120)
def test_demo_interrupted_leaves_no_data(tmp_path):
    out = tmp_path / "out"
    child = subprocess.Popen(
        [PENSTOCK, "demo", "--size", "tiny", "--output", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(out.glob(".penstock-demo-data-*/bucket/gzip/train/*")):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert list(out.iterdir()) == []


def test_demo_unwritable_folder_is_one_error(tmp_path, run_cli):
    (tmp_path / "file").write_text("in the way")
    done = run_cli("demo", "--size", "tiny", "--output", tmp_path / "file", timeout_s=60)
    assert done.code == 3
    assert done.err.count("error[") == 1
    assert "hint:" in done.err
