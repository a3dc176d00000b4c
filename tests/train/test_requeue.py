# SPDX-License-Identifier: Apache-2.0
"""Tests `sbatch --requeue`: a training that Slurm ends on four hosts resumes on three. Issue 3, point 3."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from penstock.datasets import cosmoflow
from penstock.train import TrainSpec, run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/stage"))  # the hosts and the Slurm on them

from cluster_kit import await_, running_cluster  # noqa: E402

FLAGS = {"voxels": 32, "filters": 2, "threads": 1, "device": "cpu", "epochs": 15}


@pytest.fixture
def cluster():
    with running_cluster() as running:
        yield running


def submit(cluster, data: Path) -> str:
    flags = " ".join(f"--{name} {value}" for name, value in FLAGS.items())
    report = f"ALL,DATA={data},CHECKPOINT={cluster.folder}/kept,STEPS=1,FLAGS={flags} --runs {cluster.folder}/runs --allow-debug"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    ran = cluster.run(
        1, "sbatch", "--parsable", f"--output={cluster.folder}/log", f"--export={report}", ROOT / "examples/requeue.sbatch",
        PATH=path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def state(cluster, job: str) -> str:
    found = re.search(r"JobState=(\w+)", cluster.run(1, "scontrol", "show", "job", job).stdout)
    return found.group(1) if found else "gone"


@pytest.mark.needs_root
@pytest.mark.needs_torch
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_requeued_job_goes_on_with_fewer_ranks_from_the_checkpoint_alone(cluster, tmp_path):
    data = tmp_path / "data"
    cosmoflow.generate(data, samples=36, voxels=32, seed=3)
    data.chmod(0o755)
    job = submit(cluster, data)
    log = cluster.folder / "log"

    def report() -> str:
        return f"job {job}: {state(cluster, job)}; {log.read_text(errors='replace')[-1500:] if log.exists() else ''}"

    await_(
        lambda: (cluster.folder / "kept").exists() and any((cluster.folder / "kept").iterdir()),
        report(),
        cluster.folder,
        150,
    )
    assert cluster.run(1, "scontrol", "update", "NodeName=h4", "State=drain", "Reason=test").returncode == 0
    assert cluster.run(1, "scontrol", "requeue", job).returncode == 0
    until = time.monotonic() + 200
    while state(cluster, job) in {"COMPLETING", "PENDING", "RUNNING"} and time.monotonic() < until:
        cluster.run(1, "scontrol", "update", f"JobId={job}", "StartTime=now")
        time.sleep(1)
    assert state(cluster, job) == "COMPLETED", report()
    (result,) = [json.loads(path.read_text()) for path in (cluster.folder / "runs").glob("*/result.json")]
    settings = {"voxels": FLAGS["voxels"], "filters": FLAGS["filters"]}
    straight = run(
        TrainSpec(
            workload="cosmoflow", data=str(data), global_batch=12, epochs=FLAGS["epochs"], settings=settings, threads=1,
            device="cpu",
        )
    )  # fmt: skip
    assert (result["world"], result["steps"]) == (3, straight["steps"])
    assert 0 < result["workload"]["resumed_at_step"] < result["steps"]
    # One, three and four ranks sum in different orders, so losses differ slightly; the samples of each step are the
    # same.
    assert result["losses"] == pytest.approx(straight["losses"], rel=1e-3)
