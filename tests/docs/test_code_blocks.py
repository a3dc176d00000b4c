# SPDX-License-Identifier: Apache-2.0
"""Tests that every command and program in the README and the guides runs, page by page, or states why it is not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.code_blocks import blocks, script

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]


def _run(text: str, folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_code_blocks_run(page, tmp_path):
    text = page.read_text()
    assert any(block.runs for block in blocks(text)), "a guide shows something that runs"
    done = _run(script(text), tmp_path, 280)
    assert done.returncode == 0, done.stderr[-3000:]


def test_script_page_is_one_session(tmp_path):
    page = "```bash\nexport WHO=reader\n```\ntext\n```console\n$ echo \"$WHO\" > who\nnot a command\n$ cat \\\n>   who\nreader\n```\n```python\nprint(open('who').read() * 2)\n```\n"
    done = _run(script(page), tmp_path, 30)
    assert (done.returncode, done.stdout.split()) == (0, ["reader"] * 3)


def test_script_failing_block_stops_and_is_named(tmp_path):
    done = _run(script("```bash\nfalse\n```\n\n```bash\ntouch later\n```\n"), tmp_path, 30)
    assert done.returncode == 1
    assert "block at line 1" in done.stderr
    assert not (tmp_path / "later").exists()


def test_script_failing_python_stops(tmp_path):
    assert _run(script("```python\nassert False\n```\n"), tmp_path, 30).returncode == 1


def test_script_background_job_ends_with_the_page(tmp_path):
    done = _run(script("```bash\nsleep 60 &\necho $! > pid\n```\n"), tmp_path, 30)
    assert done.returncode == 0
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_blocks_opt_out_with_reason_is_not_run():
    (block,) = blocks("<!-- not run: needs a cluster -->\n```bash\nfalse\n```\n")
    assert (block.runs, block.skipped, block.line) == (False, "needs a cluster", 2)


@pytest.mark.parametrize(
    "page",
    ["```bash\nfalse\n", "```\nfalse\n```\n", "```shel\nfalse\n```\n", "<!-- not run -->\n```bash\nfalse\n```\n"],
    ids=["never closed", "no language", "misspelt", "no reason"],
)
def test_blocks_that_would_escape_are_refused(page):
    with pytest.raises(ValueError, match="line 1"):
        blocks(page)
