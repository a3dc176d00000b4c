# SPDX-License-Identifier: Apache-2.0
"""Measures epochs from a store in which a few requests are slow, with and without hedged requests.

The store is our emulator on loopback: 5 ms to the first byte, and 500 ms for one request in fifty. The output is median
wall seconds and their ratio. The order of the samples must be the same in all runs.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import penstock
from penstock import _native
from penstock.emulator import Emulator

OBJECTS, BATCH, IN_FLIGHT, REPEATS = 600, 16, 16, 5
SOURCE = 'source = "this bench"\nas_of = "2026-11"\nconfidence = "ours"\n'
BOOK = (
    'schema_version = 1\n[[tier]]\nname = "tailed"\nyear = 2026\ntitle = "A tail"\n[[tier.latency]]\nwhat = "read"\n'
    f"p50_ms = 5.0\np99_ms = 6.0\ntail_share = 0.02\ntail_ms = 500.0\n{SOURCE}"
)


def epoch(url: str, hedge: str) -> tuple[float, list[int], dict[str, object]]:
    """Wall seconds of an epoch, the sample order, and the report."""
    os.environ["PENSTOCK_HEDGE"] = hedge
    dataset = (
        penstock.open(url, records_per_object=1).fields(y=penstock.tensor("float32", (1,))).shuffle(1).cache(False)
    )
    loader = penstock.Loader(
        dataset, batch_size=BATCH, max_in_flight=IN_FLIGHT, rank=0, world=1, prefetch_next_epoch=False
    )
    began = time.perf_counter()
    order = [int(y) for batch in loader for y in batch["y"][:, 0]]
    return time.perf_counter() - began, order, dict(loader.report())


def main() -> int:
    """Run and print."""
    if _native.__profile__ != "release":
        print("a debug build says nothing about speed", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder, book = Path(temporary) / "data", Path(temporary) / "tiers.toml"
        folder.mkdir()
        for number in range(OBJECTS):
            (folder / f"{number:04d}.tfrecord").write_bytes(_native.encode_tfrecord({"y": [float(number)]}))
        book.write_text(BOOK)
        walls: dict[str, list[float]] = {"0": [], "1": []}
        hedges = []
        with Emulator(folder, tier="tailed", tiers=book) as server:
            os.environ.update(server.env)
            orders = set()
            for _ in range(REPEATS):
                for hedge in walls:
                    wall, order, report = epoch(server.url, hedge)
                    walls[hedge].append(wall)
                    orders.add(tuple(order))
                    hedges += [report["hedges"]] if hedge == "1" else []
        if len(orders) != 1:
            print("the orders differ", file=sys.stderr)
            return 1
        plain, hedged = (statistics.median(walls[hedge]) for hedge in walls)
        print(
            f"asked once {plain:.2f} s, hedged {hedged:.2f} s: {plain / hedged:.2f}x; {hedges} extra requests of {OBJECTS}"
        )
        print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
