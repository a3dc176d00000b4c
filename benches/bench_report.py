# SPDX-License-Identifier: Apache-2.0
"""Measures how long a report of many rows takes to make and to open in headless Chromium.

One JSON line per number of rows: seconds to classify the rows and to write the page, its size, and the medians of the
times until the DOM is ready and until the charts are drawn, as the browser reports them since the start of navigation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from penstock.bench.results import provenance  # noqa: E402
from penstock.bench.rows import Results, Row  # noqa: E402
from penstock.report.sweep import summarise  # noqa: E402
from penstock.report.sweep_page import sweep_page  # noqa: E402
from tests.bench.sweeps import MIB, Storage, make  # noqa: E402
from tests.report.browser import browser  # noqa: E402

_READY = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
_DRAWN = "performance.getEntriesByName('charts-drawn')[0].startTime"
RUNS = 50


def generated(count: int) -> tuple[Row, ...]:
    """Rows of 50 runs over 8 thread counts and 5 sizes, with repeats."""
    at = random.Random(3)
    storage = Storage("queues", 3e-3, 8e8, 6_000, 12e9, contention=0.15)
    base = make(storage, [1, 2, 4, 8, 16, 32, 64, 128], [65536, 262144, MIB, 4 * MIB, 64 * MIB], noise=0.03).rows
    return tuple(msgspec.structs.replace(at.choice(base), label=f"run {n % RUNS}") for n in range(count))


def measure(count: int, repeats: int, folder: Path) -> dict[str, object]:
    rows = generated(count)
    began_s = time.perf_counter()
    report = summarise(Results(rows=rows))
    classified_s = time.perf_counter()
    text = sweep_page(report, rows)
    written_s = time.perf_counter()
    file = folder / f"{count}.html"
    file.write_text(text)
    ready, drawn = [], []
    with browser(folder) as tab:
        for _ in range(repeats + 1):
            tab.open(file)
            ready.append(tab.run(_READY) / 1000)
            drawn.append(tab.run(_DRAWN) / 1000)
    # The first opening warms up the browser.
    return {
        "rows": count,
        "classify_s": round(classified_s - began_s, 3),
        "page_s": round(written_s - classified_s, 3),
        "page_bytes": len(text.encode()),
        "dom_ready_s": round(median(ready[1:]), 3),
        "charts_drawn_s": round(median(drawn[1:]), 3),
        "dom_ready_max_s": round(max(ready[1:]), 3),
        "repeats": repeats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    origin = provenance()
    context = {"commit": origin.commit, "dirty": origin.dirty, "load_1min": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as folder:
        for count in given.rows:
            print(json.dumps({**context, **measure(count, given.repeats, Path(folder))}), flush=True)


if __name__ == "__main__":
    main()
