# SPDX-License-Identifier: Apache-2.0
"""Tests of `penstock explain` with programs that end at once, fork, become a daemon, change their user, or run in a
container. Issue 17. Each of them decompresses gzip in its only thread, unless it ends at once.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from penstock.explain.result import decode
from tests.launchers.image_kit import PROGRAMS, make_image

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
SYSTEM_PYTHON = "/usr/bin/python3"  # other users and containers cannot read an interpreter in root's home

# Only the standard library, because the system's interpreter has no other packages.
LOOP = """
import gzip, os, random, sys, time
packed = gzip.compress(bytes(random.Random(0).choices(range(8), k=1_000_000)))
def train(seconds):
    until, total = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        total += sum(gzip.decompress(packed)[:1000])
"""


@pytest.fixture
def explain(tmp_path):
    """`explain(argv, seconds=6)` gives the result, the exit code and what was printed."""

    def run(argv, *, seconds=6, stop=True, timeout_s=60):
        file = tmp_path / "explanation.json"
        command = [PENSTOCK, "explain", "--seconds", str(seconds), *(["--stop"] if stop else []), "--output", str(file)]
        done = subprocess.run([*command, "--", *argv], capture_output=True, text=True, timeout=timeout_s, check=False)
        return (decode(file.read_bytes()) if file.exists() else None), done

    return run


@pytest.fixture
def script():
    """`script(text)` is a file with the loop and `text`, which every user can read, unlike those in pytest's folder."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
        Path(folder).chmod(0o755)

        def write(text):
            file = Path(folder) / "program.py"
            file.write_text(LOOP + text)
            return str(file)

        yield write


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("argv", "code"), [(["true"], 0), (["sh", "-c", "exit 3"], 3), ([sys.executable, "-c", ""], 0)]
)
def test_explain_program_that_ends_at_once_is_unknown_and_keeps_its_code(explain, argv, code):
    result, done = explain(argv)
    assert result is not None, done.stderr
    assert result.verdict.kind == "unknown"
    assert result.program.ended
    assert result.program.exit_code == code
    assert "ended" in result.verdict.sentence + result.verdict.reason


def test_explain_program_that_does_not_exist_is_an_error_with_its_name(explain):
    result, done = explain(["no-such-program-here"])
    assert result is None
    assert done.returncode != 0
    assert "no-such-program-here" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_program_killed_by_a_signal_reports_the_signal(explain, script):
    result, done = explain([sys.executable, script("os.kill(os.getpid(), 9)")])
    assert result is not None, done.stderr
    assert result.program.exit_code == -signal.SIGKILL


def test_explain_program_that_forks_is_followed(explain, script):
    text = "if os.fork() == 0:\n    train(60)\n    os._exit(0)\nos.wait()\n"
    result, done = explain([sys.executable, script(text)])
    assert result is not None, done.stderr
    assert len(result.processes) == 2
    assert result.verdict.kind == "decompression", (result.verdict, done.stderr)


def test_explain_program_that_becomes_a_daemon_is_followed(explain, script, tmp_path):
    mark = tmp_path / "daemon.pid"
    text = f"""
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open({str(mark)!r}, "w").write(str(os.getpid()))
train(60)
"""
    result, done = explain([sys.executable, script(text)])
    assert result is not None, done.stderr
    assert result.verdict.kind == "decompression", (result.verdict, done.stderr)
    assert not is_alive(int(mark.read_text()))  # --stop ends what it observed, the daemon included


@pytest.mark.needs_root
@pytest.mark.parametrize("how", ["setpriv", "setuid"])
def test_explain_program_of_another_user_is_observed(explain, script, how):
    if how == "setpriv":
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", SYSTEM_PYTHON, script("train(60)")]
    else:
        argv = [SYSTEM_PYTHON, script("os.setgroups([]); os.setgid(65534); os.setuid(65534); train(60)")]
    result, done = explain(argv)
    assert result is not None, done.stderr
    assert result.verdict.kind == "decompression", (result.verdict, done.stderr)


@pytest.mark.needs_root
@pytest.mark.parametrize("how", ["namespaces", "charliecloud"])
def test_explain_program_in_a_container_is_observed(explain, script, tmp_path, monkeypatch, how):
    file = script("train(60)")
    if how == "namespaces":
        argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", SYSTEM_PYTHON, file]
    else:
        monkeypatch.setenv("USER", "root")  # ch-run requires it
        image = make_image(tmp_path / "image")
        argv = [
            "ch-run",
            "-b",
            PROGRAMS,
            "-b",
            f"{Path(file).parent}:/data",
            str(image),
            "--",
            SYSTEM_PYTHON,
            "/data/program.py",
        ]
    result, done = explain(argv)
    assert result is not None, done.stderr
    assert result.verdict.kind == "decompression", (result.verdict, done.stderr)


def test_explain_program_that_ignores_sigterm_is_ended_and_nothing_is_left(explain, script):
    text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntrain(60)"
    result, done = explain([sys.executable, script(text)], seconds=4)
    assert result is not None, done.stderr
    assert not is_alive(result.program.pid)


def test_explain_interrupted_leaves_no_process_and_no_stopped_one(script, tmp_path):
    command = [
        PENSTOCK,
        "explain",
        "--seconds",
        "60",
        "--",
        sys.executable,
        script("print(os.getpid(), flush=True)\ntrain(60)"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as running:
        pid = int(running.stdout.readline())
        time.sleep(1)
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=30)
    assert "/penstock/" not in messages  # the program's own KeyboardInterrupt may be printed
    assert running.returncode != 0
    assert not is_alive(pid)


def test_explain_attached_program_goes_on(script, tmp_path):
    file = tmp_path / "attached.json"
    with subprocess.Popen([sys.executable, script("train(60)")]) as running:
        try:
            time.sleep(1)
            argv = [PENSTOCK, "explain", "--seconds", "5", "--pid", str(running.pid), "--output", str(file)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
            assert file.exists(), done.stderr
            result = decode(file.read_bytes())
            assert running.poll() is None
            assert Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "Tt"
        finally:
            running.kill()
    assert result.program.attached
    assert result.verdict.kind == "decompression", (result.verdict, done.stderr)


def test_explain_pid_that_does_not_exist_is_refused(run_cli):
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = run_cli("explain", "--pid", ended.pid)
    assert done.code != 0
    assert str(ended.pid) in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("option", ["-o", "--output", "--html"])
def test_explain_into_a_folder_that_does_not_exist_starts_nothing(run_cli, tmp_path, option):
    mark = tmp_path / "started"
    done = run_cli("explain", "--seconds", "1", option, tmp_path / "none" / "file", "--", "touch", mark)
    assert done.code == 2
    assert "does not exist" in done.err
    assert not mark.exists()


def test_explain_instance_that_is_not_priced_per_hour_is_refused(run_cli):
    done = run_cli("explain", "--instance", "azure-hot-storage", "--", "true")
    assert done.code == 2
    assert "per GiB-month, not per hour" in done.err
