# SPDX-License-Identifier: Apache-2.0
"""Tests two launches of different sizes into one folder, as after an elastic restart: all published files are complete.

Issue 19, point 3.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest
from stage_kit import await_true, launch, tree

if TYPE_CHECKING:
    from pathlib import Path

_OBJECTS = 40
_OBJECT_BYTES = 3_000_000


@pytest.fixture
def source(tmp_path) -> tuple[Path, dict[str, bytes]]:
    """Plain objects of one size: a file of any other size was published half-written."""
    rng, folder = random.Random(19), tmp_path / "source"
    folder.mkdir()
    bodies = {f"o{at:04d}.bin": rng.randbytes(_OBJECT_BYTES) for at in range(_OBJECTS)}
    for name, body in bodies.items():
        (folder / name).write_bytes(body)
    return folder, bodies


def _partial(dst: Path) -> list[str]:
    return [path.name for path in dst.glob("*.bin") if path.stat().st_size != _OBJECT_BYTES]


def _race(source: Path, dst: Path, logs: Path, rng: random.Random, env: dict[str, str]) -> list[tuple[int, str]]:
    """One race: node 1 of 2 of an old launch against node 0 of 1 of a new one, started up to 100 ms apart.

    In half of the races the old launch is killed. Returns the exit code and output of each.
    """
    ranks = [("--node", "1", "--nodes", "2"), ("--node", "0", "--nodes", "1")]
    rng.shuffle(ranks)
    jobs = []
    for at, rank in enumerate(ranks):
        log = logs / f"{dst.name}-{at}"
        jobs.append((launch("stage", source, dst, *rank, "--json", "--progress", "none", env=env, log=log), log, rank))
        time.sleep(rng.random() / 10)
    is_killed, seen = rng.random() < 0.5, []
    victim = next(job for job, _, rank in jobs if rank[1] == "1")
    kill_at = time.monotonic() + rng.random() / 2
    while any(job.poll() is None for job, _, _ in jobs):
        seen += _partial(dst)
        if is_killed and time.monotonic() > kill_at and victim.poll() is None:
            victim.send_signal(signal.SIGKILL)
    assert not seen, f"partial files under their final names: {seen}"
    return [(job.wait(), log.read_text()) for job, log, _ in jobs]


def _check(source: tuple[Path, dict[str, bytes]], dst: Path, ended: list[tuple[int, str]], run_cli) -> None:
    """A successful launch has whole files. A failed one was killed or rejected as busy, and succeeds later."""
    folder, bodies = source
    for code, output in ended:
        if code == 0:
            assert not json.loads(output.splitlines()[-1])["failed"], output
        else:
            assert code == -signal.SIGKILL or (code == 3 and "error[busy]" in output), (code, output)
    held = tree(dst)
    assert {name: body for name, body in held.items() if bodies[name] != body} == {}
    if any(code == 0 and json.loads(output.splitlines()[-1])["nodes"] == 1 for code, output in ended):
        assert held == bodies
    again = run_cli("stage", folder, dst, "--json")
    assert (again.code, tree(dst) == bodies) == (0, True), again.err


def test_stage_is_refused_while_a_launch_of_another_size_writes_into_its_folder(slow_bucket, run_cli, tmp_path):
    dst, env = tmp_path / "dst", slow_bucket.env
    old = launch(
        "stage", slow_bucket.url, dst, "--decompress", "--node", "1", "--nodes", "2", env=env, log=tmp_path / "old"
    )
    await_true(lambda: old.poll() is not None or len(tree(dst)) > 2)
    (dst / next(iter(tree(dst)))).write_bytes(b"rot")
    new = run_cli("stage", slow_bucket.url, dst, "--decompress", env=env)
    repair = run_cli("verify", dst, "--repair", env=env)
    # The other node of the same launch.
    same = launch(
        "stage", slow_bucket.url, dst, "--decompress", "--node", "0", "--nodes", "2", env=env, log=tmp_path / "same"
    )
    await_true(lambda: same.poll() is not None or (dst / ".penstock/stage/status-0-of-2.json").exists())
    assert (old.poll(), same.poll()) == (None, None)
    assert new.code == 3, new.err
    refusal = (
        f"error[busy]: {dst} is in use: another penstock stage of node 1 of 2 is writing to it (process {old.pid} on "
    )
    assert refusal in new.err, new.err
    assert "hint: wait until the other process ends, or stop it" in new.err
    assert (repair.code, refusal in repair.err) == (3, True), repair.err
    for job in (old, same):
        job.send_signal(signal.SIGKILL)
        job.wait()
    # The kernel released both locks at the kill.
    ran = run_cli("stage", slow_bucket.url, dst, "--decompress", env=env, timeout_s=100)
    assert (ran.code, tree(dst) == slow_bucket.want) == (0, True), ran.err


def test_stages_of_two_machines_to_one_prefix_publish_whole_objects(emulator, tmp_path):
    """No lock covers two machines: the store's conditional writes decide, object by object."""
    (tmp_path / "bucket").mkdir()
    served, rng, sources = emulator(tmp_path / "bucket"), random.Random(11), []
    for at in range(2):
        sources.append(
            {f"o{n}.bin": rng.randbytes(size) for n, size in enumerate([40_000_000, 20_000_000, 5, 900_000])}
        )
        (tmp_path / f"m{at}").mkdir()
        for name, body in sources[at].items():
            (tmp_path / f"m{at}" / name).write_bytes(body)
    jobs = [
        launch(
            "stage", tmp_path / f"m{at}", f"{served.url}p", "--json", "--journal", tmp_path / f"journal{at}",
            env=served.env, log=tmp_path / f"log{at}",
        )
        for at in range(2)
    ]  # fmt: skip
    codes = [job.wait(100) for job in jobs]
    output = [(tmp_path / f"log{at}").read_text() for at in range(2)]
    failed = [{one["key"]: one["code"] for one in json.loads(text.splitlines()[-1])["failed"]} for text in output]
    held = tree(tmp_path / "bucket/p")
    assert held.keys() == sources[0].keys()
    for name, body in held.items():
        winner = next(at for at in range(2) if sources[at][name] == body)
        assert (failed[winner].get(name), failed[1 - winner].get(name)) == (None, "precondition"), output
    assert [code == 0 for code in codes] == [not one for one in failed], output


@pytest.mark.slow
@pytest.mark.needs_pool
@pytest.mark.timeout(600)
def test_launches_of_different_sizes_into_one_folder_never_publish_a_partial_file_in_50_rounds(
    source, run_cli, tmp_path
):
    rng = random.Random(7)
    for at in range(50):
        dst = tmp_path / f"dst{at}"
        ended = _race(source[0], dst, tmp_path, rng, {})
        _check(source, dst, ended, run_cli)
        shutil.rmtree(dst)
