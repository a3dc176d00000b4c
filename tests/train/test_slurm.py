# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock train` as ranks of a real srun, on hosts with addresses of their own. Issue 16, point 1."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.stage.cluster_kit import running_cluster

pytestmark = [pytest.mark.system, pytest.mark.needs_root, pytest.mark.needs_torch]

_PENSTOCK = Path(sys.executable).with_name("penstock")
_TRAIN = ("train", "trivial", "--synthetic", "--steps", "6", "--set", "classes=4", "--threads", "1", "--no-save")


@pytest.fixture(scope="module")
def hosts():
    with running_cluster() as running:
        yield running


def _run(hosts, *command, **variables):
    ran = hosts.run(1, *command, timeout_s=100, **variables)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran


def test_ranks_of_srun_train_as_one_job(hosts, run_cli):
    srun = ("srun", "-N2", "--ntasks-per-node=2", _PENSTOCK)
    ran = _run(hosts, *srun, *_TRAIN, "--batch-size", "4", "--json", MASTER_ADDR="h1", MASTER_PORT="29500")
    result = json.loads(ran.stdout)
    assert (result["world"], result["samples"]) == (4, 6 * 16)
    alone = run_cli(*_TRAIN, "--batch-size", "4", "--ranks", "4", "--json")
    assert result["losses"] == json.loads(alone.out)["losses"]


def test_slurm_launcher_starts_the_ranks_of_each_size(hosts):
    ran = _run(
        hosts, "salloc", "-Q", "-N2", _PENSTOCK, *_TRAIN, "--batch-size", "4", "--scale", "ranks=1,2", "--launcher", "slurm",
        "--ranks-per-node", "1", "--repeats", "1", "--json",
    )  # fmt: skip
    cells = json.loads(ran.stdout)["cells"]
    assert [(cell["ranks"], cell["nodes"], len(cell["runs"])) for cell in cells] == [(1, 1, 1), (2, 2, 1)]
