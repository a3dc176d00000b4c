# SPDX-License-Identifier: Apache-2.0
"""Checks that `penstock bench object` recovers the limits of a known store: latency, byte rate, request rate, errors.

    python benches/bench_object_recovery.py [--seconds 4] [--keep DIR]

The store is our emulator on loopback. Each latency is given twice: as measured, and minus the latency of the same store
without limits (this machine's own share). For each latency, two more rows show means relative to the mean of the delays
that the emulator drew at random: the mean delay that the emulator measured, and the mean latency that the bench
measured. They show whether a difference arises in the random numbers, in the emulator's timing or in the bench. Error
responses are compared with the store's own count. The script prints a Markdown table whose first column is the measured
value divided by the configured one; the target is 0.95 to 1.05. `--keep` writes every measured row to DIR.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from penstock import _native
from penstock.bench.objects import ObjectBench, ObjectPoint, run
from penstock.bench.results import provenance
from penstock.bench.rows import Row, write_results
from penstock.emulator import Emulator

FACT = 'source = "this bench"\nas_of = "2026-11"\nconfidence = "ours"\n'
HEAD = 'schema_version = 1\n[[tier]]\nname = "known"\nyear = 2026\ntitle = "known"\n'
LATENCIES_MS = ((20.0, 30.0), (60.0, 90.0))
BYTES_PER_S = (20e6, 100e6, 300e6)
REQUESTS_PER_S = (200.0, 1000.0, 2000.0)


def book(folder: Path, text: str) -> Path:
    """Writes a tier book with one tier."""
    file = folder / "book.toml"
    file.write_text(HEAD + text)
    return file


def measured(
    folder: Path, tiers: Path | None, bench: ObjectBench, point: ObjectPoint
) -> tuple[list[Row], dict[str, int]]:
    """Runs one bench; returns its rows and the store's counters."""
    bucket = Path(tempfile.mkdtemp(dir=folder))
    with Emulator(bucket, **({"tier": "known", "tiers": tiers} if tiers else {})) as store:
        os.environ.update(store.env)
        # The same limits apply while objects are made and deleted, but the rows contain only the measured phase.
        rows = run(store.url, bench, (point,))
        return rows, store.stats()


def latencies(folder: Path, seconds: float) -> list[tuple]:
    """Measures time to first byte, with 1 request and with 32 requests in flight."""
    bench = ObjectBench(operations=("get",), objects=32, time_limit_s=seconds)
    point = ObjectPoint(object_size_bytes=1024, concurrency=1)
    own = measured(folder, None, bench, point)[0]
    base = own[0].first_byte_latency.percentiles_us["50"] / 1000
    found = [("this machine's own first byte, p50 in ms", 0.0, base, base, own)]
    for p50, p99 in LATENCIES_MS:
        tiers = book(folder, f'[[tier.latency]]\nwhat = "read"\np50_ms = {p50}\np99_ms = {p99}\n{FACT}')
        # With 1,000 draws the 99th percentile has a sampling error of 2 %; with 4,000 draws, 1 %.
        point_wide = ObjectPoint(object_size_bytes=1024, concurrency=32)
        for name, result, at in (("50", p50, point), ("99", p99, point_wide)):
            rows, counted = measured(folder, tiers, bench, at)
            first_byte = rows[0].first_byte_latency
            raw = first_byte.percentiles_us[name] / 1000
            found.append((f"latency, p{name} in ms, {at.concurrency} at once", result, raw, raw - base, rows))
            drawn, given = (
                counted[which] / counted["delayed"] / 1000 for which in ("delay_drawn_us", "delay_actual_us")
            )
            found.append(("its mean by the store's own clock, of its draws", drawn, given, given, []))
            found.append(
                (
                    "its mean as the bench found it",
                    drawn,
                    first_byte.mean_us / 1000,
                    first_byte.mean_us / 1000 - base,
                    [],
                )
            )
    return found


def caps(folder: Path, seconds: float) -> list[tuple]:
    """Measures the bandwidth of the whole store."""
    found = []
    for result in BYTES_PER_S:
        tiers = book(
            folder,
            f'[[tier.limit]]\nwhat = "read-bytes"\nscope = "account"\nvalue = {result}\nunit = "bytes/s"\n{FACT}',
        )
        bench = ObjectBench(operations=("get",), objects=64, time_limit_s=seconds)
        rows = measured(folder, tiers, bench, ObjectPoint(object_size_bytes=1 << 20, concurrency=16))[0]
        found.append(("bandwidth, MB/s", result / 1e6, *2 * [rows[0].last.bytes_per_s / 1e6], rows))
    return found


def refusals(folder: Path, seconds: float) -> list[tuple]:
    """Measures successful requests per second, and compares the number of rejected ones with the store's own count."""
    found = []
    for result in REQUESTS_PER_S:
        burst = (
            f'[tier.throttle]\nmessage = "slower"\nretry_after_s = 0\n[tier.burst]\nvalue = 0.02\nunit = "s"\n{FACT}'
        )
        limit = (
            f'[[tier.limit]]\nwhat = "read-requests"\nscope = "account"\nvalue = {result}\nunit = "requests/s"\n{FACT}'
        )
        bench = ObjectBench(operations=("head",), objects=64, time_limit_s=seconds)
        # Enough workers to exceed the limit, even while some of them wait before a retry.
        rows, counted = measured(
            folder, book(folder, burst + limit), bench, ObjectPoint(object_size_bytes=64, concurrency=256)
        )
        found.append(("accepted requests/s", result, *2 * [rows[0].last.entries_per_s], rows))
        seen = sum(rows[0].errors_by_class.get(status, 0) for status in ("503", "429"))
        # Rejections per second in the measured phase. The store's count also includes those of the final listing.
        at = rows[0].last.time_s
        found.append((f"responses 503/s at {result:g}/s", counted["throttles"] / at, *2 * [seen / at], rows))
    return found


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if _native.__profile__ != "release":
        print("a debug build is too slow for this comparison", file=sys.stderr)
        return 2
    print(f"load {os.getloadavg()[0]:.1f}, {asked.seconds:g} s each\n")
    print(
        "| measured / configured | what | configured | measured | with this machine's share |\n|---:|---|---:|---:|---:|"
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        for part in (latencies, caps, refusals):
            for what, result, raw, found, measured_rows in part(Path(temporary), asked.seconds):
                rows += measured_rows
                ratio = f"{found / result:.3f}" if result else ""
                print(f"| {ratio} | {what} | {result:,.1f} | {found:,.1f} | {raw:,.1f} |", flush=True)
    if asked.keep:
        write_results(
            asked.keep, rows, spec={"bench": "object-recovery", "seconds": asked.seconds}, provenance=provenance()
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
