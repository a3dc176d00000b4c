# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock bench classify` on the command line."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.bench.importers.elbencho import render
from penstock.bench.rows import write_results
from tests.bench.sweeps import MIB, Storage, make

ROWS = make(Storage("slowest", 1e-3, 1e9, 5e3, 4e9), [1, 8, 64], [65536, MIB, 64 * MIB]).rows


@pytest.fixture
def sweep(tmp_path):
    file = tmp_path / "sweep.csv"
    file.write_text(render(ROWS))
    return file


def test_classify_json_has_a_cell_for_each_point(run_cli, sweep):
    done = run_cli("bench", "classify", str(sweep), "--json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["schema_version"] == 2
    assert {(c["operation"], c["threads"], c["file_size_bytes"]) for c in result["cells"]} == {
        ("READ", r.threads, r.file_size_bytes) for r in ROWS
    }
    cell = next(c for c in result["cells"] if (c["threads"], c["file_size_bytes"]) == (64, 65536))
    assert (cell["regime"], cell["retrograde"]) == ("metadata", False)
    assert cell["advice"]["gain"] > 1
    assert cell["evidence"]["elasticity_size"] == pytest.approx(1, abs=0.3)


def test_classify_for_people_names_limit_and_next_step(run_cli, sweep):
    done = run_cli("bench", "classify", str(sweep))
    assert done.code == 0
    assert "pack into files of" in done.out
    assert max(map(len, done.out.splitlines())) <= 160


def test_classify_in_a_narrow_terminal_breaks_no_line(sweep):
    """In a terminal of 80 columns, the advice is on a separate line below its point."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    program = str(Path(sys.executable).with_name("penstock"))
    clean = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen([program, "bench", "classify", str(sweep)], stdout=child, env=clean) as ran:
        os.close(child)
        result = b""
        with suppress(OSError):  # how Linux reports a closed terminal
            while more := os.read(parent, 65_536):
                result += more
    os.close(parent)
    lines = result.decode().splitlines()
    assert ran.returncode == 0
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("    ") for line in lines) >= 3


def test_classify_folder_of_rows_is_judged_again(run_cli, tmp_path):
    write_results(tmp_path / "run", ROWS, spec={"threads": [1, 8, 64]})
    theirs = json.loads(run_cli("bench", "classify", str(tmp_path / "run"), "--json").out)
    assert len(theirs["cells"]) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "content", "code", "output"),
    [
        ("missing.csv", None, 3, "missing.csv does not exist"),
        ("notes.txt", "hello", 1, "has an unknown format"),
        ("empty.csv", render([]), 3, "no point that can be classified"),
    ],
)
def test_classify_without_rows_is_reported(run_cli, tmp_path, name, content, code, output):
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    done = run_cli("bench", "classify", str(file))
    assert (done.code, done.out) == (code, "")
    assert output in done.err
