# SPDX-License-Identifier: Apache-2.0
"""Tests containers around ranks: runs Charliecloud, checks the other runtimes' command lines. Issue 5, point 1."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import plugins
from penstock.errors import ConfigError, Deadline, Unsupported
from penstock.job.spec import ContainerSection, Job, RunSection
from penstock.job.step_commands import StepCommands
from penstock.launchers import mpi
from penstock.launchers.local import launcher
from penstock.protocols import Container, ContainerSpec, RankPrefix, RunRequest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from image_kit import PROGRAMS, make_image

_SPEC = ContainerSpec(
    "train.sif",
    ("/scratch/d:/data:ro", "/out:/out"),
    ("AWS_PROFILE",),
    has_gpus=True,
    cwd="/w",
    args=("--x",),
    label="job",
)


def _rank_prefix(runtime: str, spec: ContainerSpec = _SPEC) -> RankPrefix:
    return plugins.load("penstock.containers", runtime, Container, lambda factory: factory()).rank_prefix(spec)


# Checked against `apptainer help exec`, docs.docker.com/reference/cli/docker/container/run, podman-run(1) and Pyxis'
# README, since none of the four runtimes can run here.
@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_apptainer_line_is_the_documented_one(program):
    line = f"{program} exec --bind=/scratch/d:/data:ro --bind=/out:/out --nv --pwd=/w --x train.sif"
    assert _rank_prefix(program) == RankPrefix(tuple(line.split()))


@pytest.mark.parametrize(
    ("program", "gpus", "some"),
    [
        (
            "docker",
            "--gpus=all",
            {"--env=RANK", "--env=OMPI_COMM_WORLD_RANK", "--env=SLURM_PROCID", "--env=AWS_PROFILE"},
        ),
        ("podman", "--device=nvidia.com/gpu=all", {"--env=RANK", "--env=OMPI_*", "--env=SLURM_*", "--env=AWS_PROFILE"}),
    ],
)
def test_daemons_line_is_the_documented_one_and_names_each_rank(program, gpus, some, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/job7")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    rank_prefix = _rank_prefix(program)
    words = [word for word in rank_prefix.argv if not word.startswith("--env=")]
    line = f"{program} run --rm --init --name=job-{{rank}} --network=host --ipc=host --pid=host"
    assert words == [
        *line.split(),
        *(["--userns=keep-id", "--volume=/scratch/job7:/scratch/job7"] if program == "podman" else []),
        "--volume=/scratch/d:/data:ro",
        "--volume=/out:/out",
        gpus,
        "--workdir=/w",
        "--x",
        "train.sif",
    ]
    passed = [word for word in rank_prefix.argv if word.startswith("--env=")]
    assert some <= set(passed)
    assert len(passed) == len(set(passed))
    assert all("=" not in word.removeprefix("--env=") for word in passed), "a value stands on a command line"
    assert rank_prefix.cleanup_argv == (program, "rm", "--force", "job-{rank}")


def test_podman_binds_the_session_folder_once_and_keeps_roots_ids(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    own = [word for word in _rank_prefix("podman").argv if word.startswith(("--volume=/tmp", "--userns"))]
    assert own == ["--volume=/tmp:/tmp"]
    again = _rank_prefix("podman", replace(_SPEC, binds=("/scratch:/tmp",)))
    assert [word for word in again.argv if word.startswith("--volume")] == ["--volume=/scratch:/tmp"]


def test_pyxis_words_are_sruns_own():
    rank_prefix = _rank_prefix("pyxis")
    assert rank_prefix.argv == ()
    image, env, mounts, cwd, export, more = rank_prefix.launcher_args
    assert (image, mounts) == ("--container-image=train.sif", "--container-mounts=/scratch/d:/data:ro,/out:/out")
    assert env.startswith("--container-env=RANK,WORLD_SIZE,")
    assert env.endswith(",AWS_PROFILE")
    assert (cwd, export, more) == ("--container-workdir=/w", "--export=ALL,NVIDIA_VISIBLE_DEVICES=all", "--x")
    made = launcher({"nodes": 1}, os.environ)
    with pytest.raises(Unsupported, match="supported only by srun"):
        made.run(RunRequest(["true"], made.nodes(), rank_prefix=rank_prefix))
    with pytest.raises(Unsupported, match="one command line for all nodes"):
        _rank_prefix("pyxis", ContainerSpec("x", ("/d/{node}:/data",)))


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman", "charliecloud", "pyxis"])
@pytest.mark.parametrize("bind", ["data:/data", "/data", "/a,b:/c", "/a:/b:rx", "/a:b", ""])
def test_bind_that_is_none_is_refused(runtime, bind):
    with pytest.raises(ConfigError, match="is not a valid bind"):
        _rank_prefix(runtime, ContainerSpec("image", (bind,)))
    with pytest.raises(ConfigError, match="is not a valid image"):
        _rank_prefix(runtime, ContainerSpec("--privileged"))


def test_mpirun_inside_a_container_starts_the_others_daemons_inside_too():
    made = mpi.launcher({"nodes": "h1,h2", "program": "mpirun.openmpi"}, os.environ)
    inside = RankPrefix(("apptainer", "exec", "train.sif"), is_outermost=True)
    [line] = made.line(RunRequest(["hostname"], made.nodes(), 2, rank_prefix=inside))
    assert line[:4] == ["apptainer", "exec", "train.sif", "mpirun.openmpi"]
    assert line[line.index("orte_launch_agent") + 1] == "apptainer exec train.sif orted"
    hydra = mpi.launcher({"nodes": "h1", "program": "mpiexec.hydra"}, os.environ)
    with pytest.raises(Unsupported, match="Open MPI"):
        hydra.line(RunRequest(["hostname"], hydra.nodes(), rank_prefix=inside))


@pytest.fixture
def charliecloud(tmp_path):
    """`charliecloud(*binds)` gives the command prefix that runs a rank inside the image."""
    image = make_image(tmp_path / "image")
    return lambda *binds: _rank_prefix("charliecloud", ContainerSpec(str(image), (PROGRAMS, *binds)))


def test_charliecloud_runs_ranks_with_their_numbers_binds_and_own_root(charliecloud, tmp_path):
    made = launcher({"nodes": 2}, {name: value for name, value in os.environ.items() if name != "USER"})
    for node in made.nodes():
        (tmp_path / node.name).mkdir()
        (tmp_path / node.name / "x").write_text(f"of {node.name}")
    text = 'echo "$RANK of $WORLD_SIZE, $MINE, $(cat /data/x)"; ls /inside; exit "$RANK"'
    request = RunRequest(
        ["sh", "-c", text],
        made.nodes(),
        2,
        timeout_s=60,
        env={"MINE": "yes"},
        rank_prefix=charliecloud(f"{tmp_path}/{{node}}:/data"),
    )
    exits = made.run(request)
    assert [e.code for e in exits] == [0, 1, 2, 3], exits
    assert [e.out.decode() for e in exits] == [f"{e.rank} of 4, yes, of {e.node}\n/inside\n" for e in exits]
    assert not Path("/inside").exists()


def test_charliecloud_container_ends_at_the_deadline(charliecloud, tmp_path):
    made = launcher({"nodes": 1}, os.environ)
    text = "(while :; do date +%s%N > /mnt/0/new; mv /mnt/0/new /mnt/0/alive; sleep 0.1; done) & sleep 300"
    [ended] = made.run(
        RunRequest(["sh", "-c", text], made.nodes(), timeout_s=3, rank_prefix=charliecloud(f"{tmp_path}:/mnt/0"))
    )
    assert isinstance(ended.fault, Deadline)
    last = (tmp_path / "alive").read_text()
    made.run(RunRequest(["sleep", "1"], made.nodes()))
    assert (tmp_path / "alive").read_text() == last


def test_charliecloud_image_that_is_not_there_is_the_ranks_own_failure(tmp_path):
    made = launcher({"nodes": 1}, os.environ)
    [ended] = made.run(
        RunRequest(
            ["true"],
            made.nodes(),
            timeout_s=30,
            rank_prefix=_rank_prefix("charliecloud", ContainerSpec(f"{tmp_path}/none")),
        )
    )
    assert ended.code not in (0, None)
    assert b"none" in ended.err


def test_mpirun_inside_charliecloud_runs_ranks_there(charliecloud, tmp_path):
    made = mpi.launcher({"nodes": "localhost", "program": "mpirun.openmpi", "python": "/usr/bin/python3"}, os.environ)
    request = RunRequest(
        ["sh", "-c", "ls /inside; exit {rank}"],
        made.nodes(),
        2,
        timeout_s=60,
        expand_placeholders=True,
        rank_prefix=charliecloud(),
    )
    inside = replace(request, rank_prefix=replace(request.rank_prefix, is_outermost=True))
    exits = made.run(inside)
    assert [(e.code, e.out) for e in exits] == [(0, b"/inside\n"), (1, b"/inside\n")], exits


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_containers_of_two_jobs_of_one_name_have_different_names(runtime):
    words = StepCommands(Job("train", RunSection(("true",)), container=ContainerSection(runtime=runtime, image="x")))
    found = [words.ranks("/data", ())[1] for _ in range(2)]
    names = {rank_prefix.cleanup_argv[-1] for rank_prefix in found if rank_prefix is not None}
    assert len(names) == 2
    assert all(
        f"--name={rank_prefix.cleanup_argv[-1]}" in rank_prefix.argv for rank_prefix in found if rank_prefix is not None
    )
