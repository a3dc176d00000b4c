# SPDX-License-Identifier: Apache-2.0
"""Tests submission to a slow batch system, with signals and deadlines: uses stand-ins for sbatch and scancel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import Deadline
from penstock.job import submit
from penstock.job.export.request import ExportRequest
from penstock.job.spec import load

_PROGRAM = Path(sys.executable).with_name("penstock")
_JOB = """
name = "slow"
[cluster]
launcher = "slurm"
[run]
argv = ["true"]
[submit]
nodes = 1
"""
# An sbatch that runs until its job is cancelled.
_HANGS = "for _ in $(seq 300); do [ -e ended ] && exit 0; sleep 0.1; done"
_SCANCEL = '#!/bin/sh\necho "$@" >> cancelled\ntouch ended\n'


@pytest.fixture
def system(tmp_path, monkeypatch):
    """`system(text)` installs an sbatch with that shell text; the working folder has a job file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(_JOB)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")

    def write(text: str) -> Path:
        for name, script in (("sbatch", f"#!/bin/sh\n{text}\n"), ("scancel", _SCANCEL)):
            (bin_ / name).write_text(script)
            (bin_ / name).chmod(0o755)
        return tmp_path

    return write


def _handed_over(folder: Path, result: list[str], *, waits: bool) -> int:
    asked = ExportRequest(load(folder / "job.toml"), folder / "job.toml", folder / "runs", resume=False)
    return submit.submit(asked, dict(os.environ), waits=waits, on_submitted=result.append)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("flags", [(), ("--wait",)])
def test_signal_before_the_number_is_told_ends_the_job_all_the_same(flags, sent, code, system):
    folder = system(f"touch asked; sleep 1; echo 7; {_HANGS}")
    running = subprocess.Popen([_PROGRAM, "run", "job.toml", "--submit", *flags], stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 30
        while not (folder / "asked").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        running.send_signal(sent)
        _, err = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == code, err
    assert all(line.split()[-1] == "7" for line in (folder / "cancelled").read_text().splitlines())


def test_job_whose_number_is_told_stays_where_the_system_then_hangs(system, monkeypatch):
    monkeypatch.setattr(submit, "_COMMAND_TIMEOUT_S", 1)
    folder, result = system(f"echo 7; {_HANGS}"), []
    with pytest.raises(Deadline, match="sbatch did not respond within 1 s"):
        _handed_over(folder, result, waits=False)
    assert result == ["7"]
    assert not (folder / "cancelled").exists()


def test_number_is_waited_for_without_limit_where_the_job_is(system, monkeypatch):
    monkeypatch.setattr(submit, "_COMMAND_TIMEOUT_S", 0.2)
    folder, result = system("sleep 1; echo 7; exit 5"), []
    assert _handed_over(folder, result, waits=True) == 5
    assert result == ["7"]
