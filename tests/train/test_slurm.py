# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock train` and `bench net` as ranks of a real srun, on hosts with addresses of their own. Issue 16."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stage"))
from cluster_kit import Cluster, remove, short_folder

pytestmark = [pytest.mark.system, pytest.mark.needs_root, pytest.mark.needs_torch]

_PENSTOCK = Path(sys.executable).with_name("penstock")
_TRAIN = ("train", "trivial", "--synthetic", "--steps", "6", "--set", "classes=4", "--threads", "1", "--no-save")


@pytest.fixture(scope="module")
def hosts():
    folder = short_folder()
    try:
        with Cluster(folder) as running:
            yield running
    finally:
        remove(folder)


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


@pytest.mark.parametrize(("options", "backend"), [((), "gloo"), (("--mpi=pmi2",), "mpi")])
def test_bench_net_measures_between_the_hosts_of_srun(hosts, options, backend):
    quick = ("latency", "--max-size", "64", "--iterations", "5", "--warm-up", "1", "--json")
    ran = _run(
        hosts, "srun", "-N2", *options, _PENSTOCK, "bench", "net", "--backend", backend, *quick, MASTER_ADDR="h1",
        MASTER_PORT="29501",
    )  # fmt: skip
    result = json.loads(ran.stdout)
    assert [place["node"] for place in result["places"]] == ["h1", "h2"]


def test_bench_net_over_mpi_names_srun_without_a_plug_in(hosts):
    ran = hosts.run(1, "srun", "-N2", _PENSTOCK, "bench", "net", "--backend", "mpi", "latency")
    assert ran.returncode == 2
    assert "error[config]: srun has started the ranks without an MPI plug-in" in ran.stderr
