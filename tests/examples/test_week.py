# SPDX-License-Identifier: Apache-2.0
"""Tests the programs of an ML engineer's week under torchrun: killed in mid-epoch on 2 ranks, resumed on 1 and 3.

Each sample of every step must be that of the uninterrupted epoch, in the same global order. Issue 18, proof.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from penstock.feed.checkpoint.folder import latest_checkpoint

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no folder of its own

import week_data

pytestmark = [pytest.mark.needs_torch, pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
KILL_AT = 6  # after the checkpoint of step 4
IN_A_BUCKET = {"image_classification", "detection", "captions", "pretraining", "recommender", "driving", "video"}
PROGRAMS = [
    "image_classification", "segmentation", "detection", "captions", "fine_tuning", "recommender", "driving",
    "video", "speech", "pretraining",
]  # fmt: skip


class Week:
    """A program's dataset and checkpoints, in a folder or in an emulated bucket, and its runs."""

    def __init__(self, server, program, folder, url, env):
        self.server, self.program, self.folder, self.url, self.env = server, program, folder, url, env
        self.more = []
        getattr(week_data, program)(folder / "data")

    def run(self, *jobs):
        """Run jobs of (ranks, checkpoints, batch at which a rank is killed) at the same time. Returns the exit code, the
        output and the record (samples by rank and step) of each.
        """
        asked = []
        for world, checkpoints, kill_at in jobs:
            record = self.folder.parent / f"record-{checkpoints}"
            record.mkdir()
            asked.append({
                "program": self.program, "world": world, "env": self.env, "record": str(record), "kill_at": kill_at,
                "log": f"{record}.log", "arguments": [f"{self.url}data/", f"{self.url}{checkpoints}", *self.more],
            })  # fmt: skip
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        codes = json.loads(self.server.stdout.readline())
        return [
            (code, Path(job["log"]).read_text(), read(Path(job["record"])))
            for code, job in zip(codes, asked, strict=True)
        ]

    def checkpoint(self):
        """Step of the latest checkpoint. Copies of it are for the resumed jobs."""
        kept = latest_checkpoint(f"{self.url}checkpoints")
        for world in (1, 3):
            shutil.copytree(self.folder / "checkpoints", self.folder / f"checkpoints-{world}")
        return kept.step

    def resume(self, *worlds):
        """Resume copies of the checkpoint on these numbers of ranks."""
        return self.run(*((world, f"checkpoints-{world}", -1) for world in worlds))


def read(record):
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(record.iterdir())]


@pytest.fixture(scope="module")
def server():
    """The process that runs the programs."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("recorded.py"))],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        yield running
        os.killpg(running.pid, signal.SIGKILL)


@pytest.fixture
def week(server, tmp_path, emulator, monkeypatch):
    """`week("detection")` writes its data."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "week"))  # for driving_pb2

    def make(program):
        folder = tmp_path / "files"
        folder.mkdir()
        if program not in IN_A_BUCKET:
            return Week(server, program, folder, f"{folder}/", {})
        store = emulator(folder)
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        return Week(server, program, folder, store.url, store.env)

    return make


def in_global_order(by_rank):
    """The samples of each step over all ranks. A killed run may have begun a step on some ranks only."""
    return [list(chain.from_iterable(ranks)) for ranks in zip(*by_rank, strict=False)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_killed_in_mid_epoch_resumes_on_1_and_3_ranks(week, program, tmp_path):
    running = week(program)
    if program == "pretraining":
        week_data.tokenizer(tmp_path / "tokenizer.json")
        running.more = [str(tmp_path / "tokenizer.json")]
    (done, log, whole), (code, _, by_rank) = running.run((1, "whole", -1), (2, "checkpoints", KILL_AT))
    assert done == 0, log[-3000:]
    (epoch,) = whole
    assert len(epoch) >= 9
    assert len(set(chain.from_iterable(epoch))) == sum(map(len, epoch))
    assert (code, len(by_rank[1])) == (1, KILL_AT + 1)
    killed = in_global_order(by_rank)
    assert killed == epoch[: KILL_AT + 1]
    saved = running.checkpoint()
    assert saved == 4

    for code, log, by_rank in running.resume(1, 3):
        assert code == 0, log[-3000:]
        assert killed[:saved] + in_global_order(by_rank) == epoch
