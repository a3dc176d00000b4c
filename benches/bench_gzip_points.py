# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of reading one record of a gzip'd shard, for which the whole shard is inflated. See decision 0519.

    python benches/bench_gzip_points.py [--records 1024] [--bytes 65536] [--json]

One shard is stored twice: plain with an index, and gzip'd. The script measures CPU-seconds per sample of one rank's
epoch for several world sizes (a rank decodes only its own records), and of single random reads. Nothing is cached
between epochs. The output also contains the best possible cost with seek points every MiB: only the stretches that hold
a wanted record are inflated, at the streaming inflater's rate.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock import _native

POINT = 1 << 20
STREAM_OF_WHOLE = 0.49
"""Rate of streaming inflation divided by that of whole-object inflation, both in bytes per CPU-second. Measured by
`cargo run --release -p penstock-codec --example inflate_rate`: 1,133 / 2,320 (decision 0301)."""


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def made(folder: Path, records: int, size: int) -> Path:
    """Writes both shards: counts like those of cosmology volumes, which gzip -6 compresses to about a sixth."""
    generator = np.random.default_rng(1)
    content = bytearray()
    for _ in range(records):
        field = generator.poisson(np.exp(generator.normal(0, 1, size // 2))).astype("<i2")
        content += _native.encode_tfrecord({"x": field.tobytes()})
    (folder / "plain").mkdir()
    (folder / "gzip").mkdir()
    (folder / "plain/a.tfrecord").write_bytes(content)
    (folder / "gzip/a.tfrecord.gz").write_bytes(gzip.compress(bytes(content), 6))
    return folder


def epoch(dataset: penstock.Dataset, world: int, repeats: int) -> float:
    """CPU-seconds per sample of one rank of `world`: the minimum over `repeats` epochs."""
    loader = penstock.Loader(dataset, batch_size=8, rank=0, world=world, threads=1)
    found = []
    for _ in range(repeats):
        before, rows = cpu_s(), 0
        for batch in loader:
            rows += len(batch["x"])
        found.append((cpu_s() - before) / rows)
    return min(found)


def single(dataset: penstock.Dataset, inflated_bytes: int, draws: int) -> float:
    """Wall seconds of one random record read; no read benefits from the read before it."""
    from penstock.torch import MapDataset

    random.seed(2)
    # A quarter of the budget caches inflated objects. That is less than this object, so it is never cached.
    found = MapDataset(dataset, memory_bytes=3 * inflated_bytes)
    found[0]
    began = time.perf_counter()
    for _ in range(draws):
        found[random.randrange(len(found))]
    return (time.perf_counter() - began) / draws


def run(records: int, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = made(Path(name), records, size)
        x = penstock.tensor("int16", (size // 2,))
        plain, packed = (penstock.open(folder / kind).fields(x=x).shuffle(seed=1) for kind in ("plain", "gzip"))
        plain.index()
        packed.index()
        total = records * size
        whole_s = epoch(packed, 1, 5) * records
        rows = []
        for world in (1, 4, 16, 64):
            wanted, points = records // world, max(1, total // POINT)
            hit = 1 - (1 - 1 / points) ** wanted
            inflate_s = whole_s / STREAM_OF_WHOLE * hit
            rows.append(
                {
                    "world": world,
                    "gzip_ms": epoch(packed, world, 5) * 1e3,
                    "plain_ms": epoch(plain, world, 5) * 1e3,
                    "points_ms_at_best": inflate_s / wanted * 1e3,
                    "stretches_hit": hit,
                }
            )
        return {
            "schema_version": 1,
            "profile": _native.__profile__,
            "records": records,
            "record_bytes": size,
            "stored_bytes": packed.source.size_bytes,
            "whole_mb_per_cpu_s": total / whole_s / 1e6,
            "epochs": rows,
            "single_gzip_ms": single(packed, total, 20) * 1e3,
            "single_plain_ms": single(plain, total, 200) * 1e3,
            "load": os.getloadavg()[0],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1024)
    parser.add_argument("--bytes", type=int, default=64 << 10)
    parser.add_argument("--json", action="store_true")
    output = parser.parse_args()
    os.environ.setdefault("PENSTOCK_CACHE", tempfile.mkdtemp())
    found = run(output.records, output.bytes)
    if output.json:
        print(json.dumps(found))
        return
    print(
        f"{found['records']} records of {found['record_bytes']:,} bytes, {found['stored_bytes']:,} gzip'd, load {found['load']:.1f}"
    )
    print(f"inflated, framed and copied whole: {found['whole_mb_per_cpu_s']:.0f} MB a CPU-second")
    print("CPU-ms a sample   gzip whole   points at best (stretches hit)   plain by index")
    for row in found["epochs"]:
        print(
            f"  {row['world']:>3} ranks      {row['gzip_ms']:9.3f}    {row['points_ms_at_best']:9.3f} "
            f"({100 * row['stretches_hit']:5.1f} %)            {row['plain_ms']:9.3f}"
        )
    print(f"one at random: {found['single_gzip_ms']:.2f} ms gzip'd, {found['single_plain_ms']:.3f} ms plain by index")


if __name__ == "__main__":
    main()
