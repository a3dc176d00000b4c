# SPDX-License-Identifier: Apache-2.0
"""Tests the live view of `penstock run`: on a terminal, with hostile lines, with many nodes. Issue 5, point 5."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from penstock.cli.run_live import LiveView
from penstock.job.run_steps import StepRow


def _text(view: LiveView, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(view.render())
    return console.file.getvalue()


def test_view_shows_steps_and_each_nodes_last_line_without_its_control_codes():
    view = LiveView("job")
    view.expect(["h1", "h2"])
    view.on_step(StepRow("stage", "done", 65.0, "here"))
    view.on_step(StepRow("ranks"))
    view.on_line("h1", 0, "out", b"first")
    view.on_line("h1", 3, "err", b"\x1b[2Jboo\x07 [red]\xff " + b"x" * 200)
    lines = _text(view).splitlines()
    assert lines[0].strip() == "job"
    assert re.search(r"stage: done +here", lines[1])
    assert "ranks: running" in lines[2]
    assert re.search(r"^h1 +rank 3, 2 lines +\[2Jboo \[red\]", lines[3])
    assert re.search(r"^h2 +silent", lines[4])
    assert all(len(line) <= 80 and "\x1b" not in line and "\x07" not in line for line in lines)


def test_view_of_many_nodes_keeps_those_that_spoke_last():
    view = LiveView("job")
    view.expect([f"h{at}" for at in range(100)])
    view.on_line("h99", 0, "out", b"here")
    text = _text(view)
    assert "here" in text
    assert "and 76 more" in text
    assert len(text.splitlines()) < 30


def test_view_of_several_paths_keeps_a_line_of_each_that_is_done():
    view = LiveView("job")
    for path, state in (("job-stream", "done"), ("job-pool", "failed"), ("job-staged", "running")):
        view.on_step(StepRow("stage", "done", 3.0), of=path)
        view.on_step(StepRow("ranks", state, 4.0), of=path)
    lines = _text(view).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["7.00", "s", "job-stream:", "done"], ["7.00", "s", "job-pool:", "failed"], ["job-staged"],
    ]  # fmt: skip
    assert next(line.split()[2:4] for line in lines[4:]) == ["stage:", "done"]
    assert "ranks: running" in lines[5]
    assert len(lines) == 6


def test_run_on_a_terminal_shows_the_view_and_keeps_stdout_for_steps(tmp_path):
    (tmp_path / "job.toml").write_text(
        'name = "seen"\n[cluster]\nnodes = 2\n[run]\nargv = ["sh", "-c", "echo spoke-{rank}; sleep 1"]\n'
    )
    ours, theirs = pty.openpty()
    job = subprocess.Popen(
        [Path(sys.executable).with_name("penstock"), "run", "job.toml"], cwd=tmp_path, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            seen += chunk
    except OSError:  # the terminal's end, on Linux
        pass
    os.close(ours)
    out = job.communicate(timeout=60)[0].decode()
    assert job.returncode == 0, seen
    assert re.fullmatch(r"ranks: done in .*: 2 ranks\n", out)
    for word in (b"n0", b"n1", b"spoke-0", b"spoke-1", b"ranks: running", b"ranks: done"):
        assert word in seen, word
