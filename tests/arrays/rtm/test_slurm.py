# SPDX-License-Identifier: Apache-2.0
"""Tests that a real Slurm on four hosts runs the batch script of a migration, and that the stacked image is correct."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import penstock.arrays
from penstock.arrays.rtm.prepare import prepare
from penstock.arrays.rtm.stack import stack_images
from penstock.arrays.rtm.worker import run_shots
from penstock.rtm.velocity_model import layered
from tests.stage.cluster_kit import Cluster, running_cluster

MODEL = layered((61, 61), 0.01, (0.5,))
_PROGRAM = Path(sys.executable).with_name("penstock")
# States of an array task that has not ended.
_OPEN = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED"}


@pytest.fixture
def cluster():
    with running_cluster() as running:
        yield running


def states(cluster: Cluster, job: str) -> dict[str, str]:
    """Returns the state of each array task."""
    tasks = [
        dict(word.split("=", 1) for word in line.split() if "=" in word)
        for line in cluster.run(1, "scontrol", "--oneliner", "show", "job", job).stdout.splitlines()
    ]
    return {task["ArrayTaskId"]: task["JobState"] for task in tasks if task.get("ArrayJobId") == job}


def ended(cluster: Cluster, job: str, limit_s: float) -> dict[str, str]:
    until, found = time.monotonic() + limit_s, states(cluster, job)
    while (not found or _OPEN & set(found.values())) and time.monotonic() < until:
        time.sleep(0.5)
        found = states(cluster, job)
    return found


# Issue 15, point 4.
@pytest.mark.system
@pytest.mark.needs_root
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_slurm_array_script_computes_all_shots_into_one_image(cluster, tmp_path):
    job_url, alone = cluster.folder / "job", tmp_path / "alone"
    for url in (job_url, alone):
        prepare(url, MODEL, spacing_km=0.01, shots=2, frequency_hz=20)
    run_shots(alone)
    want = penstock.arrays.open(stack_images(alone).image_url)[...]
    local = cluster.folder / "local"
    local.mkdir()
    printed = subprocess.run(
        [_PROGRAM, "array", "rtm", "script", job_url, "--scheduler", "slurm", "--tasks", "2", "--cores", "1", "--time",
         "240s", "--local-dir", local],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    script = cluster.folder / "rtm.sbatch"
    script.write_text(printed.stdout)
    path = f"{_PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    sent = cluster.run(1, "sbatch", "--parsable", f"--chdir={cluster.folder}", script, PATH=path)
    assert sent.returncode == 0, sent.stderr
    found = ended(cluster, sent.stdout.strip(), 200)
    logs = "\n".join(log.read_text(errors="replace") for log in sorted(cluster.folder.glob("penstock-rtm-*.log")))
    # A task succeeds even if the other task computes the last shot.
    assert found == {"0": "COMPLETED", "1": "COMPLETED"}, logs
    marks = [json.loads(mark.read_text()) for mark in sorted((job_url / "done/migrate").iterdir())]
    assert [mark["shot"] for mark in marks] == [0, 1], logs
    # The shots were computed on hosts of the Slurm cluster, and not on this machine.
    assert {mark["host"] for mark in marks} <= {"h1", "h2", "h3", "h4"}
    image = penstock.arrays.open(stack_images(job_url).image_url)[...]
    assert image.tobytes() == want.tobytes()
    assert np.abs(image).max() > 0
