# SPDX-License-Identifier: Apache-2.0
"""Compares our loader with the standard library's gzip and NumPy: both read gzip'd TFRecord volumes into batches.

Rows go to runs/bench/feed.jsonl. The result is the ratio. Both contestants read the same files from a warm cache, and
their bytes are compared first. Our loader checks every CRC-32C. The other side uses our record decoder, which also
checks them, because it is faster. CPU seconds cover all threads of the process. The comparison with the main
peers (tf.data, DALI, WebDataset) is in benches/peers/feed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import penstock
from penstock import _native
from penstock.bench import results
from penstock.datasets import cosmoflow

if TYPE_CHECKING:
    from collections.abc import Callable

VOXELS, SAMPLES, BATCH, REPEATS, WARM_UPS = 128, 12, 4, 5, 1
SHAPE = (VOXELS, VOXELS, VOXELS, 4)
ROOT = Path(__file__).resolve().parent.parent


def loader_epoch(folder: Path) -> Callable[[Callable[[Any], None]], None]:
    """Returns a function that runs one epoch of our loader over the files."""
    dataset = penstock.open(folder.as_uri() + "/", records_per_object=1).fields(x=penstock.tensor("int16", SHAPE))
    loader = penstock.Loader(dataset, batch_size=BATCH, rank=0, world=1)

    def epoch(look: Callable[[Any], None]) -> None:
        for batch in loader:
            for row in batch["x"]:
                look(row)

    return epoch


def standard_library_epoch(folder: Path) -> Callable[[Callable[[Any], None]], None]:
    """Returns a function that reads the same files with the standard library and NumPy, on one thread."""
    files = sorted(folder.iterdir())

    def epoch(look: Callable[[Any], None]) -> None:
        for at in range(0, len(files), BATCH):
            rows = []
            for file in files[at : at + BATCH]:
                (sample,) = _native.decode_tfrecord(gzip.decompress(file.read_bytes()))
                rows.append(np.frombuffer(sample["x"], "<i2").reshape(SHAPE))
            for row in np.stack(rows):
                look(row)

    return epoch


def cpu_s() -> float:
    """User and system CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def quartiles(values: list[float]) -> tuple[float, float]:
    """Median and interquartile range."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, high - low


def main() -> int:
    """Run, print, and append the rows."""
    if _native.__profile__ != "release":
        print("a debug build may not save rows: run `make bench`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = Path(temporary)
        made = cosmoflow.generate(folder, samples=SAMPLES, voxels=VOXELS, seed=1)
        participants = {"penstock": loader_epoch(folder), "standard library": standard_library_epoch(folder)}
        digests = {}
        for name, epoch in participants.items():
            digest = hashlib.sha256()
            epoch(lambda row, digest=digest: digest.update(row))
            digests[name] = digest.hexdigest()
        if len(set(digests.values())) != 1:
            print(f"the contestants read different bytes: {digests}", file=sys.stderr)
            return 1
        wall: dict[str, list[float]] = {name: [] for name in participants}
        cpu: dict[str, list[float]] = {name: [] for name in participants}
        for repeat in range(WARM_UPS + REPEATS):
            for name, epoch in participants.items():
                began, used = time.perf_counter(), cpu_s()
                epoch(lambda _row: None)
                if repeat >= WARM_UPS:
                    wall[name].append((time.perf_counter() - began) / SAMPLES)
                    cpu[name].append((cpu_s() - used) / SAMPLES)
    spec = {"bench": "feed", "voxels": VOXELS, "samples": SAMPLES, "batch": BATCH, "codec": "gzip", "source": "file"}
    common = {
        "schema_version": 1,
        "spec": spec,
        "spec_hash": results.spec_hash(spec),
        "provenance": msgspec.to_builtins(results.provenance()),
        "cache": "page cache warm: each contestant read every file once before",
        "warm_ups": WARM_UPS,
        "repeats": REPEATS,
        "bytes_stored": made.bytes_stored,
        "bytes_delivered": made.bytes_inflated,
        "sha256": next(iter(digests.values())),
    }
    out = ROOT / "runs/bench/feed.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        for name in participants:
            (wall_s, wall_iqr_s), (cpu_s_, cpu_iqr_s) = quartiles(wall[name]), quartiles(cpu[name])
            rate = made.bytes_inflated / SAMPLES / wall_s
            print(
                f"{name:>16}: {cpu_s_ * 1e3:6.1f} ms CPU a sample (IQR {cpu_iqr_s * 1e3:.1f}), "
                f"{wall_s * 1e3:6.1f} ms wall (IQR {wall_iqr_s * 1e3:.1f}), {rate / 1e9:.2f} GB/s delivered"
            )
            row = {"contestant": name, "cpu_s": cpu[name], "wall_s": wall[name]}
            file.write(json.dumps({**common, **row}) + "\n")
    print(
        f"ratio, standard library over penstock: {statistics.median(cpu['standard library']) / statistics.median(cpu['penstock']):.1f}x CPU, "
        f"{statistics.median(wall['standard library']) / statistics.median(wall['penstock']):.1f}x wall"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
