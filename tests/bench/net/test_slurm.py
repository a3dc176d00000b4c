# SPDX-License-Identifier: Apache-2.0
"""Tests `bench net` in an allocation of a real Slurm on emulated hosts: srun with PMI-2, srun with Gloo, mpirun, and as
ranks that srun starts.

Issue 16, point 4.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.stage.cluster_kit import running_cluster

pytestmark = [pytest.mark.system, pytest.mark.needs_root, pytest.mark.needs_torch]

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


@pytest.fixture(scope="module")
def slurm_hosts():
    with running_cluster() as running:
        yield running


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


@pytest.mark.parametrize(("options", "backend"), [((), "gloo"), (("--mpi=pmi2",), "mpi")])
def test_ranks_of_srun_measure_between_their_hosts(slurm_hosts, options, backend):
    ran = slurm_hosts.run(
        1, "srun", "-N2", *options, PENSTOCK, "bench", "net", "--backend", backend, "latency", "--max-size", "64",
        "--iterations", "5", "--warm-up", "1", "--json", MASTER_ADDR="h1", MASTER_PORT="29501",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [place["node"] for place in json.loads(ran.stdout)["places"]] == ["h1", "h2"]


def test_srun_without_an_mpi_plug_in_is_named(slurm_hosts):
    ran = slurm_hosts.run(1, "srun", "-N2", PENSTOCK, "bench", "net", "--backend", "mpi", "latency")
    assert ran.returncode == 2
    assert "error[config]: srun has started the ranks without an MPI plug-in" in ran.stderr
