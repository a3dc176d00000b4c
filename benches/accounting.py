# SPDX-License-Identifier: Apache-2.0
"""Compares the time classes of `loader.report()` with injected latency, bandwidth caps and 503 responses.

    .venv/bin/python benches/accounting.py [--json]

The store is our emulator with a tier made for each row. The tier injects a known fault: a constant latency, a byte rate
per account or per connection, or a request rate above which it returns 503. The consumer computes nothing, so all wall
time is waiting. Each output line shows the injected value, the value in the report, and the error. A batch is one
sample, and each object holds one sample. The exit status is 1 if any error exceeds 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 0.05


def tier(latency_ms: float | None = None, burst_s: float = 0.01, **rates: tuple[str, float]) -> str:
    """A tier book of one tier: `tier(100, read_bytes=("account", 5e7))`. The request burst is `burst_s` x rate."""
    output = 'source = "benches/accounting.py"\nas_of = "2026-11"\nconfidence = "ours"\n'
    text = 'schema_version = 1\n[[tier]]\nname = "truth"\nyear = 2026\ntitle = "what is injected"\n'
    for what, (scope, value) in rates.items():
        name = what.replace("_", "-")
        unit = "bytes/s" if name.endswith("bytes") else "requests/s"
        text += f'[[tier.limit]]\nwhat = "{name}"\nscope = "{scope}"\nvalue = {float(value)}\nunit = "{unit}"\n{output}'
    if latency_ms is not None:
        text += f'[[tier.latency]]\nwhat = "read"\np50_ms = {latency_ms}\np99_ms = {latency_ms}\n{output}'
    # The queue never rejects and the burst is very small, so the rates alone determine the result.
    text += f'[tier.queue]\nvalue = 3600.0\nunit = "s"\n{output}[tier.burst]\nvalue = {burst_s}\nunit = "s"\n{output}'
    return text


Told = dict[str, Any]
Line = tuple[str, str, "Callable[[Told], float]", "Callable[[Told], float]"]
"""Quantity, its unit, a function for the injected value, and one for the reported value."""

ONE = {"max_in_flight": 1, "read_ahead": 0}
MANY = {"max_in_flight": 16, "read_ahead": 64}
SAID = ((ONE, "one request"), (MANY, "16 requests"))


@dataclass(frozen=True)
class Case:
    """One injected fault, and the reported values that are compared with it."""

    name: str
    book: str
    objects: int
    size: int
    loader: dict[str, Any]
    lines: tuple[Line, ...]


def epoch_latency(result: Told) -> float:
    """Seconds that the consumer waited for responses, minus those of the same pass without the tier."""
    return float(result["first_byte_s"] - result["bare"]["first_byte_s"])


def request_latency(result: Told) -> float:
    """Milliseconds per response, minus those of the same pass without the tier."""

    def mean(report: Told) -> float:
        return 1e3 * float(report["busy_first_byte_s"]) / int(report["requests"])

    return mean(result) - mean(result["bare"])


def latencies() -> Iterator[Case]:
    """Cases with a constant time to first byte."""
    for ms, objects in ((50, 60), (100, 40), (250, 16)):
        yield Case(
            f"{ms} ms, one request at a time", tier(ms), objects, 2000, ONE,
            (("latency of the epoch", "s", lambda t, ms=ms: t["objects"] * ms / 1e3, epoch_latency),),
        )  # fmt: skip
        yield Case(
            f"{ms} ms, 16 requests at a time", tier(ms), 8 * objects, 2000, MANY,
            (("latency of a request", "ms", lambda _, ms=ms: ms, request_latency),),
        )  # fmt: skip


def rates() -> Iterator[Case]:
    """Cases with bandwidth caps. Responses take at least 0.5 s, so the emulator's 20 ms error is small."""
    for rate in (20e6, 50e6):
        for load, output in SAID:
            yield Case(
                f"{rate / 1e6:.0f} MB/s for the account, {output} at a time",
                tier(read_bytes=("account", rate)), 10, int(rate / 2), load,
                (("transfer of the epoch", "s", lambda t, rate=rate: t["bytes"] / rate, lambda t: t["transfer_s"]),),
            )  # fmt: skip
    yield Case(
        "10 MB/s for a connection, 16 requests at a time",
        tier(read_bytes=("connection", 10e6)), 32, 10_000_000, MANY,
        (("rate of a connection", "MB/s", lambda _: 10.0, lambda t: t["bytes_in"] / t["busy_transfer_s"] / 1e6),),
    )  # fmt: skip
    for size, output in ((16_000_000, "16 MB objects"), (20_000_000, "20 MB objects in three parts")):
        yield Case(
            f"250 ms and 10 MB/s for a connection, {output}, one request at a time",
            tier(250, read_bytes=("connection", 10e6)), 3, size, ONE,
            (
                ("latency of the epoch", "s", lambda t: t["requests"] * 0.25, epoch_latency),
                ("transfer of the epoch", "s", lambda t: t["bytes"] / 10e6, lambda t: t["transfer_s"]),
            ),
        )  # fmt: skip


def refusals() -> Iterator[Case]:
    """Cases with 503 above a request rate. The cost is the extra wall time over the same pass without the limit."""
    for rate, (load, output) in ((20, SAID[0]), (50, SAID[1]), (200, SAID[1])):
        yield Case(
            f"503 above {rate} requests/s, {output} at a time", tier(read_requests=("account", rate)), 5 * rate, 2000, load,
            (
                ("refused", "", lambda t: t["refused"], lambda t: t["throttles"]),
                ("refused of those sent", "%", lambda t: 100 * t["refused"] / t["asked"],
                 lambda t: 100 * t["throttles"] / t["requests"]),
                ("lost to it", "s", lambda t: t["wall_s"] - t["bare"]["wall_s"], lambda t: t["throttle_s"]),
            ),
        )  # fmt: skip


def measured(case: Case, folder: Path) -> dict[str, Any]:
    """Runs one pass over the case's objects; returns its report and the emulator's counters."""
    import penstock

    bucket = folder / "bucket"
    bucket.mkdir()
    for number in range(case.objects):
        (bucket / f"{number:05d}.bin").write_bytes(os.urandom(case.size))
    book = folder / "truth.toml"
    book.write_text(case.book)
    layout = penstock.formats.fixed(x=penstock.tensor("uint8", (case.size,)))

    def one_pass(tiers: Path | None) -> dict[str, Any]:
        with Emulator(bucket, tier="none" if tiers is None else "truth", tiers=tiers) as served:
            os.environ.update(served.env)
            dataset = penstock.open(served.url, format=layout).cache(False)
            dataset = dataset.fields(x=penstock.tensor("uint8", (case.size,)))
            loader = penstock.Loader(dataset, batch_size=1, rank=0, world=1, prefetch_next_epoch=False, **case.loader)
            before = served.stats()
            for _ in loader:
                pass
            after = served.stats()
            counted = {"refused": after["throttles"] - before["throttles"], "asked": after["gets"] - before["gets"]}
            return {**counted, **loader.report()}

    bare = one_pass(None)
    found = one_pass(book)
    return {**found, "objects": case.objects, "bytes": case.objects * case.size, "bare": bare}


def main() -> int:
    """Measures all cases and prints the table."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--json", action="store_true")
    parse.add_argument("--only", default="", help="cases whose name holds this")
    parse.add_argument("--repeats", type=int, default=3, help="passes of each case; the one of median error is told")
    chosen = parse.parse_args()
    worst, rows = 0.0, []
    for case in (*latencies(), *rates(), *refusals()):
        if chosen.only not in case.name:
            continue
        passes = []
        for _ in range(chosen.repeats):
            with tempfile.TemporaryDirectory(prefix="penstock-accounting-") as folder:
                passes.append(measured(case, Path(folder)))
        for what, unit, truth_of, found_of in case.lines:
            found_truth = sorted(
                ((found_of(result), truth_of(result)) for result in passes), key=lambda pair: pair[0] / pair[1]
            )
            found, truth = found_truth[len(found_truth) // 2]
            error = found / truth - 1
            worst = max(worst, abs(error))
            row = {
                "injected": case.name,
                "what": what,
                "unit": unit,
                "truth": truth,
                "recovered": found,
                "error": error,
            }
            rows.append(row)
            if not chosen.json:
                told_row = (
                    f"| {case.name} | {what} | {truth:,.3f} {unit} | {found:,.3f} {unit} | {100 * error:+.1f} % |"
                )
                print(told_row, flush=True)
    if chosen.json:
        print(json.dumps({"rows": rows, "worst": worst, "load": os.getloadavg()[0]}))
    else:
        print(f"\nworst {100 * worst:.1f} %, load {os.getloadavg()[0]:.1f}")
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
