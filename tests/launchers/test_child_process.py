# SPDX-License-Identifier: Apache-2.0
"""Tests that a child process ends with the `with` block that started it, even after an exception or a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from penstock.child_process import child_process
from penstock.ownership import start_time

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
# Starts a child process, prints its pid, and ignores SIGTERM.
STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(['sleep', '60']).pid, flush=True)
time.sleep(60)
"""


def _ends(pid):
    until = time.monotonic() + 10
    while start_time(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not start_time(pid)


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"process_group": 0}])
def test_child_ends_with_its_block(options):
    with pytest.raises(RuntimeError, match="the caller's"), child_process(SLEEP, grace_s=5, **options) as child:
        raise RuntimeError("the caller's")
    assert child.returncode == -signal.SIGTERM


def test_child_that_ended_keeps_its_code():
    with child_process([sys.executable, "-c", "raise SystemExit(3)"], grace_s=5) as child:
        child.wait()
    assert child.returncode == 3


def test_child_that_ignores_terminate_is_killed_with_its_group():
    with child_process(
        [sys.executable, "-c", STUBBORN], grace_s=0.2, start_new_session=True, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        with child.stdout:
            grandchild = int(child.stdout.readline())
        assert start_time(grandchild)
    assert child.returncode == -signal.SIGKILL
    assert _ends(grandchild)


def test_child_without_a_group_of_its_own_ends_alone():
    # If its group were signalled, this process would get the signal too.
    with child_process(SLEEP, grace_s=5) as child:
        assert os.getpgid(child.pid) == os.getpgrp()
    assert child.returncode == -signal.SIGTERM


def test_command_that_does_not_exist_raises():
    with pytest.raises(FileNotFoundError), child_process(["/no/such/program"], grace_s=5):
        pytest.fail("the block ran")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_a_child_starts_leaves_no_child(number, monkeypatch):
    started = []
    real = subprocess.Popen

    def popen(*arguments, **options):
        started.append(real(*arguments, **options))
        signal.raise_signal(number)  # after the start, but before the child is recorded
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), child_process(SLEEP, grace_s=5):
            pytest.fail("the block ran")
        assert started[0].returncode == -signal.SIGTERM
    finally:
        signal.signal(number, before)
        with suppress(OSError):
            started[0].kill()
