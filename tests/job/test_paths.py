# SPDX-License-Identifier: Apache-2.0
"""Tests the comparison of one job over several paths: pool, stream, staged and a FUSE client's mount.

Issue 5, point 6.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.emulator import Emulator
from penstock.job import compare_paths, spec
from penstock.job.run_steps import StepRow
from penstock.pool import lifecycle

_TOOLS = Path(__file__).resolve().parents[2] / ".tools/bin"
_RANK = """
import sys, zlib, penstock
from penstock.formats import fixed
data, rank, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
loader = penstock.Loader(penstock.open(data, format=fixed(x=penstock.tensor("uint8", (100,)))), batch_size=50, rank=0, world=1)
seen = sorted(one.tobytes() for batch in loader for one in batch["x"])
open(f"{out}/{rank}", "w").write(f"{len(seen)} {zlib.crc32(b''.join(seen))}")
"""
_JOB = """
name = "which"
paths = {paths}
[cluster]
nodes = 2
[pool]
disk = "{folder}/disk-{{node}}"
[stage]
source = "{source}"
[run]
argv = ["{python}", "{folder}/rank.py", "{{data}}", "{{rank}}", "{folder}/out"]
"""


@pytest.fixture
def written(tmp_path, monkeypatch, request):
    """`written(paths, source)` writes a job file over a bucket of six objects."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for folder in ("bucket/set", "out"):
        (tmp_path / folder).mkdir(parents=True)
    for at in range(6):
        (tmp_path / f"bucket/set/{at}.bin").write_bytes(random.Random(at).randbytes(5000))
    (tmp_path / "rank.py").write_text(_RANK)

    def write(paths: list[str], source: str) -> Path:
        text = _JOB.format(paths=json.dumps(paths), folder=tmp_path, source=source, python=sys.executable)
        (tmp_path / "job.toml").write_text(text)
        return tmp_path / "job.toml"

    return write


def test_job_is_run_over_each_path_and_they_are_compared(written, run_cli, tmp_path):
    file = written(["stream", "staged", "pool"], f"{tmp_path}/bucket/set")
    ran = run_cli("run", file, "--json", cwd=tmp_path, timeout_s=170)
    assert ran.code == 0, ran.err
    rows = {row["path"]: row for row in json.loads(ran.out)["paths"]}
    assert list(rows) == ["stream", "staged", "pool"]
    assert min(row["over_fastest"] for row in rows.values()) == 1
    assert rows["stream"]["before_s"] == 0 < rows["staged"]["before_s"]
    assert all(row["total_s"] == pytest.approx(row["before_s"] + row["ranks_s"]) for row in rows.values())
    assert list(tmp_path.glob("disk-*/*")) == []
    assert lifecycle.names() == []
    resumed = run_cli("run", file, "--resume", "--json", cwd=tmp_path, timeout_s=170)
    assert resumed.code == 0, resumed.err
    again = {row["path"]: row for row in json.loads(resumed.out)["paths"]}
    # Steps that were completed in the first run keep their times; only the pool was brought up and filled again.
    assert {path: row["ranks_s"] for path, row in again.items()} == {path: row["ranks_s"] for path, row in rows.items()}
    assert [again[path]["before_s"] for path in ("stream", "staged")] == [0, rows["staged"]["before_s"]]
    result = run_cli("run", file, "--resume", cwd=tmp_path, timeout_s=170)
    assert (result.code, "x the fastest" in result.out, "ranks: skipped: done before in" in result.out) == (
        0,
        True,
        True,
    )
    shown = run_cli("run", file, "--dry-run", cwd=tmp_path)
    assert [line for line in shown.out.splitlines() if line.startswith("# which-")][:6] == [
        "# which-stream: ranks", "# which-stream: money",
        "# which-staged: stage", "# which-staged: ranks", "# which-staged: remove", "# which-staged: money",
    ]  # fmt: skip


def test_staged_path_that_failed_has_its_data_again_when_it_is_resumed(written, run_cli, tmp_path):
    file = written(["staged"], f"{tmp_path}/bucket/set")
    rank = (tmp_path / "rank.py").read_text()
    (tmp_path / "rank.py").write_text("raise SystemExit(7)")
    failed = run_cli("run", file, "--json", cwd=tmp_path, timeout_s=170)
    assert (failed.code, "exit code 7" in json.loads(failed.out)["paths"][0]["fault"]) == (1, True), failed.err
    assert list(tmp_path.glob("disk-*/*")) == []
    (tmp_path / "rank.py").write_text(rank)
    resumed = run_cli("run", file, "--resume", cwd=tmp_path, timeout_s=170)
    assert resumed.code == 0, resumed.err + resumed.out
    assert {path.read_text() for path in (tmp_path / "out").iterdir()} != set()


def test_staged_path_whose_folder_was_replaced_by_a_link_says_so_and_follows_no_link(written, run_cli, tmp_path):
    file = written(["staged"], f"{tmp_path}/bucket/set")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/thesis.tex").write_text("years")
    more = f"""
import os, pathlib
root = pathlib.Path({str(tmp_path)!r}, "disk-n" + str(rank), "penstock-pool-which-staged")
root.rename(root.with_name("aside"))
root.symlink_to({str(tmp_path / "victim")!r})
"""
    (tmp_path / "rank.py").write_text((tmp_path / "rank.py").read_text() + more)
    ran = run_cli("run", file, "--json", cwd=tmp_path, timeout_s=170)
    [row] = json.loads(ran.out)["paths"]
    assert (ran.code, "remove: n0: " in row["fault"], "is a link or not a folder" in row["fault"]) == (1, True, True), (
        ran.err
    )
    assert row["ranks_s"] > 0
    assert (tmp_path / "victim/thesis.tex").read_text() == "years"


def test_staged_path_takes_no_folder_that_it_did_not_make(written, run_cli, tmp_path):
    file = written(["staged"], f"{tmp_path}/bucket/set")
    precious = tmp_path / "disk-n1/penstock-pool-which-staged/data/precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("three days")
    ran = run_cli("run", file, "--json", cwd=tmp_path, timeout_s=170)
    [row] = json.loads(ran.out)["paths"]
    assert (ran.code, "n1: " in row["fault"], "contains no pool lease" in row["fault"]) == (1, True, True), ran.err
    assert precious.read_text() == "three days"
    assert list((tmp_path / "disk-n0").iterdir()) == []


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_in_the_first_path_ends_all_and_leaves_nothing(sent, code, written, tmp_path):
    file = written(["pool", "staged"], f"{tmp_path}/bucket/set")
    (tmp_path / "rank.py").write_text(
        f"import pathlib, time\npathlib.Path('{tmp_path}/out/begun').touch()\ntime.sleep(100)"
    )
    program = Path(sys.executable).with_name("penstock")
    comparison = subprocess.Popen(
        [program, "run", file], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        while not (tmp_path / "out/begun").exists() and comparison.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        comparison.send_signal(sent)
        out, err = comparison.communicate(timeout=60)
    finally:
        comparison.kill()
    assert comparison.returncode == code, err
    assert "pool down: done" in out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["which-pool"]
    assert lifecycle.names() == []
    assert list(tmp_path.glob("disk-*/*")) == []


def test_path_that_fails_is_told_and_the_others_are_run(written, run_cli, tmp_path):
    file = written(["pool:moosefs", "stream"], f"{tmp_path}/bucket/set")
    ran = run_cli("run", file, "--json", cwd=tmp_path, timeout_s=170)
    assert ran.code == 1, ran.err
    bad, good = json.loads(ran.out)["paths"]
    assert bad["fault"]
    assert bad["over_fastest"] is None
    assert (good["fault"], good["over_fastest"]) == (None, 1)


@pytest.mark.needs_root
@pytest.mark.needs_pool
@pytest.mark.parametrize("client", ["rclone", "s3fs"])
def test_fuse_client_is_a_path_and_reads_what_the_stream_reads(client, written, run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{_TOOLS}:{os.environ['PATH']}")
    if shutil.which(client) is None:
        pytest.fail(f"{client} is not here; `make test-peers` installs it", pytrace=False)
    with Emulator(tmp_path / "bucket") as store:
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        file = written([f"fuse:{client}", "stream"], f"{store.url}set")
        ran = run_cli("run", file, "--json", cwd=tmp_path, timeout_s=170)
    assert ran.code == 0, ran.err
    assert [row["fault"] for row in json.loads(ran.out)["paths"]] == [None, None]
    output = {path.read_text() for path in (tmp_path / "out").iterdir()}
    assert len(output) == 1
    assert next(iter(output)).startswith("300 ")
    assert list(tmp_path.glob("disk-*/*")) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["fast"], "is not one of pool, pool:ENGINE"),
        (["fuse:"], "is not one of"),
        (["pool:" + "x" * 40], "too long"),
    ],
)
def test_path_that_cannot_be_is_refused_before_anything_is_run(paths, words, written, run_cli, tmp_path):
    ran = run_cli("run", written(paths, f"{tmp_path}/bucket/set"), cwd=tmp_path)
    assert (ran.code, words in ran.err) == (2, True), ran.err
    assert not (tmp_path / "runs").exists()


def test_rows_are_held_against_the_fastest_that_came_to_an_end():
    steps = {
        "a": [StepRow("pool up", "done", 2.0), StepRow("stage", "done", 4.0), StepRow("ranks", "done", 2.0)],
        "b": [StepRow("ranks", "done", 12.0)], "c": [StepRow("ranks", "failed", 1.0)],
    }  # fmt: skip
    rows = compare_paths.summarize(steps, {"c": "ranks: no"})
    assert [(row.before_s, row.total_s, row.over_fastest) for row in rows] == [(6, 8, 1), (0, 12, 1.5), (0, 1, None)]


def test_local_engine_of_another_name_takes_no_settings_along(written, tmp_path):
    file = written(["pool:hdfs", "pool"], "s3://b/x")
    text = file.read_text().replace("[stage]", 'engine = "local"\nsettings = { a = 1 }\n[stage]')
    file.write_text(text)
    found = spec.load(file)
    other, same = (spec.for_path(found, path).pool for path in found.paths)
    assert other is not None
    assert same is not None
    assert (other.engine, other.settings, same.engine, same.settings) == ("hdfs", {}, "local", {"a": 1})
