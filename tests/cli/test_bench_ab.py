# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock bench ab` on the command line: real commands, exit codes, usage errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def test_ab_different_commands_answer_yes(run_cli):
    done = run_cli("bench", "ab", "--json", "--max-runs", "60", "--", "sleep", "0.01", "--vs", "sleep", "0.1")
    result = json.loads(done.out)
    assert (done.code, result["verdict"]) == (0, "different")
    assert result["interval"][0] > 1
    assert (result["schema_version"], result["a"]["argv"]) == (1, ["sleep", "0.01"])
    assert len(result["b"]["values"]) == result["runs"] / 2


def test_ab_same_command_answers_no_difference_shown(run_cli):
    number = f"{sys.executable} -c 'print(5)'"
    done = run_cli("bench", "ab", "--metric", "printed", "--max-runs", "40", "--", number, "--vs", number)
    assert (done.code, done.out.splitlines()[0][:19]) == (1, "no difference shown")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--", "true"],
        ["--", "true", "--vs"],
        ["--", "--vs", "true"],
        ["--", "true", "--vs", "true", "--vs", "true"],
        ["--pattern", "x", "--", "true", "--vs", "true"],
        ["--metric", "printed", "--pattern", "(", "--", "true", "--vs", "true"],
        ["--max-runs", "4", "--", "true", "--vs", "true"],
    ],
)
def test_ab_wrong_line_is_a_usage_error(run_cli, arguments):
    done = run_cli("bench", "ab", *arguments)
    assert (done.code, done.out) == (2, "")


def test_ab_command_that_fails_ends_it(run_cli):
    done = run_cli("bench", "ab", "--", "false", "--vs", "true")
    assert done.code == 3
    assert "A failed with exit code 1" in done.err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ab_stopped_takes_its_command_along(tmp_path, sent, code):
    begun = tmp_path / "begun"
    # The command signals its parent itself, possibly before the parent has recorded that the command started.
    slow = ["sh", "-c", f"echo $$ > {begun}; kill -{int(sent)} $PPID; sleep 60"]
    program = Path(sys.executable).with_name("penstock")
    ours = subprocess.Popen(
        [program, "bench", "ab", "--", *slow, "--vs", "true"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    out, _ = ours.communicate(timeout=30)
    assert (ours.returncode, out) == (code, b"")
    assert not Path(f"/proc/{begun.read_text().strip()}").exists()
