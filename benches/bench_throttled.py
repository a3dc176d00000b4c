# SPDX-License-Identifier: Apache-2.0
"""Measures what share of a store's permitted request rate the feed uses, and how many requests the store rejects.

    .venv/bin/python benches/bench_throttled.py [--repeats 3]

The store is our emulator with a tier that limits requests per second and returns 503 above the limit. One pass reads
enough small objects for ten seconds. The measurement starts with the first request, so it includes the search for the
rate. The permitted number is the rate times the wall time, plus the burst. The exit status is 1 if the feed uses less
than 0.85 of the permitted number, or reads an object more than once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from accounting import MANY, Case, measured, tier

USED = 0.85
SECONDS = 10


def main() -> int:
    """Measures, and prints a Markdown table row for each pass."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--repeats", type=int, default=3)
    repeats, is_short = parse.parse_args().repeats, False
    for rate in (50, 200, 1000):
        for burst_s, latency_ms in ((0.01, None), (1.0, None), (1.0, 50)):
            book = tier(latency_ms, burst_s, read_requests=("account", rate))
            case = Case(f"{rate}", book, SECONDS * rate, 2000, MANY | {"max_in_flight": 64}, ())
            for _ in range(repeats):
                with tempfile.TemporaryDirectory(prefix="penstock-throttled-") as folder:
                    result = measured(case, Path(folder))
                used = case.objects / (rate * (result["wall_s"] + burst_s))
                got = result["asked"] - result["refused"]
                is_short |= used < USED or got != case.objects
                print(
                    f"| {rate} requests/s, burst {burst_s * rate:g}, {latency_ms or 0} ms | {used:.2f} |"
                    f" {100 * result['refused'] / result['asked']:.1f} % | {got / case.objects:.3f} | {os.getloadavg()[0]:.1f} |",
                    flush=True,
                )
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main())
