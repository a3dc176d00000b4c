# SPDX-License-Identifier: Apache-2.0
"""Tests that the recipes of the guide to frameworks run. The page's own test leaves them out, because they need packages
that only `make test-peers` installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.code_blocks import blocks

pytestmark = pytest.mark.needs_adapters

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = blocks((ROOT / "docs/guides/frameworks.md").read_text())
RECIPES = {block.line: block for block in BLOCKS if block.skipped and block.skipped.endswith("make test-peers runs it")}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("line", RECIPES)
def test_recipe_runs_after_the_first_block(line, tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / '.tools/adapters'}",
        "PYTHONWARNINGS": "ignore",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    program = tmp_path / "recipe.py"
    for block in (BLOCKS[0], RECIPES[line]):
        program.write_text(block.text)
        done = subprocess.run(
            [sys.executable, program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]


def test_recipes_are_found():
    assert len(RECIPES) == 6
