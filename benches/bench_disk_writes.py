# SPDX-License-Identifier: Apache-2.0
"""Compares ways to write a staged file: page cache or O_DIRECT, with or without preallocation, at several write sizes.

    .venv/bin/python benches/bench_disk_writes.py [FOLDER] [--files 32] [--bytes 16777216] [--repeats 3]
        [--writes 65536 524288]

Four threads write the files, as objects arrive. Cached writes use each size in `--writes`; O_DIRECT writes use 512 KiB.
The files are synced and then all are read once, as a first epoch does. Each repeat runs all variants in a random order,
and ratios are relative to the first variant. Decisions 0415 and 0420 are based on this. Rows go to
runs/bench/disk.jsonl.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

PIECE = 512 << 10
THREADS = 4
KEEP_SIZE = 1
ROOT = Path(__file__).resolve().parent.parent


class Way(NamedTuple):
    """One variant of writing a file."""

    is_direct: bool
    is_reserved: bool
    write_bytes: int

    def __str__(self) -> str:
        words = ["direct" if self.is_direct else "cached", "reserved" if self.is_reserved else ""]
        return ", ".join([word for word in words if word] + [f"{self.write_bytes >> 10} KiB"])


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def reserve(file: int, size: int) -> None:
    """Calls fallocate(2) directly: glibc's posix_fallocate writes zeros on file systems that do not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)):
        raise OSError(ctypes.get_errno(), "fallocate")


def write(path: Path, way: Way, body: mmap.mmap) -> None:
    size = len(body)
    file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if way.is_direct else 0), 0o600)
    if way.is_reserved:
        reserve(file, size)
    content = memoryview(body)
    for at in range(0, size, way.write_bytes):
        os.pwritev(file, [content[at : at + way.write_bytes]], at)
    os.fsync(file)
    os.close(file)


def read(path: Path, size: int) -> None:
    into = mmap.mmap(-1, PIECE)
    file = os.open(path, os.O_RDONLY)
    for at in range(0, size, PIECE):
        os.preadv(file, [into], at)
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--writes", type=int, nargs="+", default=[64 << 10, PIECE])
    chosen = parser.parse_args()
    size = chosen.bytes // PIECE * PIECE
    body = mmap.mmap(-1, size)
    body.write(random.Random(3).randbytes(size))
    ways = [
        Way(is_direct, is_reserved, write_bytes)
        for is_direct, sizes in ((False, chosen.writes), (True, [PIECE]))
        for write_bytes in sizes
        for is_reserved in (False, True)
    ]
    rows: dict[Way, list[tuple[float, float, float, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(dir=chosen.folder) as inside, ThreadPoolExecutor(THREADS) as pool:
        for turn in range(chosen.repeats + 1):
            for way in random.Random(turn).sample(ways, len(ways)):
                folder = Path(inside) / "files"
                folder.mkdir()
                paths = [folder / f"{at}" for at in range(chosen.files)]
                os.sync()
                begin, used = time.monotonic(), cpu_s()
                list(pool.map(partial(write, way=way, body=body), paths))
                written, used_writing = time.monotonic() - begin, cpu_s() - used
                begin, used = time.monotonic(), cpu_s()
                list(pool.map(lambda path: read(path, size), paths))
                spent = (written, used_writing, time.monotonic() - begin, cpu_s() - used)
                shutil.rmtree(folder)
                if turn:
                    rows[way].append(spent)
    gigabytes = size * chosen.files / 1e9
    print(f"{chosen.files} files of {size:,} bytes, {chosen.repeats} repeats, load {os.getloadavg()[0]:.1f}")
    print("| way | write + fsync, wall | CPU | read once, wall | CPU | write + fsync, CPU-s/GB |")
    print("|---|---|---|---|---|---|")
    base = [statistics.median(column) for column in zip(*rows[ways[0]], strict=True)]
    out = ROOT / "runs/bench/disk.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        for way, spent in rows.items():
            medians = [statistics.median(column) for column in zip(*spent, strict=True)]
            ratios = " | ".join(f"{have / of:.2f}" for have, of in zip(medians, base, strict=True))
            print(f"| {way} | {ratios} | {medians[1] / gigabytes:.3f} |")
            row = {"schema_version": 1, "when_s": round(time.time()), "way": str(way), "load": os.getloadavg()[0]}
            file.write(json.dumps(row | {"files": chosen.files, "bytes": size, "spent": spent}) + "\n")


if __name__ == "__main__":
    main()
