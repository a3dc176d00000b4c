# SPDX-License-Identifier: Apache-2.0
"""Tests that a signal ends a command whose main thread waits in native code, and no other process. Issue 19, P10."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# Locks a mutex twice: a wait that no signal interrupts, like those of torch and MPI.
HANG = """
import ctypes, os, sys, threading, time
from penstock.cli import signals
def hang():
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    threading.Timer(0.5, lambda: print("ready", flush=True)).start()
    libc.pthread_mutex_lock(mutex)
"""
LIMIT_S = 10


@pytest.fixture
def script():
    """`script(code)` runs `code` after the definitions in HANG, and returns once it has printed `ready`."""
    started = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HANG + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_signal_ends_a_command_that_hangs_in_native_code(script, number, code, word):
    hung = script("""
with signals.listening():
    signals.before_end(lambda name: print(name, flush=True))
    signals.before_end(lambda name: time.sleep(60))
    hang()
""")
    hung.send_signal(number)
    assert hung.wait(LIMIT_S) == code
    assert hung.stdout.read() == f"{number.name}\n"
    assert hung.stderr.read() == f"{word}: the command was waiting in native code: no answer within 4 s\n"


def test_second_signal_ends_a_command_that_hangs_at_once(script):
    hung = script("with signals.listening():\n    hang()\n")
    hung.terminate()
    time.sleep(2)
    hung.terminate()
    assert hung.wait(LIMIT_S) == 143
    assert hung.stderr.read() == "terminated: the command was waiting in native code: no answer to the first signal\n"


def test_signal_that_the_main_thread_handles_ends_nothing_by_force(script):
    """The handler has run, so clean-up may take its time. A second signal of the same kind has its default effect."""
    slow = script("""
with signals.listening():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(6)
        print("cleaned up", flush=True)
""")
    slow.terminate()
    assert slow.wait(30) == 0
    assert slow.stdout.read() == "cleaned up\n"


def test_signals_of_others_end_nothing(script):
    """Covers signals to a forked child, and signals that another handler takes over for a while."""
    busy = script("""
import signal
with signals.listening():
    child = os.fork()
    if child == 0:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            os._exit(7)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    came = []
    ours = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    print("ready", flush=True)
    time.sleep(6)
    signal.signal(signal.SIGINT, ours)
    print(came, flush=True)
""")
    busy.send_signal(signal.SIGINT)
    assert busy.wait(30) == 0, busy.stderr.read()
    assert busy.stdout.read() == "[2]\n"


def test_listening_restores_what_it_found(script):
    done = script("""
import signal
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
for _ in range(3):
    with signals.listening():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
assert signal.set_wakeup_fd(-1) == -1
mine, _ = os.pipe()[::-1]
os.set_blocking(mine, False)
signal.set_wakeup_fd(mine)
with signals.listening():
    pass
assert signal.set_wakeup_fd(-1) == mine
print("ready", flush=True)
""")
    assert done.wait(30) == 0, done.stderr.read()
