# SPDX-License-Identifier: Apache-2.0
"""Process of one participant: reads commands as JSON lines from stdin, runs passes with a driver, and writes results to
stdout.

Run by path, `python -P runner.py`, with the interpreter of the participant's environment. This script imports only the
standard library, never penstock. A driver is a file in this folder that defines

    DISTRIBUTIONS                      distributions whose versions are reported
    begin(task) -> None                called once, and timed; may convert the dataset into task["work"]
    batches(task) -> iterator          one pass: dicts of field -> array (NumPy, torch), or list of bytes
    report() -> dict                   optional: details of the last pass
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PAGE = 4096
DIGESTS = 1 << 128


def load(name: str) -> ModuleType:
    """Imports the driver `name` under another module name: `webdataset.py` must not hide the package webdataset."""
    spec = importlib.util.spec_from_file_location(f"_driver_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    driver = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = driver  # worker processes need it to unpickle objects that the driver defines
    spec.loader.exec_module(driver)
    return driver


def _living_s() -> float:
    """CPU seconds of all running descendants. RUSAGE_CHILDREN covers only descendants that have ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        spent[int(entry.name)] = sum(map(int, fields[11:15])) / tick
    ours, total = {os.getpid()}, 0.0
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in ours} - ours
        total += sum(spent[pid] for pid in below)
        ours |= below
        grown = bool(below)
    return total


def cpu_s() -> float:
    """CPU seconds that this process and all its descendants have used so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + _living_s()


def evict(paths: list[str]) -> None:
    """Drops files from the page cache. For a folder, drops all files below it."""
    for path in paths:
        place = Path(path)
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _rows(column: Any) -> Any:
    """Converts a column so that its rows can be indexed and viewed as bytes."""
    return column.numpy() if hasattr(column, "numpy") else column


class Seen:
    """Totals over the batches of a pass."""

    def __init__(self, task: dict[str, Any]) -> None:
        fields = task["fields"]
        self.images = sorted(name for name in fields if fields[name]["kind"] == "image")
        self.others = sorted(name for name in fields if name not in self.images)
        self.samples = self.size_bytes = self.digest = 0
        self.brightness = self.values = 0.0

    def touch(self, batch: dict[str, Any]) -> None:
        """Counts a batch and reads one byte of each memory page, because a lazily mapped page costs nothing until it is
        read.
        """
        for number, name in enumerate((*self.images, *self.others)):
            column = _rows(batch[name])
            if number == 0:
                self.samples += len(column)
            if isinstance(column, list):
                self.size_bytes += sum(len(row) for row in column)
                continue
            self.size_bytes += column.nbytes
            if column.nbytes:
                flat = column.reshape(-1)
                flat[:: max(1, PAGE // column.itemsize)].sum()

    def hash(self, batch: dict[str, Any]) -> None:
        """Adds each sample's hash to a sum that does not depend on the order. For images, adds the brightness of each
        image instead of the hash.
        """
        columns = {name: _rows(batch[name]) for name in (*self.images, *self.others)}
        for row in range(len(next(iter(columns.values())))):
            seen = hashlib.blake2b(digest_size=16)
            for name in self.others:
                value = columns[name][row]
                seen.update(value if isinstance(value, bytes | memoryview) else bytes(memoryview(value.tobytes())))
            self.digest = (self.digest + int.from_bytes(seen.digest(), "little")) % DIGESTS
        for name in self.images:
            self.brightness += float(columns[name].mean(dtype="float64")) * len(columns[name])
            self.values += len(columns[name])


def one_pass(driver: ModuleType, task: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    """Runs one pass and returns its cost. The clock starts before the iterator is created."""
    if order.get("evict"):
        evict([*task["files"], task["work"]])
    seen, first = Seen(task), None
    used, began = cpu_s(), time.perf_counter()
    made: Iterator[dict[str, Any]] = iter(driver.batches(task))
    for batch in made:
        if first is None:
            first = time.perf_counter() - began
        seen.touch(batch)
        if order.get("hash"):
            seen.hash(batch)
    wall = time.perf_counter() - began
    answer = {
        "wall_s": wall,
        "cpu_s": cpu_s() - used,
        "first_batch_s": first,
        "samples": seen.samples,
        "bytes": seen.size_bytes,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "report": driver.report() if hasattr(driver, "report") else {},
    }
    if order.get("hash"):
        answer["digest"] = f"{seen.digest:032x}"
        answer["brightness"] = seen.brightness / seen.values if seen.values else None
    return answer


def begin(driver: ModuleType, task: dict[str, Any]) -> dict[str, Any]:
    """Lets the driver prepare itself, and returns the cost of the preparation."""
    used, began = cpu_s(), time.perf_counter()
    driver.begin(task)
    converted = sum(file.stat().st_size for file in Path(task["work"]).rglob("*") if file.is_file())
    return {
        "begin_s": time.perf_counter() - began,
        "begin_cpu_s": cpu_s() - used,
        "converted_bytes": converted,
        "versions": {name: importlib.metadata.version(name) for name in driver.DISTRIBUTIONS},
    }


def main() -> int:
    """Runs the commands from stdin until stdin ends."""
    # Libraries may print, so their output goes to stderr, and stdout carries only results.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.append(str(Path(__file__).parent))  # last, because drivers are named like their libraries
    driver: ModuleType | None = None
    task: dict[str, Any] = {}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "begin":
                task = order["task"]
                os.sched_setaffinity(0, task["cores"])
                driver = load(order["driver"])
                answer = begin(driver, task)
            else:
                assert driver is not None
                answer = one_pass(driver, task, order)
        except Exception as error:
            traceback.print_exc()
            # A worker's error contains its whole traceback, and its last line is the error itself.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answer = {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
