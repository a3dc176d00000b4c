# SPDX-License-Identifier: Apache-2.0
"""Tests the policy of markers and of the clean environment: pytest runs on a small folder with our conftest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

pytestmark = pytest.mark.slow

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"


@pytest.fixture
def run_pytest(tmp_path):
    def run(test: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\nmarkers =\n    needs_s3: x\n    needs_tf: x\n    needs_server: x\n    slow: x\n    system: x\n"
        )
        (tmp_path / "test_it.py").write_text(f"import os, pytest\n{test}\n")
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CONFTEST.parents[1]), **env},  # conftest imports `tests.peer_stores`
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_files_of_the_tiers_exist():
    assert [place for place in (*conftest._SYSTEM, *conftest._SLOW) if not (CONFTEST.parent / place).exists()] == []


def test_marker_picked_and_nothing_collected_fails(run_pytest):
    assert run_pytest("def test_a(): pass", "-m", "needs_tf").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_marker_picked_and_all_skipped_fails(run_pytest):
    done = run_pytest("@pytest.mark.needs_tf\ndef test_a(): pytest.skip('not today')", "-m", "needs_tf")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_marker_picked_and_run_passes(run_pytest):
    assert run_pytest("@pytest.mark.needs_tf\ndef test_a(): pass", "-m", "needs_tf").returncode == 0


def test_environment_of_a_job_is_stripped(run_pytest):
    test = "def test_a(): assert not {'SLURM_PROCID', 'RANK', 'AWS_ACCESS_KEY_ID', 'PENSTOCK_STAGE_NODE'} & set(os.environ)"
    done = run_pytest(test, SLURM_PROCID="3", RANK="1", AWS_ACCESS_KEY_ID="x", PENSTOCK_STAGE_NODE="1")
    assert done.returncode == 0, done.stdout


@pytest.mark.needs_s3
def test_versitygw_starts_and_answers(versitygw):
    import urllib.error
    import urllib.request

    versitygw.bucket("house")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{versitygw.endpoint}/house", timeout=10)
    with refused.value as answer:
        assert answer.code == 403
