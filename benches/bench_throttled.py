# SPDX-License-Identifier: Apache-2.0
"""How much of what a throttling store permits is used, and how often it must refuse for that.

    .venv/bin/python benches/bench_throttled.py [--repeats 3]

The store is our emulator with a tier of so many requests a second: 503 above it. One pass of the feed over small objects,
ten seconds' worth, from the first request on: the search for the rate is part of it. What is permitted is the rate times
the wall, and the burst. Ends with 1 where less than 0.85 of it is used, or an object was got more than once.
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
    """Measures, and prints a line of Markdown for each pass."""
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
