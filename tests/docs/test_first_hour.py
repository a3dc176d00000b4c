# SPDX-License-Identifier: Apache-2.0
"""Tests CONTRIBUTING's first-hour section: its blocks run in a clone, with the environment from `make setup`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import penstock
from tools.code_blocks import script

ROOT = Path(__file__).resolve().parents[2]


def test_first_hour_of_contributing_runs_in_a_clone(tmp_path):
    clone = tmp_path / "penstock"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    for core in Path(penstock.__file__).parent.glob("_native*.so"):
        shutil.copy(core, clone / "python/penstock")
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page[page.index("## Your first hour") :].split("\n## ", 1)[0]
    done = subprocess.run(
        ["bash", "-c", script(section)],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone / "python")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
