# SPDX-License-Identifier: Apache-2.0
"""Content of the sweep page: classifies the rows of a sweep again, groups them, and writes the page's sentences.

Draws no charts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.rows import WATCHED, Results, Row, moves_bytes
from penstock.bench.verdict import Judged, Verdict, classify
from penstock.report.runs_section import RunLine, run_lines
from penstock.units import format_bytes, format_rate, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CellGroup", "SweepReport", "name_of", "rate_label", "summarise"]

SCHEMA_VERSION = 2
_NAMED_RUNS = 3  # in a headline; more runs are counted
_WAITS = {
    "concurrency": "have too few requests in flight",
    "metadata": "wait for opening files",
    "bandwidth": "are at the bandwidth limit",
    "client": "are at the limit of the client",
    "iops": "are at the disk's limit of operations per second",
    "throttle": "are throttled by the store",
}


class CellGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Cells of one operation under equal conditions, which are drawn as one surface chart.

    Attributes:
        regimes: Number of cells by regime.
        retrograde: Number of cells that are slower than with fewer threads.
        best: The cell with the highest rate.
    """

    title: str
    operation: str
    cells: tuple[Judged, ...]
    regimes: dict[str, int]
    retrograde: int
    best: Judged


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a sweep report. `warnings` lists reasons not to trust the rates; `invalid` counts rows by reason;
    `runs` has one line per run and operation.
    """

    schema_version: int = SCHEMA_VERSION
    headline: str
    lead: str
    rows: int
    sources: dict[str, int]
    caches: dict[str, int]
    prices_as_of: tuple[str, ...]
    spec: dict[str, Any]
    spec_hashes: tuple[str, ...]
    machine: dict[str, Any]
    groups: tuple[CellGroup, ...]
    verdict: Verdict
    invalid: dict[str, int]
    warnings: tuple[str, ...]
    runs: tuple[RunLine, ...] = ()


def rate_label(cell: Judged) -> str:
    """Format a cell's rate: bytes/s if the operation transfers data, else operations/s."""
    return format_rate(cell.bytes_per_s) if cell.bytes_per_s else f"{cell.entries_per_s:,.0f}/s"


def _size_label(size: int | None) -> str:
    return "–" if size is None else format_bytes(size, binary=True)


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def name_of(row: Row) -> str:
    """Name of a row in a chart legend."""
    if row.operation in WATCHED:
        return row.label
    block = (
        f" in blocks of {_size_label(row.block_size_bytes)}"
        if row.block_size_bytes not in (None, row.file_size_bytes)
        else ""
    )
    size = f" {_size_label(row.file_size_bytes)}" if row.file_size_bytes else ""
    depth = f" x {row.io_depth} deep" if row.io_depth > 1 else ""
    threads = f"{row.hosts} x {_threads(row.threads)}" if row.hosts > 1 else _threads(row.threads)
    return f"{row.label + ': ' if row.label else ''}{row.operation}{size}{block}, {threads}{depth}"


def _like(cell: Judged) -> tuple[Any, ...]:
    return (cell.operation, cell.hosts, cell.io_depth, cell.direct, cell.random)


def _groups(cells: Sequence[Judged], rows: Sequence[Row]) -> tuple[CellGroup, ...]:
    families: dict[tuple[Any, ...], list[Judged]] = {}
    points = Counter((*_like(c), c.label, c.threads, c.file_size_bytes) for c in cells)
    named = Counter((*_like(c), c.threads, c.file_size_bytes, c.block_size_bytes) for c in cells)
    # If several runs have the same point, each run gets its own surface chart.
    runs_swept = {key[:-3] for key, count in named.items() if count > 1}
    blocks_swept = {key[:-2] for key, count in points.items() if count > 1}
    for cell in cells:
        like = _like(cell)
        # If the block size varies, each file size gets a separate surface chart.
        run = cell.label if like in runs_swept else None
        size = cell.file_size_bytes if (*like, cell.label) in blocks_swept else None
        families.setdefault((*like, run, size), []).append(cell)
    several_hosts = len({r.hosts for r in rows}) > 1
    several_depths = len({r.io_depth for r in rows}) > 1
    made = []
    for (operation, hosts, depth, direct, random, run, file_size), family in families.items():
        parts = [operation] if run is None else [operation, run or "unnamed run"]
        parts += [f"{hosts} host{'s' if hosts > 1 else ''}"] if several_hosts else []
        parts += [f"{depth} deep"] if several_depths else []
        parts += [f"files of {_size_label(file_size)}"] if file_size else []
        parts += [part for part, so in (("random", random), ("direct", direct)) if so]
        made.append(
            CellGroup(
                title=", ".join(parts),
                operation=operation,
                cells=tuple(family),
                regimes=dict(Counter(c.regime for c in family).most_common()),
                retrograde=sum(c.retrograde for c in family),
                best=max(family, key=lambda c: (c.bytes_per_s, c.entries_per_s)),
            )
        )
    return tuple(sorted(made, key=lambda g: (not moves_bytes(g.operation), g.title)))


def _headline(groups: Sequence[CellGroup], watched: Sequence[Row]) -> tuple[str, str]:
    if not groups and watched:
        limits = [row.raw.get("limit", "without a known limit") for row in watched]
        if len(watched) <= _NAMED_RUNS:
            texts = [f"{row.label} is {limit}" for row, limit in zip(watched, limits, strict=True)]
        else:
            texts = [f"{plural(count, 'run')} {limit}" for limit, count in Counter(limits).most_common()]
        stated = ", ".join(dict.fromkeys(row.raw["stated by"] for row in watched if row.raw.get("stated by")))
        more = (
            f"Limits are stated by: {stated}."
            if stated
            else "As reported by each run for the rank that waited longest."
        )
        return "; ".join(texts), more
    if not groups:
        return "Nothing here can be classified", "No row is a valid measurement of an operation; the table shows why."
    top = next((g for g in groups if g.best.bytes_per_s), groups[0])
    best = top.best
    at = f"{_threads(best.threads)}{f' on each of {best.hosts} hosts' if best.hosts > 1 else ''}"
    size = f" and {_size_label(best.file_size_bytes)} files" if best.file_size_bytes and best.bytes_per_s else ""
    headline = f"{top.operation.capitalize()} peaks at {rate_label(best)}, with {at}{size}"
    regime, count = next(iter(top.regimes.items()))
    of = len(top.cells)
    lead = f"{count} of its {of} points {_WAITS[regime]}" if of > 1 else f"Its only point {_singular(_WAITS[regime])}"
    if top.retrograde:
        lead += f"; {top.retrograde} are slower than with fewer threads"
    # Give advice only for the best number of threads, because users would not choose a slower one.
    near = [c for c in top.cells if c.advice and c.threads == best.threads]
    if near:
        c = max(near, key=lambda c: c.advice.gain if c.advice else 0.0)
        assert c.advice is not None
        lead += (
            f". At {_threads(c.threads)} and files of {_size_label(c.file_size_bytes)}, {c.advice.text}: "
            f"{c.advice.gain:.1f} times as fast according to the model"
        )
    return headline, lead + "."


def _singular(text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{ {'have': 'has', 'are': 'is'}.get(verb, verb + 's') } {rest}"


def summarise(results: Results) -> SweepReport:
    """Classify the rows again, and build the report from the result."""
    rows = results.rows
    verdict = classify(rows)
    groups = _groups(verdict.cells, rows)
    headline, lead = _headline(groups, [r for r in rows if r.operation in WATCHED and not r.invalid])
    sound = [r for r in rows if not r.invalid]
    hashes = tuple(sorted({r.spec_hash for r in rows if r.spec_hash}))
    warnings = []
    if len(hashes) > 1:
        warnings.append(f"the rows have {len(hashes)} different specifications: their rates cannot be compared")
    if sound and all(r.cache.state == "unknown" for r in sound):
        warnings.append("the state of caches was not recorded: reads may come from memory, not from storage")
    if any(r.operation == "WRITE" and not r.direct for r in sound):
        warnings.append("buffered writes may still be in memory: only data synced within the measured time is durable")
    short = sum(0 < r.last.time_s < 1 for r in sound)
    if short:
        warnings.append(
            f"{short} of {len(sound)} phases took less than a second: rounding and start-up distort their rates"
        )
    tails = sum(bool(r.first and r.first.time_s > 0 and r.last.time_s > 1.5 * r.first.time_s) for r in sound)
    if tails:
        warnings.append(
            f"in {tails} phases the last worker took 1.5 times as long as the first: those are judged at the end of "
            "the first worker"
        )
    crowded = sum("crowded" in c.evidence for c in verdict.cells)
    if crowded:
        warnings.append(
            f"at {crowded} of {len(verdict.cells)} points other programs kept the measuring machine busy: their "
            "rates are too low, and this alone does not make a point limited by the client"
        )
    noise = max((c.evidence.get("noise") or 0.0 for c in verdict.cells), default=0.0)
    if noise > 0.15:
        warnings.append(
            f"the model deviates from points by {noise:.0%}: limits close to each other cannot be separated there"
        )
    origin = results.provenance
    return SweepReport(
        headline=headline,
        lead=lead,
        rows=len(rows),
        sources=dict(Counter(r.source or "penstock" for r in rows)),
        caches=dict(Counter(f"{r.cache.state} ({r.cache.how})" for r in rows)),
        prices_as_of=tuple(sorted({day for r in rows for day in r.prices_as_of})),
        spec=results.spec,
        spec_hashes=hashes,
        machine=msgspec.to_builtins(origin) if origin else {},
        groups=groups,
        verdict=verdict,
        invalid=dict(Counter(reason for r in rows for reason in r.invalid)),
        warnings=tuple(warnings),
        runs=tuple(run_lines(rows)),
    )
