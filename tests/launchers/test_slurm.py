# SPDX-License-Identifier: Apache-2.0
"""Tests the `slurm` and `mpi` launchers inside a real Slurm of four hosts, and mpirun on one machine.

Issue 5, point 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, NotFound
from penstock.launchers import mpi, slurm
from penstock.protocols import RunRequest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stage"))
from cluster_kit import HOSTS, running_cluster

# Runs the suite inside the allocation: in a batch script on the first host.
_SUITE = """
import os, pathlib, sys
from penstock.cluster import Cluster
from penstock.testing import LauncherSuite
launcher, private, here = sys.argv[1:]
with Cluster.open(launcher, {}) as cluster:
    print([node.name for node in cluster.nodes])
    print(LauncherSuite(cluster.launcher, private, pathlib.Path(here), is_shared=False).run())
"""


@pytest.fixture(scope="module")
def slurm_hosts():
    with running_cluster() as running:
        yield running


@pytest.mark.needs_root
@pytest.mark.parametrize("name", ["slurm", pytest.param("mpi", marks=pytest.mark.needs_pool)])
@pytest.mark.timeout(240)
def test_launcher_inside_an_allocation_passes_the_suite(name, slurm_hosts, tmp_path):
    ran = slurm_hosts.run(
        1, "salloc", "-Q", f"-N{HOSTS}", sys.executable, "-c", _SUITE, name, slurm_hosts.private, tmp_path, timeout_s=220
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    nodes, checks = ran.stdout.strip().splitlines()
    assert nodes == str([f"h{at}" for at in range(1, HOSTS + 1)])
    assert "check_deadline_ends_the_command_on_its_node" in checks


@pytest.mark.needs_root
def test_cluster_run_inside_an_allocation_keeps_slurms_numbers(slurm_hosts):
    program = Path(sys.executable).with_name("penstock")
    code = "import os, penstock.ranks as r; p = r.detect(os.environ); print(p.launcher, p.node, p.rank, p.world)"
    ran = slurm_hosts.run(
        1, "salloc", "-Q", f"-N{HOSTS}", program, "cluster", "run", "--launcher", "slurm", "--ranks-per-node", "2", "--json",
        "--", sys.executable, "-c", code,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    output = [row["stdout"].split() for row in json.loads(ran.stdout)["exits"]]
    assert output == [["slurm", str(rank // 2), str(rank), "8"] for rank in range(8)]


@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
def test_mpirun_on_this_machine_runs_ranks_and_tells_each_ones_exit(program, tmp_path):
    made = mpi.launcher({"nodes": "localhost", "program": program}, {**os.environ, "HOME": str(tmp_path)})
    exits = made.run(
        RunRequest(
            ["sh", "-c", "echo r{rank} of {world}; exit {rank}"],
            made.nodes(),
            3,
            timeout_s=60,
            expand_placeholders=True,
        )
    )
    assert [(e.rank, e.code, e.out) for e in exits] == [(r, r, f"r{r} of 3\n".encode()) for r in range(3)], exits
    # Hydra can put its label in the middle of a long line, where it cannot be recognised, so only short lines are
    # tested with it.
    width = 200_000 if program == "mpirun.openmpi" else 1
    text = f'printf "%{width}s\\n" ""; printf "\\036{{}}\\036\\n"'
    output = [e.out for e in made.run(RunRequest(["sh", "-c", text], made.nodes(), 3, timeout_s=60))]
    assert output == [b" " * width + b"\n\x1e{}\x1e\n"] * 3
    [ended] = made.run(RunRequest(["cat"], made.nodes(), timeout_s=60, stdin=b"in"))
    assert ended.out == b"in"
    made.close()


@pytest.mark.parametrize(
    ("output", "line", "rest"),
    [
        ("mpirun.openmpi (OpenRTE) 4.1.4\n", b"[1,3]<stdout>: x", b" x"),
        ("mpirun (Open MPI) 5.0.3\n", b"[1,3]<stderr>: x", b"x"),
        ("HYDRA build details:\n    Version: 4.0.2\n", b"[3] x", b"x"),
    ],
)
def test_mpiruns_label_is_that_of_its_version(output, line, rest, tmp_path):
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\nprintf %s '{output}'\n")
    program.chmod(0o755)
    found = mpi.launcher({"nodes": "h1", "program": str(program)}, {}).label.match(line)
    assert found is not None
    assert (found["rank"], line[found.end() :]) == (b"3", rest)


def test_slurm_with_named_nodes_prints_lines_and_starts_nothing_outside_a_job():
    made = slurm.launcher({"nodes": "a,b"}, {"PATH": os.environ["PATH"]})
    request = RunRequest(["true"], made.nodes(), 2)
    [line] = made.line(request)
    assert {"srun", "--nodes=2", "--ntasks=4", "--nodelist=a,b"} <= set(line)
    with pytest.raises(ConfigError, match="not in a Slurm allocation") as caught:
        made.run(request)
    assert caught.value.hint.startswith("run salloc -N 4 COMMAND;")
    with pytest.raises(ConfigError, match="not in a Slurm allocation"):
        made.fetch("/etc/hostname", Path("/dev/null"), made.nodes()[0], timeout_s=5)
    with pytest.raises(ConfigError, match="`a,a` contains a host twice"):
        slurm.launcher({"nodes": "a,a"}, {})


@pytest.mark.parametrize(
    ("script", "reason"),
    [("echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1", "scontrol: error: Unable to contact slurm"),
     ("exit 3", "exit code 3"), (None, "No such file or directory")],
)  # fmt: skip
def test_list_that_scontrol_cannot_expand_has_its_message(tmp_path, monkeypatch, script, reason):
    if script is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"^launcher slurm: scontrol could not expand n\[1-8\]: {reason}"):
        slurm.launcher({}, {"SLURM_JOB_NODELIST": "n[1-8]", "PATH": str(tmp_path)})
    assert [node.name for node in slurm.launcher({}, {"SLURM_JOB_NODELIST": "n1,n2"}).nodes()] == ["n1", "n2"]


def test_launchers_outside_a_job_say_what_they_want():
    with pytest.raises(ConfigError, match="not in a Slurm allocation"):
        slurm.launcher({}, {"PATH": os.environ["PATH"]})
    with pytest.raises(NotFound, match="mpirun-of-nobody is not installed"):
        mpi.launcher({"program": "mpirun-of-nobody"}, {})
    for nodes in ("a b", "-x", "h1,h1", "h1;id"):
        with pytest.raises(ConfigError):
            mpi.launcher({"nodes": nodes, "program": "mpirun.openmpi"}, {})


def test_dry_run_shows_one_line_for_all_ranks():
    made = mpi.launcher({"nodes": "h1,h2", "program": "mpirun.openmpi"}, os.environ)
    [line] = made.line(RunRequest(["hostname"], made.nodes(), 4))
    assert line[line.index("--host") + 1] == "h1:4,h2:4"
    assert line[-1] == "hostname"
    assert subprocess.list2cmdline(line)
