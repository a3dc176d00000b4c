# SPDX-License-Identifier: Apache-2.0
"""Tests `--gpu`: without a GPU, it reports a clear error; with a fake driver, all blocks arrive and memory is freed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = ("--file-size", "64KiB", "--block-size", "16KiB", "--files", "3", "--keep-caches")


def test_gpu_that_is_not_here_is_refused_before_anything_is_made(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    empty = tmp_path / "libcuda.so.1"
    empty.write_bytes(b"")  # hides a real driver, if one is installed
    ran = run_cli("bench", "storage", tmp_path / "new", *_SMALL, "--gpu", "0", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert ran.code == 3
    assert "this machine has no CUDA driver" in ran.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("cufile", [(), ("--cufile",)])
def test_gpu_blocks_of_every_file_arrive_and_all_is_given_back(
    run_cli: Callable[..., Any], tmp_path: Path, driver: Path, cufile: tuple[str, ...]
) -> None:
    log, held = tmp_path / "log", tmp_path / "held"
    env = {"LD_LIBRARY_PATH": str(driver), "STANDIN_LOG": str(log), "STANDIN_HELD": str(held)}
    place = tmp_path / "new"
    wrote = run_cli(
        "bench", "storage", place, *_SMALL, "--phases", "mkdirs,write", "--gpu", "0", *cufile, "--json", env=env
    )
    assert wrote.code == 0, wrote.err
    row = json.loads(wrote.out)["rows"][1]
    assert (row["last"]["entries"], row["last"]["ios"], row["last"]["bytes"]) == (3, 12, 3 * 65536)
    assert sum(count for _, count in row["io_latency"]["buckets"]) == 12
    log.unlink()  # removes the bytes that were logged before and during the write phase
    read = run_cli("bench", "storage", place, *_SMALL, "--phases", "read", "--gpu", "0", *cufile, "--json", env=env)
    assert read.code == 0, read.err
    row = json.loads(read.out)["rows"][0]
    assert (row["last"]["bytes"], row["raw"]["gpu"]) == (3 * 65536, "cuFile" if cufile else "pinned memory")
    assert 0 < row["first"]["time_s"] <= row["last"]["time_s"]
    assert row["io_latency"]["percentiles_us"]["50"] <= row["io_latency"]["max_us"]
    files = b"".join(path.read_bytes() for path in sorted(place.rglob("f000*")))
    # The first 16 KiB are the random bytes with which each thread fills its buffer at the start.
    assert log.read_bytes()[16384:] == files
    assert held.read_text() == "0"


def test_gpu_faults_and_limits_end_the_phase(run_cli: Callable[..., Any], tmp_path: Path, driver: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(driver), "STANDIN_LOG": "/dev/null", "STANDIN_HELD": str(tmp_path / "held")}

    def bench(*flags: object) -> Any:
        return run_cli("bench", "storage", tmp_path / "new", *flags, "--keep-caches", "--gpu", "0", env=env)

    large = bench("--file-size", "32MiB", "--block-size", "32MiB", "--threads", "2", "--files", "1")
    assert (large.code, "not enough GPU memory" in large.err, (tmp_path / "new").exists()) == (3, True, False), (
        large.err
    )
    none = run_cli("bench", "storage", tmp_path / "new", "--gpu", "1", env=env)
    assert (none.code, "GPU 1 does not exist: this machine has 1" in none.err) == (3, True), none.err
    limited = bench(
        "--file-size",
        "64KiB",
        "--block-size",
        "4KiB",
        "--files",
        "2",
        "--no-fsync",
        "--repeat-io",
        "--duration",
        "300ms",
        "--threads",
        "2",
        "--json",
    )
    assert limited.code == 0, limited.err
    assert [r["raw"].get("ended_by") for r in json.loads(limited.out)["rows"]][1:3] == ["time", "time"]


@pytest.mark.parametrize(
    "flags", [("--depth", "4"), ("--verify", "1"), ("--compressible", "50"), ("--arrivals", "constant", "--rate", "5")]
)
def test_gpu_with_what_it_cannot_do_is_refused(
    run_cli: Callable[..., Any], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    ran = run_cli("bench", "storage", tmp_path / "new", *_SMALL, "--gpu", "0", *flags)
    assert ran.code == 2
    assert flags[0] in ran.err


def test_gpu_phase_that_is_interrupted_gives_all_back_and_leaves_nothing(tmp_path: Path, driver: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(driver), "STANDIN_LOG": "/dev/null", "STANDIN_HELD": str(tmp_path / "held")}
    forever = ("--phases", "write", "--repeat-io", "--duration", "60s", "--threads", "2", "--gpu", "0")
    program = Path(sys.executable).with_name("penstock")
    running = subprocess.Popen(
        [program, "bench", "storage", tmp_path / "new", *_SMALL, *forever], env={**os.environ, **env}, stderr=subprocess.PIPE
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while len(list((tmp_path / "new").rglob("f0000002"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        _, result = running.communicate(timeout=50)
    finally:
        running.kill()
    assert running.returncode == 130, result
    assert (tmp_path / "held").read_text() == "0"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("flags", [(), ("--overwrite-device",)])
def test_gpu_writes_into_folders_only_and_a_file_stays_as_it_is(
    run_cli: Callable[..., Any], tmp_path: Path, driver: Path, flags: tuple[str, ...]
) -> None:
    mine = tmp_path / "thesis"
    mine.write_bytes(b"x" * 65536)
    env = {"LD_LIBRARY_PATH": str(driver), "STANDIN_LOG": "/dev/null", "STANDIN_HELD": str(tmp_path / "held")}
    line = ("bench", "storage", mine, "--block-size", "16KiB", "--keep-caches", "--gpu", "0")
    ran = run_cli(*line, "--phases", "write", *flags, env=env)
    assert (ran.code, "requires a folder" in ran.err) == (2, True), ran.err
    assert mine.read_bytes() == b"x" * 65536
    read = run_cli(*line, "--phases", "read", "--json", env=env)
    assert json.loads(read.out)["rows"][0]["last"]["bytes"] == 65536


def test_cufile_needs_a_gpu(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    ran = run_cli("bench", "storage", tmp_path / "new", *_SMALL, "--cufile")
    assert (ran.code, "--gpu" in ran.err) == (2, True)
