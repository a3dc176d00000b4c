# SPDX-License-Identifier: Apache-2.0
"""Tests real launchers: Slurm on four hosts, mpirun inside it, Open MPI, MPICH and torchrun locally. Issue 4, point 5."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_kit import HOSTS, running_cluster
from stage_kit import fill, program, tree

from tests.ports import free_port


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """160 objects: enough for four equal shares."""
    folder = tmp_path_factory.mktemp("source")
    return folder / "set", fill(folder, 160, 30_000)


def _summaries(text: str) -> list[dict]:
    # srun and mpirun mix the ranks' output line by line; a line may also follow another without a line break.
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"schema_version"')]


def _judge(cluster, dst: str, want: dict[str, bytes], summaries: list[dict]) -> None:
    """Asserts that the shares are disjoint, complete and balanced, and that all ranks of a node report the same."""
    trees = [tree(cluster.held(host) / dst) for host in range(1, HOSTS + 1)]
    assert sum(map(len, trees)) == len(want), [len(one) for one in trees]
    whole: dict[str, bytes] = {}
    for one in trees:
        whole |= one
    assert whole == want
    assert {one["node"] for one in summaries} == set(range(HOSTS))
    assert {one["nodes"] for one in summaries} == {HOSTS}
    shares = summaries[0]["shares"]
    assert all(one["shares"] == shares for one in summaries)
    assert max(shares) / (sum(shares) / len(shares)) <= 1.02
    for node in range(HOSTS):
        assert len({json.dumps(one) for one in summaries if one["node"] == node}) == 1


@pytest.mark.needs_root
@pytest.mark.parametrize("a_node", [1, 2])
def test_slurm_of_four_hosts_shares_the_dataset(a_node, cluster, source):
    folder, want = source
    dst = f"slurm{a_node}"
    ran = cluster.run(
        1, "srun", f"-N{HOSTS}", f"--ntasks-per-node={a_node}", program(), "stage", folder, cluster.private / dst,
        "--decompress", "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    summaries = _summaries(ran.stdout)
    assert len(summaries) == HOSTS * a_node
    _judge(cluster, dst, want, summaries)


@pytest.mark.needs_root
def test_mpirun_inside_slurm_shares_by_its_own_ranks(cluster, source):
    folder, want = source
    ran = cluster.run(
        1, "salloc", "-Q", f"-N{HOSTS}", "mpirun.openmpi", "--allow-run-as-root", "-np", "8", "--map-by", "ppr:2:node",
        program(), "stage", folder, cluster.private / "mpi", "--decompress", "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Slurm gave" not in ran.stderr
    _judge(cluster, "mpi", want, _summaries(ran.stdout))


@pytest.mark.needs_root
def test_mpirun_on_fewer_hosts_than_slurm_raises(cluster, source):
    folder, want = source
    ran = cluster.run(
        1, "salloc", "-Q", f"-N{HOSTS}", "mpirun.openmpi", "--allow-run-as-root", "-np", "2", "--host", "h1:2",
        program(), "stage", folder, cluster.private / "few", "--decompress", "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("Slurm gave this job 4 nodes, but openmpi started its ranks on 1") == 1
    assert tree(cluster.held(1) / "few") == want


@pytest.mark.needs_root
def test_uneven_ranks_of_mpirun_are_refused_and_nothing_is_left_out_in_silence(cluster, source):
    folder, _ = source
    ran = cluster.run(
        1, "salloc", "-Q", f"-N{HOSTS}", "mpirun.openmpi", "--allow-run-as-root", "-np", "4", "--host", "h1:3,h2:1",
        program(), "stage", folder, cluster.private / "uneven", "--json",
    )  # fmt: skip
    assert ran.returncode != 0
    assert "the nodes do not have equal blocks of consecutive ranks" in ran.stderr


@pytest.mark.needs_root
def test_progress_of_four_hosts_is_shown_once_on_the_first(cluster, source):
    folder, _ = source
    # Progress in between depends on timing, so the test checks only the final events.
    ran = cluster.run(
        1, "srun", f"-N{HOSTS}", "--label", program(), "stage", folder, cluster.private / "shown", "--decompress",
        "--progress", "json", "--log", cluster.folder / "log", "--json", "--concurrency", "1",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    events = [line for line in ran.stdout.splitlines() if '"event"' in line]
    assert all(line.startswith("0: ") for line in events)
    log = (cluster.folder / "log").read_text().splitlines()
    assert {line.split()[2] for line in log} == {f"{node}/{HOSTS}" for node in range(HOSTS)}
    assert sum(" end: " in line for line in log) == HOSTS


def _one_machine(source, tmp_path, *launcher: str, ranks: int, env: dict[str, str] | None = None) -> list[dict]:
    folder, want = source
    dst = tmp_path / "dst"
    ran = subprocess.run(
        [*launcher, program(), "stage", str(folder), str(dst), "--decompress", "--json"],
        env={**os.environ, "HOME": str(tmp_path), **(env or {})},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert tree(dst) == want
    summaries = _summaries(ran.stdout)
    assert len(summaries) == ranks
    assert len({json.dumps(one) for one in summaries}) == 1
    return summaries


def test_mpirun_on_one_machine_stages_once_and_all_ranks_end_alike(source, tmp_path):
    line = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "4"]
    summary = _one_machine(source, tmp_path, *line, ranks=4)[0]
    assert (summary["moved"], summary["nodes"]) == (160, 1)


def test_mpich_on_one_machine_stages_once_and_all_ranks_end_alike(source, tmp_path):
    summary = _one_machine(source, tmp_path, "mpiexec.hydra", "-n", "3", ranks=3)[0]
    assert (summary["moved"], summary["nodes"]) == (160, 1)


@pytest.mark.needs_torch
def test_two_agents_of_torchrun_share_the_dataset(source, tmp_path):
    folder, want = source
    port = free_port()
    agents = []
    for node in range(2):
        line = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2",
            "--master-addr", "127.0.0.1", "--master-port", str(port), "--no-python",
            program(), "stage", str(folder), str(tmp_path / f"node{node}"), "--decompress", "--json",
        ]  # fmt: skip
        out = (tmp_path / f"out{node}").open("wb")
        agents.append(
            (
                subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "HOME": str(tmp_path)}
                ),
                out,
            )
        )
    for agent, out in agents:
        agent.wait(110)
        out.close()
    output = [(tmp_path / f"out{node}").read_text() for node in range(2)]
    assert [agent.returncode for agent, _ in agents] == [0, 0], output
    trees = [tree(tmp_path / f"node{node}") for node in range(2)]
    assert trees[0] | trees[1] == want
    assert not trees[0].keys() & trees[1].keys()
    assert [{one["node"] for one in _summaries(text)} for text in output] == [{0}, {1}]


def test_tools_of_this_file_are_installed_by_make():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for package in ("openmpi-bin", "mpich", "slurmctld", "slurmd", "slurm-client", "munge"):
        assert package in makefile
