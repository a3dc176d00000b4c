# SPDX-License-Identifier: Apache-2.0
"""Tests that ranks agree before the first step and on checkpoint errors: all continue, or all end with one error."""

from __future__ import annotations

import re
import subprocess

import pytest
from rank_kit import FLAGS, START_S

from penstock.train import TrainSpec, run

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]


RESUME = ("--checkpoint", "kept", "--resume", "--epochs", "3")


def train(folder) -> None:
    """Trains one epoch in this process, with its checkpoint in `folder`."""
    settings = {"voxels": 32, "filters": 2, "base_batch": 8}
    run(
        TrainSpec(
            workload="cosmoflow",
            data="dummy://24",
            global_batch=4,
            settings=settings,
            threads=1,
            checkpoint=str(folder),
        )
    )


# Issue 19, P5.
def test_resume_from_a_checkpoint_that_one_rank_has_is_refused_by_all(ranks, tmp_path):
    train(tmp_path / "node0/kept")
    both = ranks(2, "cosmoflow", *FLAGS, *RESUME)
    assert [one.wait(START_S) for one in both] == [2, 2], [one.text for one in both]
    for one in both:
        (line,) = one.errors()
        assert line.startswith("error[config]: the ranks differ in the checkpoint found in kept: latest: step 6 ")
        assert line.endswith(" on rank 0, none on rank 1")


def test_resume_from_checkpoints_of_two_trainings_is_refused_by_all(ranks, tmp_path):
    for rank in range(2):
        train(tmp_path / f"node{rank}/kept")
    both = ranks(2, "cosmoflow", *FLAGS, *RESUME)
    assert [one.wait(START_S) for one in both] == [2, 2], [one.text for one in both]
    (line,) = both[0].errors()
    assert line.count("step 6 of epoch 2 (written as ") == 2


def test_ranks_with_other_data_are_refused(ranks, tmp_path):
    from penstock.datasets import cosmoflow

    for rank, samples in enumerate((13, 9)):
        cosmoflow.generate(tmp_path / f"node{rank}/data", samples=samples, voxels=32, seed=3)
    flags = ["data" if flag == "dummy://24" else flag for flag in FLAGS]
    both = ranks(2, "cosmoflow", *flags)
    assert [one.wait(START_S) for one in both] == [2, 2], [one.text for one in both]
    for one in both:
        (line,) = one.errors()
        assert line.startswith(
            "error[config]: the ranks differ in the training data: number of steps: 3 on rank 0, 2 on rank 1"
        )
        assert "{" not in line
        assert "cursor" not in line
        assert "Each node of a `local` pool stores other objects" in one.text


# Before, the ranks built their models first, and DDP's own error asked to report a bug.
def test_ranks_with_other_settings_are_refused_before_the_model_is_built(ranks, tmp_path):
    both = ranks(2, "cosmoflow", *FLAGS, of_rank={1: ("--filters", "8", "--seed", "3")})
    assert [one.wait(START_S) for one in both] == [2, 2], [one.text for one in both]
    for one in both:
        (line,) = one.errors()
        assert line == (
            "error[config]: the ranks differ in their settings: seed: 0 on rank 0, 3 on rank 1; "
            "setting filters: 2 on rank 0, 8 on rank 1"
        )
        assert "pool" not in one.text


@pytest.fixture
def full_disk(tmp_path):
    """A disk of 600 kB, which is too small for a checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


# Issue 19, P12.
@pytest.mark.needs_root
def test_full_disk_under_a_checkpoint_ends_all_ranks_with_one_error(ranks, job, full_disk):
    flags = ["16" if flag == "2" else flag for flag in FLAGS]
    both = ranks(2, "cosmoflow", *flags, "--checkpoint", full_disk)
    assert [one.wait(START_S) for one in both] == [3, 3], [one.text for one in both]
    one = job("cosmoflow", *flags, "--checkpoint", full_disk, "--ranks", "2")
    assert one.wait(START_S) == 3, one.text
    assert list(full_disk.iterdir()) == []
    for text in (*both, one):
        (line,) = text.errors()
        assert re.match(rf"error\[no-space\]: rank [01]: {full_disk}/.*: no space left on the disk \(wrote ", line)
