# SPDX-License-Identifier: Apache-2.0
"""Tests `bench app` over several hosts with a real Slurm: srun, mpirun, and mpirun inside a container. Issue 16."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.bench.app_program import build
from tests.launchers.image_kit import PROGRAMS, make_image
from tests.stage.cluster_kit import running_cluster

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_pool, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def hosts():
    with running_cluster() as running:
        running.start_sshds()
        yield running


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("app"))


def _app(hosts, *args, before=()):
    penstock = Path(sys.executable).with_name("penstock")
    at = args.index("--") if "--" in args else len(args)
    done = hosts.run(1, *before, penstock, "bench", "app", *args[:at], "--json", *args[at:], timeout_s=200)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


_JOB = ("salloc", "-Q", "-N2")


def test_srun_spreads_ranks_over_nodes_and_binds_them(hosts):
    code, found = _app(
        hosts, "--launcher", "slurm", "--ranks", "2,4", "--node-counts", "1,2", "--repeats", "1", "--warm-up", "0",
        "--bind", "cpus:0/1", "--figure", "x=ranks ([0-9]+)", "--pick", "last", "--", "echo", "ranks {ranks}{nodes}", before=_JOB,
    )  # fmt: skip
    assert code == 0, found
    cells = {(c["ranks"], c["nodes"]): c["runs"][0] for c in found["cells"]}
    assert {size: run["value"] for size, run in cells.items()} == {(2, 1): 21, (2, 2): 22, (4, 1): 41, (4, 2): 42}
    assert cells[4, 2]["cpus"] == ["0", "1", "0", "1"]
    assert cells[2, 2]["cpus"] == ["0", "0"]


def test_open_mpi_without_pmi_under_srun_is_named(hosts, program):
    code, found = _app(
        hosts,
        "--launcher",
        "slurm",
        "--ranks",
        "2",
        "--repeats",
        "1",
        "--warm-up",
        "0",
        "--",
        program,
        "1000",
        before=_JOB,
    )
    assert code == 1
    text = found["cells"][0]["error"]
    assert "the command's MPI (Open MPI v4" in text
    assert "and the launcher (srun, slurm" in text
    assert "MPI_Init ended with exit code 1" in text
    assert "PMI" in text


def test_program_over_two_hosts_runs_natively_and_by_both_ways(hosts, program, tmp_path):
    image = make_image(tmp_path / "image")
    shutil.copy(program, hosts.folder / "app_kit")
    lines = []
    for name, folder, way in (
        ("native", hosts.folder, ""),
        ("around", hosts.folder, "host-mpirun"),
        ("inside", "/mnt/0", "inside"),
    ):
        # ssh in the container reads its key below the bound folder.
        ssh = f"ssh -i {folder}/home/.ssh/id_ed25519 -o UserKnownHostsFile={folder}/home/.ssh/known_hosts"
        args = f"--mca btl tcp,self --mca btl_tcp_if_include e0 --mca oob_tcp_if_include e0 --mca plm_rsh_agent '{ssh}'"
        command = hosts.folder / "app_kit" if name == "native" else "/mnt/0/app_kit"
        lines += [
            "[[variant]]",
            f'name = "{name}"',
            f'command = ["{command}", "100000"]',
            f'set = {{ args = "{args}" }}',
        ]
        if way:
            binds = f'["{PROGRAMS}", "{hosts.folder}:/mnt/0"]'
            lines += [f'container = "charliecloud:{image}"', f'way = "{way}"', f"container-bind = {binds}"]
    sweep = hosts.folder / "sweep.toml"
    head = [
        'command = ["false"]',
        'launcher = "mpi"',
        'nodes = "h1,h2"',
        "ranks = [4]",
        "node-counts = [2]",
        "repeats = 2",
    ]
    head += ["warm-up = 0", r"world = 'on (\d+) ranks'", 'set = { program = "mpirun.openmpi" }']
    sweep.write_text("\n".join([*head, *lines]))
    code, found = _app(hosts, "--sweep", sweep)
    assert code == 0, [cell["error"] for cell in found["cells"]]
    assert [(c["variant"], c["nodes"], len(c["runs"])) for c in found["cells"]] == [
        ("native", 2, 2),
        ("around", 2, 2),
        ("inside", 2, 2),
    ]
    assert all("Open MPI" in cell["mpi"] for cell in found["cells"])
    assert [each["variant"] for each in found["summary"]["overheads"]] == ["around", "inside"]
