# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock.stage()` inside a script: under torchrun, mpirun with mpi4py, plain processes, and alone. Issue 4."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stage_kit import await_true, fill, tree

import penstock
from penstock.errors import NotFound, RankFailed, Unsupported, from_wire, to_wire
from tests.ports import free_port

# The script of every rank: sets up its library, stages, and writes the result to a file.
SCRIPT = """
import json, os, sys, time
kind, source, folder, out, options = sys.argv[1:6]
options = json.loads(options)
rank = int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("SLURM_PROCID") or 0)
if kind == "torch":
    import torch.distributed as distributed
    distributed.init_process_group("gloo")
elif kind == "mpi":
    from mpi4py import MPI
import penstock
node = int(os.environ.get("GROUP_RANK", 0))
shown = []
if rank == options.pop("late", None):
    time.sleep(2)
if rank == options.pop("absent", None):
    time.sleep(9)
    sys.exit(0)
try:
    staged = penstock.stage(source, folder.replace("NODE", str(node)), progress=shown.append, **options)
    outcome = dict(by=staged.coordinator, node=staged.node, nodes=staged.nodes, objects=staged.objects, folder=str(staged.folder),
                manifest=staged.manifest.exists(), bytes=staged.bytes_written, seconds=staged.seconds, shown=len(shown))
except penstock.errors.PenstockError as error:
    outcome = dict(error=type(error).__name__, text=str(error), hint=error.hint)
with open(os.path.join(out, f"rank{rank}"), "w") as file:
    json.dump(outcome, file)
if kind == "torch":
    sys.stdout.flush()
    os._exit(0)  # torch's own teardown aborts now and then
"""


@pytest.fixture
def job(tmp_path):
    """`job("torch", 4, source, ...)` runs a job and returns the result of each rank."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    out.mkdir()

    def run(kind: str, world: int, source, folder=None, env=None, **options):
        for file in out.iterdir():
            file.unlink()
        words = [str(script), kind, str(source), str(folder or tmp_path / "dst"), str(out), json.dumps(options)]
        launchers = {
            "torch": [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"],
            "mpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(world), sys.executable],
            "plain": [sys.executable],
        }
        ran = subprocess.run(
            [*launchers[kind], *words],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(env or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        result = [
            json.loads((out / f"rank{rank}").read_text()) if (out / f"rank{rank}").exists() else None
            for rank in range(world)
        ]
        assert any(result), ran.stderr[-3000:]
        return result

    return run


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    return folder / "set", fill(folder, 40, 20_000)


@pytest.mark.needs_torch
def test_stage_under_torchrun_is_done_once_and_told_to_all(job, source, tmp_path):
    folder, want = source
    result = job("torch", 3, folder, decompress=True, late=1)
    assert tree(tmp_path / "dst") == want
    assert {one["by"] for one in result} == {"torch"}
    for one in result:
        assert (one["objects"], one["nodes"], one["manifest"]) == (40, 1, True)
        assert one["bytes"] == sum(map(len, want.values()))
    assert len({one["seconds"] for one in result}) == 1


@pytest.mark.needs_torch
def test_stage_under_torchrun_fails_alike_on_all_ranks(job, tmp_path):
    result = job("torch", 3, tmp_path / "nothing-here")
    assert {one["error"] for one in result} == {"NotFound"}
    assert len({one["text"] for one in result}) == 1
    assert "nothing-here" in result[0]["text"]


@pytest.mark.needs_torch
def test_stage_under_torchrun_gives_up_on_a_rank_that_never_comes(job, source):
    result = job("torch", 3, source[0], absent=2, join_timeout_s=3)
    assert [one["error"] for one in result[:2]] == ["RankFailed"] * 2
    assert "rank 2" in result[0]["text"]


def _ranks(tmp_path, source, world: int, folder: str, env, **options):
    """Starts processes with their own process group, and no launcher that would end them together."""
    script = _script(tmp_path)
    port = str(free_port())
    words = [sys.executable, str(script), "torch", str(source), folder, str(tmp_path / "out"), json.dumps(options)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            words,
            env={**os.environ, **meeting, **env, "RANK": str(r), "WORLD_SIZE": str(world), "LOCAL_RANK": str(r % 2),
                 "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(r // 2)},
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for r in range(world)
    ]  # fmt: skip


@pytest.mark.needs_torch
def test_stage_of_two_nodes_in_one_group_shares_and_waits_for_both(source, tmp_path):
    folder, want = source
    ranks = _ranks(tmp_path, folder, 4, str(tmp_path / "dstNODE"), {}, decompress=True)
    assert [one.wait(90) for one in ranks] == [0] * 4
    result = [_outcome(tmp_path, rank) for rank in range(4)]
    assert not [one for one in result if "error" in one], result
    assert [(one["node"], one["nodes"]) for one in result] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    trees = [tree(tmp_path / f"dst{node}") for node in range(2)]
    assert trees[0] | trees[1] == want
    assert not trees[0].keys() & trees[1].keys()


@pytest.mark.needs_torch
@pytest.mark.parametrize("victim", [0, 2])
def test_stage_in_a_group_ends_on_all_when_a_leader_is_killed(victim, slow_bucket, tmp_path):
    ranks = _ranks(tmp_path, slow_bucket.url, 4, str(tmp_path / "dstNODE"), slow_bucket.env, heartbeat_timeout_s=4)
    place = tmp_path / f"dst{victim // 2}"
    await_true(lambda: ranks[victim].poll() is not None or len(tree(place)) > 1, 90)
    ranks[victim].kill()
    ranks[victim].wait()
    others = [rank for rank in range(4) if rank != victim]
    assert [ranks[rank].wait(60) for rank in others] == [0, 0, 0]
    result = [_outcome(tmp_path, rank) for rank in others]
    assert [one.get("error") for one in result] == ["RankFailed"] * 3, result
    assert all(f"rank {victim}" in one["text"] for one in result), result


def test_stage_under_mpi_is_done_once_and_told_to_all(job, source, tmp_path):
    folder, want = source
    result = job("mpi", 4, folder, decompress=True, late=2)
    assert tree(tmp_path / "dst") == want
    assert [one["by"] for one in result] == ["mpi4py"] * 4
    assert [one["objects"] for one in result] == [40] * 4


def test_stage_under_mpi_fails_alike_on_all_ranks(job, tmp_path):
    result = job("mpi", 3, tmp_path / "nothing-here")
    assert [one["error"] for one in result] == ["NotFound"] * 3


def _slurm(rank: int, world: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(world), "SLURM_NNODES": "1",
        "SLURM_PROCID": str(rank), "SLURM_NODEID": "0", "SLURM_LOCALID": str(rank),
    }  # fmt: skip


def _script(tmp_path):
    """The script's path. It is written only once, since a rank that started earlier may be about to read it."""
    script = tmp_path / "script.py"
    if not script.exists():
        script.write_text(SCRIPT)
        (tmp_path / "out").mkdir()
    return script


def _start(tmp_path, source, rank: int, world: int, env=None, **options):
    script = _script(tmp_path)
    words = [str(script), "plain", str(source), str(tmp_path / "dst"), str(tmp_path / "out"), json.dumps(options)]
    return subprocess.Popen(
        [sys.executable, *words], env={**os.environ, **_slurm(rank, world), **(env or {})}, stdin=subprocess.DEVNULL
    )


def _outcome(tmp_path, rank: int):
    return json.loads((tmp_path / f"out/rank{rank}").read_text())


def test_stage_in_plain_processes_goes_by_the_files(source, tmp_path):
    folder, want = source
    ranks = [_start(tmp_path, folder, rank, 3, decompress=True) for rank in (2, 0, 1)]
    assert [one.wait(60) for one in ranks] == [0, 0, 0]
    assert tree(tmp_path / "dst") == want
    result = [_outcome(tmp_path, rank) for rank in range(3)]
    assert {one["by"] for one in result} == {"files"}
    assert {one["objects"] for one in result} == {40}


def test_stage_in_plain_processes_fails_alike_on_all_ranks(tmp_path):
    ranks = [_start(tmp_path, tmp_path / "nothing-here", rank, 3) for rank in range(3)]
    assert [one.wait(60) for one in ranks] == [0, 0, 0]
    result = [_outcome(tmp_path, rank) for rank in range(3)]
    assert [one["error"] for one in result] == ["NotFound"] * 3
    assert result[0] == result[1] == result[2]


def test_stage_whose_leader_is_killed_ends_on_the_others(slow_bucket, tmp_path):
    leader = _start(tmp_path, slow_bucket.url, 0, 2, env=slow_bucket.env)
    await_true(lambda: leader.poll() is not None or len(tree(tmp_path / "dst")) > 2)
    waiter = _start(tmp_path, slow_bucket.url, 1, 2, env=slow_bucket.env, heartbeat_timeout_s=5)
    time.sleep(2)  # the waiter must have seen its leader alive
    assert (leader.poll(), waiter.poll()) == (None, None)
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    assert waiter.wait(40) == 0
    assert _outcome(tmp_path, 1)["error"] == "RankFailed"


def test_stage_whose_leader_is_interrupted_ends_on_the_others(slow_bucket, tmp_path):
    leader = _start(tmp_path, slow_bucket.url, 0, 2, env=slow_bucket.env)
    await_true(lambda: leader.poll() is not None or len(tree(tmp_path / "dst")) > 2)
    waiter = _start(tmp_path, slow_bucket.url, 1, 2, env=slow_bucket.env)
    time.sleep(1)
    leader.send_signal(signal.SIGINT)
    assert waiter.wait(40) == 0
    assert leader.wait(40) == -signal.SIGINT
    assert _outcome(tmp_path, 1)["error"] == "RankFailed"
    assert _outcome(tmp_path, 1)["text"].startswith("rank 0 failed: penstock.stage raised Interrupted")


def test_stage_alone_returns_what_was_done_and_raises_what_was_not(source, tmp_path):
    folder, want = source
    shown = []
    staged = penstock.stage(folder.as_posix(), tmp_path / "dst", decompress=True, progress=shown.append)
    assert (staged.coordinator, staged.objects, staged.folder) == ("alone", 40, tmp_path / "dst")
    assert staged.manifest.is_file()
    assert tree(staged.folder) == want
    with pytest.raises(NotFound, match="nothing-here"):
        penstock.stage(str(tmp_path / "nothing-here"), tmp_path / "dst2")


# Issue 19: all objects were uploaded, and then Unsupported was raised.
def test_stage_to_a_store_returns_its_urls(source, emulator, tmp_path, monkeypatch):
    folder, want = source
    served = emulator()
    for name, value in {**served.env, "XDG_STATE_HOME": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    staged = penstock.stage(folder.as_posix(), f"{served.url}copy", decompress=True)
    assert (staged.objects, staged.destination) == (40, f"{served.url}copy/")
    assert staged.manifest == f"{served.url}copy/.penstock/manifest.json"
    found = penstock.stage.verify(str(staged.destination))
    assert (found["objects"], found["ok"]) == (len(want), len(want))
    with pytest.raises(Unsupported, match="s3"):
        _ = staged.folder
    with pytest.raises(Unsupported, match="https"):
        penstock.stage(folder.as_posix(), "https://127.0.0.1:9/copy")


def test_stage_failed_objects_raise_by_default(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "good").write_bytes(b"x")
    (folder / "bad.gz").write_bytes(b"no gzip at all, but long enough to look at")
    with pytest.raises(penstock.errors.Corrupt) as caught:
        penstock.stage(str(folder), tmp_path / "dst", decompress=True)
    assert "1 of 2 objects" in (caught.value.hint or "")
    staged = penstock.stage(str(folder), tmp_path / "dst", decompress=True, allow_partial=True)
    assert len(staged.summary["failed"]) == 1


def test_seats_follow_the_launcher_or_else_the_hosts():
    from penstock.stage.collective import _assign_nodes

    result = [{"host": "a", "launcher": [r // 2, 2, r % 2, 4]} for r in range(4)]
    assert _assign_nodes(result) == [[0, 2, 0], [0, 2, 1], [1, 2, 0], [1, 2, 1]]
    # The ranks are placed one by one, or unevenly: the launcher's variables do not state their nodes, so the host names
    # are used.
    uneven = [{"host": host, "launcher": None} for host in "aaba"]
    assert _assign_nodes(uneven) == [[0, 2, 0], [0, 2, 1], [1, 2, 0], [0, 2, 2]]
    contradicting = [{"host": host, "launcher": [0, 1, 0, 2]} for host in "ab"]
    assert _assign_nodes(contradicting) == [[0, 2, 0], [1, 2, 0]]


def test_error_survives_the_way_to_another_rank():
    again = from_wire(json.loads(json.dumps(to_wire(RankFailed("rank 3 failed: x", hint="h")))))
    assert (type(again), str(again), again.hint) == (RankFailed, "rank 3 failed: x", "h")
    assert str(from_wire(to_wire(ValueError("odd")))) == "ValueError: odd"


def test_room_and_function_are_one():
    from penstock import stage

    assert penstock.stage is stage
    assert callable(stage)
    assert stage.run.__name__ == "run"
    assert Path(stage.__file__).name == "__init__.py"
