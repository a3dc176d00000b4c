# SPDX-License-Identifier: Apache-2.0
"""Measures the false alarm rate of `penstock bench ab` by comparing a command with itself many times.

python benches/bench_aa.py [--comparisons 200] [--max-runs 40] [--metric wall] -- true
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from statistics import median

from penstock.bench.ab import Metric, compare, runner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--max-runs", type=int, default=40)
    parser.add_argument("--metric", choices=["wall", "cpu"], default="wall")
    parser.add_argument("argv", nargs="*", default=["true"])
    given = parser.parse_args()
    argv = given.argv or ["true"]
    run = runner(Metric(given.metric))
    result = [
        compare(argv, argv, run, metric=given.metric, max_runs=given.max_runs, seed=seed)
        for seed in range(given.comparisons)
    ]
    verdicts = Counter(t.verdict for t in result)
    alarms = verdicts["different"] / len(result)
    print(f"{len(result)} comparisons of `{' '.join(argv)}` with itself, {given.metric}: {dict(verdicts)}")
    print(
        f"false alarms {alarms:.1%} (allowed 5 %); median runs {median(t.runs for t in result):.0f}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
