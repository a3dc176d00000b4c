# SPDX-License-Identifier: Apache-2.0
"""Tests the classifier on incomplete sweeps with known limits: few points, few columns, or a single thread count."""

from __future__ import annotations

import math
import random

import pytest

from penstock.bench.importers.elbencho import parse
from penstock.bench.verdict import classify
from tests.bench.sweeps import MIB, draw, make

KIB = 1024


def table(columns, law, workers, sizes, **fixed):
    """CSV of a law: operations per second for each number of workers and size, with the noise of a real tool."""
    draw_ = random.Random(7)
    lines = []
    for size in sizes:
        for count in workers:
            rate = law(count, size) * math.exp(draw_.gauss(0, 0.04))
            row = {
                "operation": "READ",
                "threads": count,
                "file size": size,
                "block size": size,
                "time ms [last]": 20_000,
                "entries [last]": int(20 * rate),
                "entries/s [last]": int(rate),
                "IOPS [last]": int(rate),
                "MiB [last]": int(20 * rate * size / MIB),
                "MiB/s [last]": int(rate * size / MIB),
            } | {name: value(count, size) if callable(value) else value for name, value in fixed.items()}
            lines.append(",".join(str(row[name]) for name in columns))
    return "\n".join([",".join(columns), *lines]) + "\n"


def parts(count, size):
    """A store with 2 ms latency, 600 MB/s per stream, 8,000 files/s and 5 GB/s; the slowest resource is the limit."""
    return {"concurrency": count / (2e-3 + size / 6e8), "metadata": 8_000, "bandwidth": 5e9 / size}


def bucket(count, size):
    return {"concurrency": count / (0.03 + size / 8e7), "throttle": 3_500, "bandwidth": 12e9 / size}


def disk(count, size):
    return {"concurrency": count / 0.4e-3, "iops": 16_000, "bandwidth": 1e9 / size}


def falling(count, size):
    """A metadata server that slows down with each worker above two: its rate is divided by 1 + (count - 2) / 4."""
    return {
        "concurrency": count / (0.5e-3 + size / 2e9),
        "metadata": 3_000 / (1 + max(0, count - 2) / 4),
        "bandwidth": 8e9 / size,
    }


FILES = ["operation", "threads", "file size", "time ms [last]", "entries [last]", "MiB [last]"]
BLOCKS = [
    "operation",
    "path type",
    "threads",
    "file size",
    "block size",
    "direct IO",
    "random",
    "IO depth",
    "IOPS [last]",
]
DEVICE = {"path type": "blockdev", "direct IO": 1, "random": 1, "IO depth": 1, "file size": 1 << 38}
THREE_BLOCKS = [4 * KIB, 16 * KIB, 64 * KIB]


@pytest.mark.parametrize(
    ("law", "columns", "workers", "sizes", "fixed"),
    [
        pytest.param(parts, FILES, [2, 64], [64 * KIB, 16 * MIB], {}, id="four points"),
        pytest.param(parts, FILES, [1, 8, 128], [64 * KIB], {}, id="one small size"),
        pytest.param(parts, FILES, [1, 8, 64, 256], [16 * MIB], {}, id="one large size"),
        pytest.param(parts, FILES, [32], [16 * KIB, 256 * KIB, MIB, 64 * MIB], {}, id="one thread count"),
        pytest.param(parts, ["operation", "threads", "file size", "MiB/s [last]"], [1, 4, 16, 64], [64 * KIB, MIB, 16 * MIB], {}, id="MiB/s alone"),
        pytest.param(parts, ["operation", "threads", "file size", "entries/s [last]"], [1, 4, 16, 64], [256 * KIB, MIB, 16 * MIB], {}, id="files/s alone"),
        pytest.param(bucket, ["path type", *FILES], [1, 16, 64, 256, 1024], [64 * KIB, MIB, 64 * MIB], {"path type": "bucket"}, id="bucket, no counts"),
        pytest.param(disk, BLOCKS, [1, 4, 16, 64], THREE_BLOCKS, DEVICE | {"block size": lambda _, size: size}, id="disk, three blocks"),
        pytest.param(falling, FILES, [1, 2, 4, 8, 16, 32], [16 * KIB, 128 * KIB, 32 * MIB], {}, id="falling from four threads on"),
    ],
)  # fmt: skip
def test_classify_odd_sweep_has_the_limits_of_its_law(law, columns, workers, sizes, fixed):
    cells = classify(
        parse(table(columns, lambda c, s: min(law(c, s).values()), workers, sizes, **fixed), "odd.csv")
    ).cells
    assert len(cells) == len(workers) * len(sizes)
    judged = 0
    for cell in cells:
        size = cell.block_size_bytes if law is disk else cell.file_size_bytes
        limits = law(cell.threads, size)
        first, second, _ = sorted(limits, key=lambda name: limits[name])
        if limits[second] < 1.6 * limits[first]:
            continue  # close to the next limit there is no right answer
        judged += 1
        assert cell.regime == first, (cell.threads, size, cell.evidence)
        best = max(min(law(c, size).values()) for c in workers if c <= cell.threads)
        drop = 1 - min(limits.values()) / best
        if drop > 0.15 or drop < 0.01:
            assert cell.retrograde == (drop > 0.15), (cell.threads, size, cell.evidence)
    assert judged >= len(cells) // 2


def test_classify_depths_of_one_thread_are_its_workers():
    rows = [
        table(BLOCKS, lambda _, s, d=depth: min(d / 0.3e-3, 20_000, 8e8 / s), [1], [4 * KIB, 256 * KIB], **DEVICE | {"IO depth": depth, "block size": lambda _, s: s})
        for depth in (1, 4, 16, 64)
    ]  # fmt: skip
    result = {(c.io_depth, c.block_size_bytes): c.regime for c in classify(parse("".join(rows), "odd.csv")).cells}
    assert (result[64, 4 * KIB], result[64, 256 * KIB]) == ("iops", "bandwidth")


@pytest.mark.parametrize(("workers", "least"), [([1, 8], 0.9), ([1, 16, 128], 0.97)])
def test_classify_few_thread_counts_that_scale_are_at_no_shared_limit(workers, least):
    """A fit cannot locate a limit between few thread counts; but if the rates scale, no shared limit was reached."""
    right = judged = 0
    for seed in range(60):
        sweep = make(draw(seed), workers, [64 * KIB, 16 * MIB], noise=0.05, seed=seed)
        for cell in classify(sweep.rows).cells:
            truth = sweep.truths[cell.threads, cell.file_size_bytes]
            if truth.margin >= 1.5:
                judged, right = judged + 1, right + (cell.regime == truth.regime)
    assert right >= least * judged
