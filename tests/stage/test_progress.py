# SPDX-License-Identifier: Apache-2.0
"""Tests a running stage's output: one display for all nodes, events, a log without secrets. Issue 4, point 8."""

from __future__ import annotations

import json
import os
import time

import pytest
from stage_kit import facts, launch, program

from penstock.cli.progress import bar, line
from penstock.ranks import Rank
from penstock.stage.node_progress import COUNTERS, SharedProgress, folder_for, summed


def _now(**more):
    return (
        dict.fromkeys(COUNTERS, 0)
        | {
            "objects": 40,
            "bytes": 4_000_000,
            "done": 10,
            "done_bytes": 1_000_000,
            "bytes_in": 1_200_000,
            "bytes_out": 3_000_000,
        }
        | more
    )


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_bar_fits_its_terminal(width):
    many = summed({0: _now(throttles=12_345, failed=3), 1: _now(done_bytes=0, bytes_in=0)}, 32)
    for now in (summed({0: _now()}, 1), many):
        result = bar(now, 3.0, width)
        assert len(result) <= width
        assert "\n" not in result
        assert " %" in result
    if width >= 80:
        assert "throttled" in result
        assert "s left" in result
    if width >= 120:
        assert "slowest node 1 at 0 %" in result
    if width >= 200:
        assert "[" in result
        assert "32 nodes (30 not reporting)" in result


def test_line_says_all_of_it():
    result = line(summed({0: _now(), 3: _now(done_bytes=400_000, throttles=7)}, 4), 2.0)
    for part in (
        "20 of 80 objects",
        "in",
        "out",
        "left",
        "7 throttled",
        "4 nodes (2 not reporting)",
        "slowest node 3 at 10 %",
    ):
        assert part in result, result


def _wait(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_board_first_node_hears_the_others(tmp_path):
    folder = tmp_path / "launch"
    first, second = (SharedProgress(folder, node, 3, period_s=0.05) for node in (0, 1))
    first.post(_now())
    second.post(_now(done=40, throttles=5))
    (folder / "2.json").write_text("{}") if folder.exists() else None
    _wait(lambda: 1 in first.seen())
    assert summed(first.seen(), 3)["throttles"] == 5
    assert first.running(30) == 1
    second.close()
    _wait(lambda: first.running(30) == 0)
    first.close()
    _wait(lambda: not folder.exists())


def test_board_folder_that_cannot_be_is_nobodys_trouble(tmp_path):
    (tmp_path / "file").write_text("")
    board = SharedProgress(tmp_path / "file/launch", 0, 2, period_s=0.05)
    board.post(_now())
    time.sleep(0.2)
    assert board.seen() == {0: _now()}
    board.close()


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"objects": "many"}', "{" * 5000, json.dumps(_now(beat=None) | {"bytes": None})]
)
def test_board_odd_files_are_ignored(text, tmp_path):
    board = SharedProgress(tmp_path / "launch", 0, 2, period_s=0.02)
    _wait((tmp_path / "launch").exists)
    (tmp_path / "launch/1.json").write_text(text)
    (tmp_path / "launch/7.json").write_text(json.dumps(_now()))
    time.sleep(0.2)
    board.post(_now())
    assert set(board.seen()) == {0}
    board.close()


def test_board_has_a_place_only_where_nodes_can_find_each_other(tmp_path):
    env = {"HOME": "/anyone"}
    many = Rank(1, 4, launch_id="slurm-7")
    here = folder_for(env, many, None, "a")
    assert here is not None
    assert str(here).startswith("/anyone/.cache/penstock/launches/")
    assert folder_for(env, Rank(0, 4, launch_id="slurm-7"), None, "a") == here
    assert folder_for(env, many, str(tmp_path), "a").parent == tmp_path
    assert folder_for(env, many, None, "b") != here
    assert folder_for(env, Rank(0, 4), None, "a") is None
    assert folder_for(env, Rank(0, 1, launch_id="x"), None, "a") is None


def test_two_nodes_of_a_launch_have_one_display(slow_bucket, tmp_path):
    jobs = []
    for node in (1, 0):
        env = slow_bucket.env | {
            "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": "", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2",
            "SLURM_NNODES": "2", "SLURM_PROCID": str(node), "SLURM_NODEID": str(node), "SLURM_LOCALID": "0",
        }  # fmt: skip
        line = (
            "stage",
            slow_bucket.url,
            tmp_path / f"dst{node}",
            "--progress",
            "json",
            "--json",
            "--log",
            tmp_path / "log",
        )
        jobs.append(launch(*line, env=env, log=tmp_path / f"out{node}"))
    assert [job.wait(100) for job in jobs] == [0, 0]
    result = [[json.loads(text) for text in (tmp_path / f"out{node}").read_text().splitlines()] for node in (0, 1)]
    events = [one for one in result[0] if one.get("event") == "progress"]
    assert not [one for one in result[1] if "event" in one]
    assert max(one["nodes_seen"] for one in events) == 2
    whole = next(one for one in events if one["nodes_seen"] == 2)
    assert whole["objects"] == 96
    assert whole["slowest_node"] in (0, 1)
    assert {"rate_bytes_per_s", "eta_s", "throttles", "bytes_in", "bytes_out"} <= whole.keys()
    assert result[0][-1]["nodes"] == 2
    log = (tmp_path / "log").read_text()
    assert all(f"node {node}/2 end:" in log for node in (0, 1))
    assert not list((tmp_path / "home/.cache/penstock/launches").iterdir())


def test_log_and_messages_hold_no_secret(slow_bucket, run_cli, tmp_path):
    secret = slow_bucket.env["AWS_SECRET_ACCESS_KEY"]
    env = slow_bucket.env | {"AWS_SESSION_TOKEN": "token-secret-1"}
    log = tmp_path / "log"
    wrong = run_cli(
        "stage", slow_bucket.url, tmp_path / "a", "--log", log, env=env | {"AWS_SECRET_ACCESS_KEY": "wrong-secret-2"}
    )
    missing = run_cli("stage", slow_bucket.url + "none/", tmp_path / "b", "--log", log, env=slow_bucket.env)
    signed = "https://u:pass-secret-3@127.0.0.1:1/x?X-Amz-Signature=sig-secret-4"
    odd = run_cli("stage", signed, tmp_path / "c", "--log", log, "--retry-timeout", "1s", env=slow_bucket.env)
    assert 0 not in (wrong.code, missing.code, odd.code)
    output = log.read_text() + "".join(one.out + one.err for one in (wrong, missing, odd))
    for text in (secret, "token-secret-1", "wrong-secret-2", "pass-secret-3", "sig-secret-4"):
        assert text not in output, text
    assert "error: [" in log.read_text()


def test_log_that_cannot_be_written_is_said_at_the_start(bucket, run_cli, tmp_path):
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--log", tmp_path / "no/such/log", env=bucket.env)
    assert (ran.code, (tmp_path / "dst").exists()) == (3, False), ran.err


def test_verify_tells_events_and_keeps_its_last_line(bucket, run_cli, tmp_path):
    assert run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", env=bucket.env).code == 0
    ran = run_cli("verify", tmp_path / "dst", "--progress", "json", "--json", "--log", tmp_path / "log")
    assert (ran.code, facts(ran)["ok"]) == (0, 48)
    assert " end: " in (tmp_path / "log").read_text()


def test_bar_is_drawn_on_a_terminal_of_80_columns(slow_bucket, tmp_path):
    import pty
    import subprocess

    parent, child = pty.openpty()
    job = subprocess.Popen(
        [program(), "stage", slow_bucket.url, str(tmp_path / "dst")],
        env={**os.environ, **slow_bucket.env, "COLUMNS": "80", "TERM": "xterm"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=child,
    )  # fmt: skip
    os.close(child)
    output = b""
    try:
        while more := os.read(parent, 65536):
            output += more
    except OSError:  # the terminal closes with the process
        pass
    os.close(parent)
    assert job.wait(100) == 0
    assert b"/96" in output
    assert b"left" in output
