# SPDX-License-Identifier: Apache-2.0
"""Tests `bench net` in an allocation of a real Slurm on emulated hosts: srun with PMI-2, srun with Gloo, mpirun.

Issue 16, point 4.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.stage.cluster_kit import Cluster, remove, short_folder

pytestmark = [pytest.mark.system, pytest.mark.needs_root, pytest.mark.needs_torch]

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


@pytest.fixture(scope="module")
def slurm_hosts():
    folder = short_folder()
    try:
        with Cluster(folder) as running:
            yield running
    finally:
        remove(folder)


@pytest.mark.parametrize(
    ("flags", "library"),
    [
        (["--launcher", "slurm", "--set", "srun=--mpi=pmi2"], "MPICH"),
        (["--launcher", "slurm", "--backend", "gloo"], "gloo"),
        (["--launcher", "mpi"], "Open MPI"),
    ],
)
def test_ranks_of_an_allocation_are_one_on_each_node(flags, library, slurm_hosts):
    ran = slurm_hosts.run(
        1, "salloc", "-Q", "-N3", PENSTOCK, "bench", "net", *flags, "--timeout", "60s", "barrier", "allreduce",
        "--max-size", "16", "--iterations", "3", "--json", timeout_s=110,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert [place["host"] for place in found["places"]] == ["h1", "h2", "h3"]
    assert library in found["library"]
    assert [len(table["rows"]) for table in found["tables"]] == [1, 3]
