# SPDX-License-Identifier: Apache-2.0
"""Tests that SIGTERM and Ctrl-C end a command in order: one line, a distinct exit code, a journal for resume. Issue 4."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from stage_kit import await_true, facts, launch, tree


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_stage_that_is_stopped_says_so_in_one_line_and_goes_on_later(
    number, code, word, slow_bucket, run_cli, tmp_path
):
    dst, log = tmp_path / "dst", tmp_path / "log"
    job = launch("stage", slow_bucket.url, dst, "--decompress", env=slow_bucket.env, log=log)
    await_true(lambda: job.poll() is not None or len(tree(dst)) > 4)
    assert job.poll() is None
    job.send_signal(number)
    assert job.wait(20) == code
    assert log.read_text().splitlines() == [f"{word}; finished files are kept, and the same command resumes from there"]
    before = set(tree(dst))
    again = run_cli("stage", slow_bucket.url, dst, "--decompress", "--json", env=slow_bucket.env, timeout_s=100)
    assert again.code == 0, again.err
    assert facts(again)["skipped"] >= len(before)
    assert tree(dst) == slow_bucket.want


def test_waiting_rank_that_is_terminated_ends(slow_bucket, tmp_path):
    env = slow_bucket.env | {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_PROCID": "1",
        "SLURM_NODEID": "0", "SLURM_LOCALID": "1",
    }  # fmt: skip
    waiter = launch("stage", slow_bucket.url, tmp_path / "dst", env=env, log=tmp_path / "log")
    await_true(lambda: "waits for rank 0" in (tmp_path / "log").read_text())
    waiter.terminate()
    assert waiter.wait(20) == 143


def test_repair_that_is_terminated_ends_with_143_and_goes_on_later(slow_bucket, run_cli, tmp_path):
    dst, log, env = tmp_path / "dst", tmp_path / "log", slow_bucket.env
    assert run_cli("stage", slow_bucket.url, dst, "--decompress", env=env, timeout_s=100).code == 0
    for name in slow_bucket.want:
        (dst / name).write_bytes(b"rot")
    job = launch("verify", dst, "--repair", "--progress", "none", env=env, log=log)
    await_true(lambda: job.poll() is not None or any(body != b"rot" for body in tree(dst).values()))
    assert job.poll() is None
    job.terminate()
    assert job.wait(20) == 143
    assert log.read_text().splitlines() == ["terminated; repairs are recorded, and all other files are unchanged"]
    again = run_cli("verify", dst, "--repair", env=env, timeout_s=100)
    assert (again.code, tree(dst) == slow_bucket.want) == (0, True), again.err


@pytest.mark.needs_torch
def test_train_that_is_terminated_leaves_no_rank_behind(tmp_path, run_cli):
    made = run_cli("dataset", "cosmoflow", tmp_path / "data", "--samples", "16", "--voxels", "16", timeout_s=100)
    assert made.code == 0, made.err
    job = launch(
        "train", "cosmoflow", "--data", tmp_path / "data", "--ranks", "2", "--epochs", "1000", "--batch-size", "4", "--voxels", "16",
        "--recipe", "demo", "--allow-debug", "--output", tmp_path / "runs", env={}, log=tmp_path / "log",
    )  # fmt: skip
    await_true(lambda: job.poll() is not None or len(_children(job.pid)) >= 3, 90)
    assert job.poll() is None, (tmp_path / "log").read_text()
    below = _children(job.pid)
    job.terminate()
    assert job.wait(40) == 143
    assert (tmp_path / "log").read_text().splitlines()[-1] == "terminated"
    await_true(lambda: not any(_lives(pid) for pid in below))


def _children(pid: int) -> list[int]:
    found = []
    for task in Path("/proc").iterdir():
        if task.name.isdecimal():
            try:
                parent = int((task / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found += [int(task.name), *_children(int(task.name))]
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
