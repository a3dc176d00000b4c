# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock bench storage` from the command line: rows, caches, content, clean-up, and rejected options."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.bench import page_cache
from penstock.bench.importers.elbencho import COLUMNS
from penstock.bench.rows import read_results

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = ("--file-size", "64KiB", "--block-size", "16KiB", "--files", "3", "--threads", "2", "--keep-caches")


@pytest.fixture
def bench(run_cli: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **extra: run_cli("bench", "storage", *arguments, **extra)


def _document(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_storage_pinned_to_one_processor_reports_the_share_of_that_processor(tmp_path: Path) -> None:
    """Reads from the page cache saturate the bench's only processor, even if all others are idle."""
    one = min(os.sched_getaffinity(0))
    program = Path(sys.executable).with_name("penstock")
    flags = ("--file-size", "1MiB", "--block-size", "4KiB", "--files", "8", "--threads", "2", "--keep-caches")
    limit = ("--phases", "mkdirs,write,read", "--repeat-io", "--no-fsync", "--duration", "2s", "--json")
    done = subprocess.run(
        [str(program), "bench", "storage", str(tmp_path / "new"), *flags, *limit],
        preexec_fn=lambda: os.sched_setaffinity(0, {one}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)["rows"][-1]
    assert (read["operation"], read["cores"]) == ("READ", 1)
    assert read["last"]["cpu"] > 0.85


def test_storage_all_phases_give_a_row_each_and_leave_nothing(bench: Callable[..., Any], tmp_path: Path) -> None:
    place = tmp_path / "new"
    rows = _document(bench(place, *_SMALL, "--verify", "5", "--json", "-o", tmp_path / "out"))["rows"]
    assert [row["operation"] for row in rows] == ["MKDIRS", "WRITE", "READ", "STAT", "RMFILES", "RMDIRS"]
    wrote, read = rows[1], rows[2]
    for row in (wrote, read):
        assert (row["last"]["entries"], row["last"]["ios"], row["last"]["bytes"]) == (6, 24, 6 * 65536)
        assert 0 < row["first"]["time_s"] <= row["last"]["time_s"]
        assert sum(count for _, count in row["io_latency"]["buckets"]) == 24
        percentiles = [row["io_latency"]["percentiles_us"][name] for name in ("50", "90", "95", "99", "99.9")]
        assert percentiles == sorted(percentiles)
    assert read["raw"]["verified_bytes"] == str(6 * 65536)
    assert not place.exists()
    kept = read_results(tmp_path / "out")
    assert [row.operation for row in kept.rows] == [row["operation"] for row in rows]
    assert kept.spec["bench"] == "storage"


def test_storage_write_now_and_read_later(bench: Callable[..., Any], tmp_path: Path) -> None:
    assert bench(tmp_path, *_SMALL, "--phases", "mkdirs,write", "--verify", "5").code == 0
    read = _document(bench(tmp_path, *_SMALL, "--phases", "read,stat", "--verify", "5", "--json"))["rows"]
    assert read[0]["raw"]["verified_bytes"] == str(6 * 65536)
    other = bench(tmp_path, *_SMALL, "--phases", "read", "--verify", "6")
    assert other.code == 1
    assert "differs from the written content" in other.err
    again = bench(tmp_path, *_SMALL, "--phases", "write")
    assert again.code != 0
    assert "left from an earlier run" in again.err
    assert bench(tmp_path, *_SMALL, "--phases", "delete").code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", [("--engine", "threads"), ("--depth", "4")])
@pytest.mark.parametrize("order", [(), ("--random",)])
def test_storage_content_comes_back_by_every_engine_and_order(
    bench: Callable[..., Any], tmp_path: Path, engine: tuple[str, ...], order: tuple[str, ...]
) -> None:
    rows = _document(bench(tmp_path / "new", *_SMALL, *engine, *order, "--verify", "1", "--json"))["rows"]
    assert rows[2]["raw"]["verified_bytes"] == str(6 * 65536)
    assert rows[2]["random"] is bool(order)


@pytest.mark.parametrize(("percent", "low", "high"), [(0, 0.99, 1.02), (60, 0.35, 0.50)])
def test_storage_content_compresses_as_asked(
    bench: Callable[..., Any], tmp_path: Path, percent: int, low: float, high: float
) -> None:
    size = ("--file-size", "2MiB", "--files", "1", "--keep-caches")
    assert bench(tmp_path, *size, "--phases", "write", "--compressible", percent).code == 0
    content = next(tmp_path.rglob("f0000000")).read_bytes()
    assert low <= len(zlib.compress(content)) / len(content) <= high


def test_storage_csv_is_elbencho_s_and_is_appended_to(bench: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    for threads in ("1", "2"):
        ran = bench(tmp_path / "new", *_SMALL, "--threads", threads, "--csv", file, "--phases", "write,read,delete")
        assert ran.code == 0, ran.err
    with file.open(newline="") as text:
        lines = list(csv.DictReader(text))
    assert list(lines[0]) == COLUMNS
    result = [(line["operation"], line["threads"], line["files"], line["entries [last]"]) for line in lines]
    assert result[:4] == [
        ("WRITE", "1", "3", "3"),
        ("READ", "1", "3", "3"),
        ("RMFILES", "1", "3", "3"),
        ("RMDIRS", "1", "3", "1"),
    ]
    assert len(lines) == 8


def test_storage_nag_sweep_has_all_points_and_says_its_scale(bench: Callable[..., Any], tmp_path: Path) -> None:
    from penstock.bench.storage import nag_beeond

    points = nag_beeond(scale=None, room_bytes=1 << 30)
    assert [(p.file_size_bytes >> 10, p.threads) for p in points] == [
        (size, threads) for size in (256, 1024, 4096, 65536) for threads in (1, 8, 32, 128)
    ]
    assert all(point.block_size_bytes == point.file_size_bytes for point in points)
    assert all(p.bytes <= 1 << 30 or p.files == 1 for p in points)
    assert [(p.files, p.of_files) for p in points[:2]] == [(4096, 12800), (512, 1600)]
    assert all(p.of_files is None for p in nag_beeond(scale=1.0, room_bytes=0))
    bad = bench(tmp_path / "new", "--sweep", "nag-beeond", "--scale", "2")
    assert (bad.code, (tmp_path / "new").exists()) == (2, False)


def test_storage_open_loop_counts_from_the_intended_start(bench: Callable[..., Any], tmp_path: Path) -> None:
    open_loop = ("--arrivals", "constant", "--rate", "300", "--no-fsync")
    rows = _document(bench(tmp_path / "new", *_SMALL, *open_loop, "--phases", "write,read,delete", "--json"))["rows"]
    read = next(row for row in rows if row["operation"] == "READ")
    assert read["open_loop_per_s"] == 300
    assert read["io_latency"]["mean_us"] >= read["service_latency"]["mean_us"]
    # 24 requests at 300 a second: the last is due after 76 ms.
    assert read["last"]["time_s"] >= 0.07


def test_storage_time_limit_ends_a_phase_and_stands_in_its_row(bench: Callable[..., Any], tmp_path: Path) -> None:
    limit = ("--duration", "200ms", "--repeat-io", "--no-fsync")
    rows = _document(bench(tmp_path / "new", *_SMALL, *limit, "--phases", "write,read,delete", "--json"))["rows"]
    assert [row["raw"].get("ended_by") for row in rows[:2]] == ["time", "time"]
    assert rows[0]["raw"]["durable"].startswith("not durable")


def test_storage_phases_after_a_write_that_a_limit_cut_are_not_run(bench: Callable[..., Any], tmp_path: Path) -> None:
    place, small = (
        tmp_path / "new",
        ("--file-size", "64KiB", "--keep-caches", "--files", "8", "--verify", "7", "--json"),
    )
    rows = _document(bench(place, *small, "--io-limit", "3"))["rows"]
    assert [row["operation"] for row in rows] == ["MKDIRS", "WRITE"]
    assert rows[-1]["raw"]["not_run"] == "read,stat,delete"
    assert not place.exists()
    whole = _document(bench(place, *small, "--io-limit", "64", "--repeat-io"))["rows"]
    assert [row["operation"] for row in whole][1:4] == ["WRITE", "READ", "STAT"]


def test_storage_file_is_read_after_a_write_that_a_limit_cut_unless_content_is_compared(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    cut = (file, "--block-size", "64KiB", "--io-limit", "3", "--phases", "write,read", "--overwrite-device", "--json")
    assert [row["operation"] for row in _document(bench(*cut))["rows"]] == ["WRITE", "READ"]
    [wrote] = _document(bench(*cut, "--verify", "7"))["rows"]
    assert wrote["raw"]["not_run"] == "read"


def test_storage_interrupted_run_takes_its_files_with_it(tmp_path: Path) -> None:
    place = tmp_path / "new"
    program = [str(Path(sys.executable).with_name("penstock")), "bench", "storage", str(place), *_SMALL]
    running = subprocess.Popen([*program, "--repeat-io", "--duration", "60"], stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 30
        while not list(place.rglob("f0000000")) and time.monotonic() < until:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        _, result = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 130, result
    assert not place.exists()


def test_storage_folder_of_others_is_refused_and_untouched(bench: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    ran = bench(tmp_path, *_SMALL)
    assert ran.code != 0
    assert "is not empty" in ran.err
    assert "thesis.tex" in ran.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_storage_path_too_small_is_refused_with_the_numbers(bench: Callable[..., Any], tmp_path: Path) -> None:
    ran = bench(tmp_path / "new", "--file-size", "1TiB", "--block-size", "1MiB", "--files", "1000")
    assert ran.code == 3
    assert "free" in ran.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--depth", "4", "--engine", "threads"), "io_uring"),
        (("--block-size", "128KiB"), "block"),
        (("--direct", "--file-size", "1000B", "--block-size", "1000B"), "512"),
        (("--threads", "0"), "--threads"),
        (("--phases", "write,fly"), "fly"),
        (("--rate", "5"), "--rate"),
        (("--arrivals", "poisson"), "--rate"),
        (("--repeat-io",), "--duration"),
        (("--repeats", "2", "--phases", "write"), "delete"),
        (("--start-at", "5"), "start-at"),
        (("--start-at", "5", "--phases", "write"), "--start-at"),
        (("--threads", "4096", "--block-size", "1GiB", "--file-size", "1GiB"), "the machine has"),
    ],
)
def test_storage_impossible_spec_is_refused_and_cleaned_up(
    bench: Callable[..., Any], tmp_path: Path, flags: tuple[str, ...], word: str
) -> None:
    ran = bench(tmp_path / "new", *_SMALL, *flags)
    assert ran.code in {1, 2, 3}
    assert word in ran.err
    assert not (tmp_path / "new").exists()


def test_storage_file_write_needs_flag(bench: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * (1 << 20))
    rows = _document(bench(file, "--block-size", "64KiB", "--threads", "3", "--keep-caches", "--json"))["rows"]
    assert [(row["operation"], row["path_type"], row["last"]["bytes"]) for row in rows] == [("READ", "file", 1 << 20)]
    refused = bench(file, "--phases", "write", "--keep-caches")
    assert refused.code == 2
    assert "--overwrite-device" in refused.err
    assert file.read_bytes() == b"x" * (1 << 20)
    wrote = bench(file, "--phases", "write,read", "--block-size", "64KiB", "--overwrite-device", "--verify", "3")
    assert wrote.code == 0, wrote.err


def test_caches_that_may_not_be_dropped_leave_warm_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "folder"
    locked.mkdir()
    monkeypatch.setattr(page_cache, "_DROP", locked)  # writing to a folder fails, even as root
    monkeypatch.setattr(page_cache, "_IN_MEMORY", set())
    states = {w: page_cache.drop(tmp_path, wanted=True, direct=False, was_written=w) for w in (True, False)}
    assert (states[True].state, states[False].state) == ("warm", "unknown")
    assert "cannot be dropped" in states[True].how
    assert page_cache.drop(tmp_path, wanted=True, direct=True, was_written=True).state == "bypassed"


def test_caches_memory_file_system_is_never_cold() -> None:
    assert page_cache.file_system_of(Path("/proc/self")) == "proc"
    assert page_cache.drop(Path("/dev/shm"), wanted=True, direct=False, was_written=True).state == "warm"


@pytest.mark.needs_root
def test_storage_file_system_without_o_direct_is_refused(bench: Callable[..., Any], tmp_path: Path) -> None:
    place = tmp_path / "ram"
    place.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "none", str(place)], check=True)
    try:
        ran = bench(place / "new", *_SMALL, "--direct")
        assert ran.code == 2
        assert "does not support O_DIRECT" in ran.err
        assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.needs_root
def test_storage_block_device_write_needs_flag(bench: Callable[..., Any], tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(os.urandom(4 << 20))
    device = subprocess.run(
        ["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        rows = _document(bench(device, "--block-size", "64KiB", "--direct", "--depth", "4", "--json"))["rows"]
        assert [(row["path_type"], row["last"]["bytes"], row["cache"]["state"]) for row in rows] == [
            ("blockdev", 4 << 20, "cold")
        ]
        before = image.read_bytes()
        assert bench(device, "--phases", "write").code == 2
        assert image.read_bytes() == before
        wrote = bench(
            device, "--phases", "write,read", "--overwrite-device", "--verify", "2", "--direct", "--block-size", "64KiB"
        )
        assert wrote.code == 0, wrote.err
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
