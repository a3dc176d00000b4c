# SPDX-License-Identifier: Apache-2.0
"""Tests that a dataset is scanned once per node: one process reads and the others wait for its index, even if it dies."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile

import pytest

import penstock
from penstock.emulator import Emulator

OBJECTS = 12
COUNT = """
import json, sys
import penstock
dataset = penstock.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
counted = dataset.counted()
print(json.dumps([counted.samples, counted.rung, counted.is_indexed]), flush=True)
"""
HOLD = """
import sys
import penstock
from penstock.feed import scan_lock
from penstock.feed.record_index_dir import record_index_dir
from penstock import env
dataset = penstock.open(sys.argv[1])
with scan_lock.held(record_index_dir(env.read()), dataset.source.cache_name(dict(env.read())), dataset.url):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def served(tmp_path, monkeypatch):
    """An endpoint with small tars of different lengths, each of 3 samples."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(OBJECTS):
        with tarfile.open(folder / f"{number:03d}.tar", "w") as archive:
            for sample in range(3):
                info = tarfile.TarInfo(f"{number}-{sample}.txt")
                info.size = 600 * number
                archive.addfile(info, io.BytesIO(bytes(info.size)))
    with Emulator(folder) as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        # On a busy machine, a late request would be hedged, and thus counted twice.
        monkeypatch.setenv("PENSTOCK_HEDGE", "0")
        yield server


@pytest.fixture
def start(served):
    """`start(script)` starts a process that has listed the dataset and waits for a line of input."""
    running = []

    def begin(script):
        command = [sys.executable, "-c", script, served.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, env=dict(os.environ), **pipes)
        running.append(process)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def ended(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out), err


def test_scan_reads_each_object_once_for_four_processes(served, start, cache):
    # Regression: every rank read the whole dataset before its first batch.
    processes = [start(COUNT) for _ in range(4)]
    before = served.stats()["gets"]
    for process in processes:
        go(process)
    found = [ended(process) for process in processes]
    assert served.stats()["gets"] - before == OBJECTS
    assert [one for one, _ in found] == [[3 * OBJECTS, rung, True] for rung in (found[at][0][1] for at in range(4))]
    assert sorted(one[1] for one, _ in found) == ["index", "index", "index", "scan"]
    scanned = [err for one, err in found if one[1] == "scan"]
    assert "all are read once and indexed: 12 objects" in scanned[0]
    assert all("are read once and indexed:" not in err for one, err in found if one[1] == "index")
    assert [path.suffix for path in (cache / "records").iterdir()] == [".idx"]


def test_scan_goes_on_after_the_process_that_held_it_is_killed(served, start):
    holder, waiting = start(HOLD), start(COUNT)
    go(waiting)
    assert "another process is reading and indexing all objects" in waiting.stderr.readline()
    before = served.stats()["gets"]
    holder.send_signal(signal.SIGKILL)
    assert ended(waiting)[0] == [3 * OBJECTS, "scan", True]
    assert served.stats()["gets"] - before == OBJECTS


def test_scan_without_a_cache_that_can_be_written_is_each_process_own(served, start, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    for cache in (f"{tmp_path}/file/below", ""):
        monkeypatch.setenv("PENSTOCK_CACHE", cache)
        process = start(COUNT)
        go(process)
        found, output = ended(process)
        assert found == [3 * OBJECTS, "scan", False]
        assert "each process reads all of them once: 12 objects" in output


def test_scan_that_fails_keeps_what_it_read(served, tmp_path, monkeypatch):
    broken = tmp_path / "data/011.tar"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:700])
    for asked in (OBJECTS, 1):
        dataset = penstock.open(served.url)
        before = served.stats()["gets"]
        with pytest.raises(penstock.errors.Corrupt, match=r"011\.tar ends inside"):
            dataset.counted()
        assert served.stats()["gets"] - before == asked
    broken.write_bytes(whole)
    dataset = penstock.open(served.url)
    before = served.stats()["gets"]
    assert (dataset.samples, served.stats()["gets"] - before) == (3 * OBJECTS, 1)
