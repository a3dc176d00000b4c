# SPDX-License-Identifier: Apache-2.0
"""Compares `penstock bench storage` with fio: CPU per I/O in memory, where the tool's cost shows, and disk I/O rates.

    python benches/peers/bench_fio.py FOLDER_IN_MEMORY FOLDER_ON_DISK [--seconds 3] [--rounds 3]

Both tools read or write the same file with the same engine, depth, size and order, in turns (ABBA), for a fixed time.
fio's CPU is that of the whole process by wait4, minus that of a run that does nothing; it includes io_uring's kernel
workers, which fio's own `usr_cpu` leaves out. Caches are dropped before each buffered disk run, which needs root. With
the defaults it takes about four minutes.
Prints a Markdown table that starts with the ratios, Penstock over fio, and then lists missed targets: CPU at most 1.1
in memory, rate at least 1 on disk. fio comes from apt (`apt-get install fio`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

SIZE = 512 << 20
MAX_CPU, MIN_RATE = 1.1, 1.0
# place, operation, order, engine, depth, direct, block
CASES = [
    ("tmpfs", "read", "random", "threads", 1, False, 4096),
    ("tmpfs", "write", "random", "threads", 1, False, 4096),
    ("tmpfs", "read", "random", "io_uring", 32, False, 4096),
    ("tmpfs", "write", "random", "io_uring", 32, False, 4096),
    ("page cache", "read", "random", "threads", 1, False, 4096),
    ("page cache", "read", "random", "io_uring", 32, False, 4096),
    ("page cache", "read", "sequential", "threads", 1, False, 1 << 20),
    ("disk", "read", "random", "threads", 1, True, 4096),
    ("disk", "read", "random", "io_uring", 32, True, 4096),
    ("disk", "read", "sequential", "threads", 1, True, 1 << 20),
    ("disk", "read", "sequential", "io_uring", 8, True, 1 << 20),
    ("disk", "write", "sequential", "threads", 1, True, 1 << 20),
    ("disk", "write", "random", "io_uring", 32, True, 4096),
    ("disk, buffered", "read", "random", "threads", 1, False, 4096),
    ("disk, buffered", "read", "sequential", "threads", 1, False, 1 << 20),
    ("disk, buffered", "write", "random", "threads", 1, False, 4096),
    ("disk, buffered", "write", "sequential", "threads", 1, False, 1 << 20),
]


def ran(argv: list[str]) -> tuple[str, float]:
    """Runs a command; returns its stdout and the CPU seconds of all its threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return out, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(file: Path, case: tuple, seconds: float) -> tuple[int, float, float]:
    """I/Os, I/Os per second, and CPU nanoseconds per I/O. CPU is that of the measured phase, without Python's start."""
    _, operation, order, engine, depth, direct, block = case
    argv = [
        *[str(Path(sys.executable).with_name("penstock")), "bench", "storage", str(file), "--phases", operation],
        *[
            "--block-size",
            f"{block}B",
            "--depth",
            str(depth),
            "--engine",
            engine,
            "--duration",
            f"{seconds}s",
            "--repeat-io",
        ],
        *["--keep-caches", "--no-fsync", "--overwrite-device", "--json"],
        *(["--random"] if order == "random" else []),
        *(["--direct"] if direct else []),
    ]
    row = json.loads(ran(argv)[0])["rows"][0]
    ios = row["last"]["ios"]
    return ios, ios / row["last"]["time_s"], row["cpu_s"] / ios * 1e9


def fio(file: Path, case: tuple, seconds: float) -> tuple[int, float, float]:
    _, operation, order, engine, depth, direct, block = case
    argv = [
        *[
            "fio",
            "--name=x",
            f"--filename={file}",
            f"--rw={'rand' if order == 'random' else ''}{operation}",
            f"--bs={block}",
        ],
        *[f"--size={SIZE}", f"--ioengine={'psync' if engine == 'threads' else engine}", f"--iodepth={depth}"],
        *[f"--direct={int(direct)}", "--thread", "--invalidate=0", "--output-format=json"],
    ]
    out, cpu = ran([*argv, "--time_based", f"--runtime={seconds}"])
    job = json.loads(out)["jobs"][0]
    ios = job[operation]["total_ios"]
    return ios, ios / (job["job_runtime"] / 1000), (cpu - _idle(tuple(argv))) / ios * 1e9


@functools.cache
def _idle(argv: tuple[str, ...]) -> float:
    """CPU seconds of an fio run with a single I/O."""
    return ran([*argv, "--number_ios=1"])[1]


def filled(folder: Path) -> Path:
    """Returns the file that all cases of a folder use; makes it at the first call."""
    file = folder / "penstock-bench-fio"
    if not file.exists() or file.stat().st_size != SIZE:
        with file.open("wb") as out:
            for _ in range(SIZE >> 20):
                out.write(os.urandom(1 << 20))
            out.flush()
            os.fsync(out.fileno())
    return file


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("memory", type=Path)
    parse.add_argument("disk", type=Path)
    parse.add_argument("--seconds", type=float, default=1.5)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--cases", help="numbers of cases, such as 0,3 (all)")
    given = parse.parse_args()
    version = subprocess.run(["fio", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    load = os.getloadavg()[0]
    print(f"{version}, {given.rounds} rounds of {given.seconds:g} s each, load {load:.1f} at the start\n")
    print("| where | what | CPU an I/O, ours over fio's | rate, ours over fio's | ours | fio |")
    print("|---|---|---:|---:|---|---|")
    missed = []
    picked = [int(number) for number in given.cases.split(",")] if given.cases else range(len(CASES))
    try:
        for case in (CASES[number] for number in picked):
            place, operation, order, engine, depth, direct, block = case
            file = filled(given.memory if place == "tmpfs" else given.disk)
            found: dict[str, list[tuple[int, float, float]]] = {"ours": [], "fio": []}
            for number in range(given.rounds):
                for tool in ("ours", "fio") if number % 2 == 0 else ("fio", "ours"):
                    if place == "disk, buffered":
                        os.sync()
                        Path("/proc/sys/vm/drop_caches").write_text("3\n")
                    found[tool].append((ours if tool == "ours" else fio)(file, case, given.seconds))
            pairs = list(zip(found["ours"], found["fio"], strict=True))
            cpu, rate = (statistics.median(a[at] / b[at] for a, b in pairs) for at in (2, 1))
            result = [
                f"{statistics.median(f[1] for f in found[tool]):,.0f}/s, {statistics.median(f[2] for f in found[tool]):,.0f} ns"
                for tool in ("ours", "fio")
            ]
            what = f"{operation} {order}, {block >> 10} KiB, {engine}, depth {depth}{', direct' if direct else ''}"
            print(f"| {place} | {what} | {cpu:.2f} | {rate:.2f} | {result[0]} | {result[1]} |", flush=True)
            if (cpu > MAX_CPU) if place in ("tmpfs", "page cache") else (rate < MIN_RATE):
                missed.append(f"{place}, {what}")
    finally:
        for folder in (given.memory, given.disk):
            (folder / "penstock-bench-fio").unlink(missing_ok=True)
    print("\nmissed: " + ("; ".join(missed) or "nothing"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
