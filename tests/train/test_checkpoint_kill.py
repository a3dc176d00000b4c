# SPDX-License-Identifier: Apache-2.0
"""Tests that a training killed at any moment of a checkpoint leaves the latest complete checkpoint. Issue 16, point 3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]

ROUNDS = 8

# torch is loaded once, and each round forks: so a round takes less than a second. The child starts no thread before.
SCRIPT = """
    import json, os, random, signal, sys, time, warnings
    import torch
    import torch.distributed.checkpoint  # here, and not again in each child
    from penstock.feed.checkpoint import reader, writer
    from penstock.feed.checkpoint.folder import CheckpointFolder
    from penstock.train import checkpoint
    from penstock.train.checkpoint_saver import CheckpointSaver

    url, rounds, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(11)

    def save_for_ever(pipe):
        folder = CheckpointFolder(url)
        latest = folder.latest()
        step = 0 if latest is None else latest.step
        saver = CheckpointSaver(folder, keep=2, rank=0)
        while True:
            step += 1
            values = {f"w{i}": torch.full((size,), float(step * 10 + i)) for i in range(8)}
            saver.save(step, {"learnt": {}, "epoch": 0, "steps": step, **values})
            os.write(pipe, b".")

    def in_child(work, *given):
        pid = os.fork()
        if pid == 0:
            try:
                work(*given)
            finally:
                os._exit(9)
        return pid

    def check(pipe):
        folder = CheckpointFolder(url)
        latest = folder.latest()
        whole = folder.whole()
        found = checkpoint.read(folder, {})
        assert not folder.damaged, folder.damaged
        assert found["steps"] == latest.step
        for i in range(8):
            assert found[f"w{i}"].unique().tolist() == [float(latest.step * 10 + i)], i
        left = sum(1 for _ in folder._listed())
        os.write(pipe, json.dumps([latest.step, len(whole), left]).encode() + b"\\n")

    seen, halves = [], 0
    for round in range(rounds):
        read, write = os.pipe()
        pid = in_child(save_for_ever, write)
        # The n-th byte comes when n - 1 checkpoints of this round are whole, however slow the machine is.
        for _ in range(2 + round % 2 if round < 2 else 1 + round % 2):
            os.read(read, 1)
        time.sleep(rng.uniform(0, 0.25))
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        checked, into = os.pipe()
        pid = in_child(check, into)
        os.close(into)
        answer = os.read(checked, 1000)
        os.waitpid(pid, 0)
        for fd in (read, write, checked):
            os.close(fd)
        step, whole, folders = json.loads(answer)
        assert not seen or step >= seen[-1], (step, seen)
        assert whole >= 1
        halves += folders > whole
        seen.append(step)
    print(json.dumps({"steps": seen, "with_leftovers": halves}))
"""


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_training_killed_while_it_checkpoints_leaves_the_latest_whole(tmp_path, emulator, where):
    if where == "folder":
        url, env = str(tmp_path / "run"), {}
    else:
        server = emulator()
        url, env = f"{server.url}run", server.env
    argv = [sys.executable, "-c", textwrap.dedent(SCRIPT), url, str(ROUNDS), "200000"]
    done = subprocess.run(
        argv,
        env={**os.environ, **env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)  # pytest -s
    assert len(found["steps"]) == ROUNDS
    assert found["steps"][-1] > found["steps"][0]  # the killed ones were followed by new ones
    assert found["with_leftovers"] > 0  # else no kill came in the middle of a checkpoint
