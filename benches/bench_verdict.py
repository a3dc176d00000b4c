# SPDX-License-Identifier: Apache-2.0
"""Prints the confusion matrix of the bench verdict over synthetic sweeps, with tuned and with held-out parameters.

python -m benches.bench_verdict [--sweeps 60] [--noise 0.05] [--margin 1.5]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from penstock.bench.verdict import REGIMES, classify
from tests.bench.sweeps import MIB, disk, draw, make, refusing, spent_client

_KIB = 1024
_THREADS = [1, 8, 32, 128, 512]
_FILES = [64 * _KIB, 256 * _KIB, MIB, 8 * MIB, 64 * MIB]
_BLOCKS = [4 * _KIB, 32 * _KIB, 256 * _KIB, 2 * MIB]


def _kinds(seed: int, noise: float, *, held_out: bool):
    storage = draw(seed, held_out=held_out)
    more = {"noise": noise, "held_out": held_out}
    yield "files", make(storage, _THREADS, _FILES, noise=noise, seed=seed)
    yield "client", spent_client(seed, _THREADS, _FILES, **more)
    yield "disk", disk(seed, _THREADS, _BLOCKS, **more)
    yield "refusing, counted", refusing(seed, _THREADS, **more)
    yield "refusing, not counted", refusing(seed, _THREADS, counted=False, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--margin", type=float, default=1.5, help="leave out cells whose limit is nearer to the next")
    given = parser.parse_args()
    for held_out in (False, True):
        matrix: Counter[tuple[str, str]] = Counter()
        by_kind: dict[str, Counter[bool]] = {}
        start, sweeps = time.perf_counter(), 0
        for seed in range(given.sweeps):
            for kind, sweep in _kinds(seed, given.noise, held_out=held_out):
                sweeps += 1
                for cell in classify(sweep.rows).cells:
                    size = cell.block_size_bytes if kind == "disk" else cell.file_size_bytes
                    truth = sweep.truths[cell.threads, size]
                    if truth.margin >= given.margin:
                        matrix[truth.regime, cell.regime] += 1
                        by_kind.setdefault(kind, Counter())[truth.regime == cell.regime] += 1
        right = sum(n for (true, result), n in matrix.items() if true == result)
        took = (time.perf_counter() - start) / sweeps
        where = "held out" if held_out else "looked at"
        print(
            f"parameters {where}, noise {given.noise:g}: {right / matrix.total():.1%} of {matrix.total()} cells, {took * 1e3:.0f} ms a sweep"
        )
        print("| true \\ found | " + " | ".join(REGIMES) + " |\n|---" * 1 + "|---:" * len(REGIMES) + "|")
        for true in REGIMES:
            print(f"| {true} | " + " | ".join(str(matrix[true, result]) for result in REGIMES) + " |")
        print("; ".join(f"{kind} {c[True] / c.total():.1%}" for kind, c in by_kind.items()))


if __name__ == "__main__":
    main()
