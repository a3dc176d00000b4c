# SPDX-License-Identifier: Apache-2.0
"""Compares the compression throughput of `penstock stage --compress gzip`, `pigz` and `gzip`, on one and two cores.

There are two sets: many objects of some MB, and one large object (where the block sizes of pigz and Penstock matter).
Each contestant writes its files to a folder on the same disk as the originals, with a warm cache. The compression ratio
is held equal: for each set, Penstock uses its lowest level whose output is no larger than that of `pigz -6`. `gzip -t`
inflates the output of every repeat, and the output of one repeat is compared byte by byte. Rates count uncompressed
bytes; CPU seconds cover the whole process tree. The script prints a table; the ratios are the result. pigz and gzip are
Debian's packages.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
LEVELS = (3, 4, 5, 6, 7, 8, 9)
PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def volumes(folder: Path, count: int, size: int) -> None:
    """Smooth int16 fields with noise in the low bits, like simulation output."""
    rng = np.random.default_rng(7)
    folder.mkdir()
    for at in range(count):
        field = rng.poisson(3.0, size // 2).astype("<i2")
        field += (np.sin(np.arange(size // 2) / 5000) * 6).astype("<i2")
        (folder / f"v{at:03d}.raw").write_bytes(field.tobytes())


def timed(argv: list[str], cores: int) -> tuple[float, float]:
    """Wall and CPU seconds of a command that is pinned to `cores` cores."""
    pinned = ["taskset", "-c", ",".join(str(c) for c in sorted(os.sched_getaffinity(0))[:cores]), *argv]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(pinned, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def participants(source: Path, scratch: Path, level: int) -> Iterator[tuple[str, Callable[[Path, int], list[str]]]]:
    names = [str(p) for p in sorted(source.iterdir())]

    def ours(out: Path, _: int) -> list[str]:
        return [PENSTOCK, "stage", str(source), str(out), "--compress", "gzip", "--level", str(level), "--quiet"]

    def pigz(out: Path, cores: int) -> list[str]:
        shutil.copytree(source, out)
        return ["pigz", "-6", "-p", str(cores), *[str(out / Path(n).name) for n in names]]

    def plain(out: Path, cores: int) -> list[str]:
        shutil.copytree(source, out)
        return ["xargs", "-a", str(listing(out, scratch)), "-P", str(cores), "-n", "1", "gzip", "-6"]

    yield f"penstock --level {level}", ours
    yield "pigz -6", pigz
    yield "gzip -6 (xargs -P)", plain


def listing(out: Path, scratch: Path) -> Path:
    path = scratch / "names"
    path.write_text("\n".join(str(p) for p in sorted(out.iterdir())))
    return path


def packed_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.glob("*.gz"))


def level_of(source: Path, scratch: Path) -> int:
    """Penstock's lowest level whose output is no larger than that of `pigz -6`."""
    shutil.copytree(source, scratch / "p")
    subprocess.run(["pigz", "-6", "-r", str(scratch / "p")], check=True)
    want = packed_bytes(scratch / "p")
    shutil.rmtree(scratch / "p")
    for level in LEVELS:
        argv = [
            PENSTOCK,
            "stage",
            str(source),
            str(scratch / "o"),
            "--compress",
            "gzip",
            "--level",
            str(level),
            "--quiet",
        ]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        have = packed_bytes(scratch / "o")
        shutil.rmtree(scratch / "o")
        if have <= want:
            return level
    return LEVELS[-1]


def main() -> None:
    for tool in ("pigz", "gzip", "taskset"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not here: apt-get install pigz gzip util-linux")
    with tempfile.TemporaryDirectory() as text:
        base = Path(text)
        sets = {"48 objects of 4 MB": (48, 4_000_000), "1 object of 192 MB": (1, 192_000_000)}
        for at, (label, (count, size)) in enumerate(sets.items()):
            source = base / f"set{at}"
            volumes(source, count, size)
            content, level = count * size, level_of(source, base)
            for cores in (1, 2):
                rows: dict[str, list[tuple[float, float, int]]] = {}
                for repeat in range(REPEATS):
                    for name, argv in participants(source, base, level):
                        out = base / "out"
                        wall, cpu = timed(argv(out, cores), cores)
                        files = sorted(out.glob("*.gz"))
                        assert len(files) == count, name
                        subprocess.run(["gzip", "-t", *map(str, files)], check=True)
                        if repeat == 0:
                            back = subprocess.run(
                                ["gzip", "-dc", str(files[-1])], check=True, capture_output=True
                            ).stdout
                            assert back == (source / files[-1].name.removesuffix(".gz")).read_bytes(), name
                        rows.setdefault(name, []).append((wall, cpu, packed_bytes(out)))
                        shutil.rmtree(out)
                walls = {name: statistics.median(r[0] for r in of) for name, of in rows.items()}
                cpus = {name: statistics.median(r[1] for r in of) for name, of in rows.items()}
                ours = next(iter(rows))
                for name, of in rows.items():
                    facts = {
                        "set": label,
                        "cores": cores,
                        "who": name,
                        "ratio": round(content / of[0][2], 3),
                        "wall_s": round(walls[name], 3),
                        "cpu_s": round(cpus[name], 3),
                        "content_mb_per_s": round(content / walls[name] / 1e6, 1),
                        "ours_wall_ratio": round(walls[name] / walls[ours], 2),
                        "ours_cpu_ratio": round(cpus[name] / cpus[ours], 2),
                        "load": round(os.getloadavg()[0], 1),
                    }
                    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
