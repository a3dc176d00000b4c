# SPDX-License-Identifier: Apache-2.0
"""Tests that the Lightning and Accelerate examples run unchanged. (DDP is in test_train_data, Slurm in test_requeue.)"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.datasets import cosmoflow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def example(tmp_path):
    """`example("lightning_cosmoflow.py")` runs it over 9 volumes, with a checkpoint inside the test's folder."""
    cosmoflow.generate(tmp_path / "data", samples=9, voxels=32, seed=3)

    def run(name):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name), str(tmp_path / "data"), "32", str(tmp_path / "checkpoint")],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / '.tools/adapters'}",
                "PYTHONWARNINGS": "ignore",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.needs_adapters
def test_lightning_example_trains_and_keeps_its_place(example, tmp_path):
    import torch

    output = example("lightning_cosmoflow.py")
    assert "after 4 steps" in output  # 9 samples are two batches of 4, twice
    assert "epoch 1: 8 samples" in output
    kept = torch.load(tmp_path / "checkpoint", weights_only=False)["Volumes"]
    assert (kept["samples"], kept["seed"]) == (9, 17)


@pytest.mark.needs_adapters
def test_accelerate_example_trains_and_goes_on_from_its_checkpoint(example):
    first = example("accelerate_cosmoflow.py")
    assert "epoch 1: last loss" in first
    again = example("accelerate_cosmoflow.py")
    assert "goes on in epoch 2" in again
    assert "last loss" not in again
