# SPDX-License-Identifier: Apache-2.0
"""Measures what byte-plane copies in the cache cost in the first epoch, and save in later epochs. See decision 0531.

    .venv/bin/python benches/bench_transcode.py [VOLUMES] [--names 64] [--epochs 8] [--repeats 3] [--json]

VOLUMES is a folder of gzip'd volumes of 128^3 voxels; without it, four are made. The variants run in turns, each in its
own process with its own cache. The results are CPU-ms and wall-ms per sample of the first epoch and of the median later
epoch, and the size of the cache. Only epochs from the fourth on count as later ones, since copies were still being made
when the second epoch's objects were fetched. The bytes of all batches are hashed, and the hashes must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.datasets import cosmoflow

WAYS = ("never", "auto", "always")

EPOCHS = """
import hashlib, json, os, resource, sys, time
import penstock
url, folder, transcode, epochs, hashes = sys.argv[1:]
dataset = penstock.open(url, records_per_object=1).fields(x=penstock.tensor("int16", (128, 128, 128, 4)))
loader = penstock.Loader(dataset.shuffle(17).cache(folder, transcode=transcode), batch_size=4, rank=0, world=1)
digest, rows = hashlib.sha256(), []
for _ in range(int(epochs)):
    before, began, samples = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0
    for batch in loader:
        samples += len(batch["x"])
        if hashes == "True":
            digest.update(batch["x"].tobytes())
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    rows.append((1e3 * cpu_s / samples, 1e3 * (time.perf_counter() - began) / samples))
print(json.dumps({"epochs": rows, "sha256": digest.hexdigest(), "said": loader.report()["transcoding"][0]}))
"""


def run(url: Path, transcode: str, epochs: int, *, hashes: bool) -> dict[str, Any]:
    """Runs one process over a new cache; returns CPU and wall ms per sample of each epoch, and the final cache size."""
    with tempfile.TemporaryDirectory(dir=url.parent) as folder:
        argv = [sys.executable, "-c", EPOCHS, str(url), folder, transcode, str(epochs), str(hashes)]
        result: dict[str, Any] = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
        result["cache_bytes"] = sum(path.stat().st_size for path in Path(folder).rglob("objects/*/*"))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("volumes", type=Path, nargs="?")
    parser.add_argument("--names", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    output = parser.parse_args()
    if output.epochs < 4:
        parser.error("--epochs: 4 at least")
    beside = output.volumes.parent if output.volumes else None
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        volumes = output.volumes
        if volumes is None:
            volumes = Path(folder) / "volumes"
            cosmoflow.generate(volumes, samples=4, voxels=128, seed=1)
        files = sorted(volumes.iterdir())
        linked = Path(folder) / "linked"
        linked.mkdir()
        for number in range(output.names):
            os.link(files[number % len(files)], linked / f"{number:05d}.tfrecord.gz")
        same = len({run(linked, way, 2, hashes=True)["sha256"] for way in WAYS}) == 1
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for repeat in range(output.repeats):
            for way in WAYS if repeat % 2 == 0 else reversed(WAYS):
                found[way].append(run(linked, way, output.epochs, hashes=False))
        stored = sum(path.stat().st_size for path in linked.iterdir())
    rows = []
    for way, runs in found.items():
        first = [one["epochs"][0] for one in runs]
        later = [epoch for one in runs for epoch in one["epochs"][3:]]
        rows.append(
            {
                "transcode": way,
                "first_cpu_ms": statistics.median(cpu for cpu, _ in first),
                "later_cpu_ms": statistics.median(cpu for cpu, _ in later),
                "later_wall_ms": statistics.median(wall for _, wall in later),
                "bytes_of_stored": runs[0]["cache_bytes"] / stored,
                "said": runs[0]["said"],
            }
        )
    if output.json:
        print(json.dumps({"same": same, "load": os.getloadavg()[0], "rows": rows}))
    else:
        print("| transcode | first epoch, CPU ms | later, CPU ms | later, wall ms | bytes in the cache of stored |")
        for row in rows:
            print(
                f"| {row['transcode']} | {row['first_cpu_ms']:.1f} | {row['later_cpu_ms']:.1f} | {row['later_wall_ms']:.1f} |"
                f" {row['bytes_of_stored']:.2f} |"
            )
        print(f"same bytes: {same}; load {os.getloadavg()[0]:.1f}; auto said: {rows[1]['said']}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
