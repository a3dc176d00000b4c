# SPDX-License-Identifier: Apache-2.0
"""Tests that the Ray Train and Spark examples run unchanged, and that a killed Ray run goes on at its position."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from penstock.datasets import cosmoflow

pytestmark = pytest.mark.needs_ray_spark

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".tools/ray-spark/bin/python"
REPORT = re.compile(r"metrics=\{'loss': ([\d.]+), 'epoch': (\d+), 'samples': (\d+)\}.* from rank 0")


@contextlib.contextmanager
def example(name, *arguments, folder):
    """Starts an example in a separate session, whose processes all end with the block."""
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [PYTHON, ROOT / "examples" / name, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONWARNINGS": "ignore", "RAY_COLOR_PREFIX": "0"},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def steps(folder):
    """Epoch, samples and loss of each step that the first rank reported."""
    found = REPORT.findall((folder / "log").read_text())
    return [(int(epoch), int(samples), float(loss)) for loss, epoch, samples in found]


@pytest.mark.timeout(400)
def test_ray_train_example_killed_goes_on_with_another_number_of_workers(tmp_path):
    cosmoflow.generate(tmp_path / "data", samples=12, voxels=32, seed=3)
    arguments = ("ray_train.py", tmp_path / "data", 32, tmp_path / "runs")
    with example(*arguments, 2, folder=tmp_path) as process:
        until = time.monotonic() + 180
        while len(list((tmp_path / "runs").glob("*/checkpoint_*/state.pt"))) < 2:
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < until
            time.sleep(0.05)
    killed = steps(tmp_path)
    with example(*arguments, 1, folder=tmp_path) as process:
        assert process.wait(timeout=180) == 0, (tmp_path / "log").read_text()[-3000:]
    rest = steps(tmp_path)[len(killed) :]
    whole = [(epoch, samples) for epoch in (0, 1) for samples in (4, 8, 12)]
    assert 0 < len(rest) < 6
    assert [step[:2] for step in rest] == whole[6 - len(rest) :]
    assert "epoch 1, 12 samples: loss" in (tmp_path / "log").read_text()


@pytest.mark.timeout(400)
def test_spark_example_writes_parquet_that_trains(tmp_path):
    with example("spark_write.py", tmp_path / "table", folder=tmp_path) as process:
        assert process.wait(timeout=300) == 0, (tmp_path / "log").read_text()[-3000:]
    losses = re.findall(r"epoch (\d): 1000 samples, loss ([\d.]+)", (tmp_path / "log").read_text())
    assert [epoch for epoch, _ in losses] == ["0", "1", "2"]
    assert float(losses[2][1]) < 0.001 < 0.05
