# SPDX-License-Identifier: Apache-2.0
"""First table of a sweep page. Each run and operation has one line with rate, tail and money. Runs are compared point
by point.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.rows import HOUSEKEEPING, moves_bytes
from penstock.price.book import dates_text
from penstock.report.document import chart_spec, escape, figure, table
from penstock.report.number_format import usd
from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    from penstock.bench.rows import Row

__all__ = ["RunLine", "money_text", "run_lines", "runs_charts", "runs_section"]

_MAX_LINES = 30
_MAX_BARS = 30
_TB = 1e12
_Point = tuple[Any, ...]


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one run.

    Attributes:
        rows: Number of valid rows.
        rate: Median rate at the run's best point: bytes/s if the operation moves bytes, else operations/s.
        at: The best point, as text.
        ratio: Geometric mean of the rates divided by the rates of the first run, over the points that both runs
            measured. None for the first run, or if the two runs have no point in common.
        common: Number of these points.
        p50_us, p99_us: Median over the rows of the best point; None if latencies were not recorded.
        failed: Failed and throttled requests of all rows.
        usd: Recorded cost of all rows; None if no row has a cost.
        usd_per_tb: Recorded cost per TB moved.
    """

    run: str
    operation: str
    rows: int
    rate: float
    is_bytes: bool
    at: str
    ratio: float | None = None
    common: int = 0
    p50_us: float | None = None
    p99_us: float | None = None
    failed: int = 0
    usd: float | None = None
    usd_per_tb: float | None = None

    @property
    def rate_text(self) -> str:
        return format_rate(self.rate) if self.is_bytes else f"{self.rate:,.0f}/s"


def _point(row: Row) -> _Point:
    return (row.hosts, row.threads, row.io_depth, row.file_size_bytes, row.block_size_bytes, row.direct, row.random)


def _rate(row: Row) -> float:
    return (row.last.bytes_per_s if moves_bytes(row.operation) else row.last.entries_per_s) or 0.0


def _percentile(rows: Sequence[Row], name: str) -> float | None:
    found = [
        value
        for row in rows
        if (latency := row.entry_latency or row.io_latency) and (value := latency.percentiles_us.get(name))
    ]
    return median(found) if found else None


def _at(row: Row) -> str:
    threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
    hosts = f"{row.hosts} x " if row.hosts > 1 else ""
    size = row.file_size_bytes or row.block_size_bytes
    return hosts + threads + (f", {format_bytes(size, binary=True)}" if size else "")


def run_lines(rows: Sequence[Row]) -> list[RunLine]:
    """One line per run (label) and operation, in the order of the rows; operations that move bytes come first."""
    parts: dict[tuple[str, str], dict[_Point, list[Row]]] = {}
    for row in rows:
        if not row.invalid and row.operation not in HOUSEKEEPING:
            parts.setdefault((row.operation, row.label), {}).setdefault(_point(row), []).append(row)
    first: dict[str, dict[_Point, float]] = {}
    lines = []
    for (operation, label), points in parts.items():
        rates = {point: median(map(_rate, several)) for point, several in points.items()}
        base = first.setdefault(operation, rates)
        common = [p for p in rates if base is not rates and base.get(p, 0.0) > 0 and rates[p] > 0]
        best = points[max(rates, key=rates.__getitem__)]
        every = [row for several in points.values() for row in several]
        costs = [row.usd for row in every if row.usd is not None]
        priced = sum(row.last.bytes or 0.0 for row in every if row.usd is not None)
        lines.append(
            RunLine(
                run=label or "unnamed run",
                operation=operation,
                rows=len(every),
                rate=max(rates.values()),
                is_bytes=moves_bytes(operation),
                at=_at(best[0]),
                ratio=math.exp(sum(math.log(rates[p] / base[p]) for p in common) / len(common)) if common else None,
                common=len(common),
                p50_us=_percentile(best, "50"),
                p99_us=_percentile(best, "99"),
                failed=sum(sum(row.errors_by_class.values()) for row in every),
                usd=sum(costs) if costs else None,
                usd_per_tb=sum(costs) / priced * _TB if costs and priced else None,
            )
        )
    return sorted(lines, key=lambda line: (not line.is_bytes, line.operation))


def money_text(rows: Sequence[Row], today: dt.date) -> str:
    """One sentence with the recorded cost, the age of its prices, and the rows without a cost."""
    sound = [row for row in rows if not row.invalid]
    costs = [row.usd for row in sound if row.usd is not None]
    if not costs:
        return "Cost: none of these rows has one. Rows without a cost are not free."
    dates = [day for row in sound for day in row.prices_as_of]
    without = len(sound) - len(costs)
    missing = f"; {without:,} of {len(sound):,} rows have no cost and are not counted" if without else ""
    aged = dates_text(sorted(set(dates)), today) if dates else "the dates of its prices were not recorded"
    return f"Cost: {usd(sum(costs))} for {len(costs):,} rows; {aged}{missing}."


def runs_charts(lines: Sequence[RunLine]) -> dict[str, Any]:
    """Chart of the best rate of each run, for the operation that most runs have; empty for a single run."""
    counts = {operation: [one for one in lines if one.operation == operation] for operation in _operations(lines)}
    shown = max(counts.values(), key=len, default=[])[:_MAX_BARS]
    if len(shown) < 2:
        return {}
    import altair as alt

    scale = 1e6 if shown[0].is_bytes else 1.0
    rows = [{"run": one.run, "rate": one.rate / scale, "text": one.rate_text, "at": one.at} for one in shown]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y(
            "run:N",
            sort=[one.run for one in shown],
            title=None,
            axis=alt.Axis(labelLimit=260, labelPadding=8, ticks=False, domain=False),
        )
    )
    unit = "MB/s" if shown[0].is_bytes else "operations/s"
    top = 1.25 * max(one.rate for one in shown) / scale
    x = alt.X(
        "rate:Q", title=f"{shown[0].operation}, {unit}", scale=alt.Scale(domain=[0, top]), axis=alt.Axis(tickCount=6)
    )
    tip = [alt.Tooltip("run:N"), alt.Tooltip("text:N", title="best rate"), alt.Tooltip("at:N")]
    bars = base.mark_bar(height=16, cornerRadiusEnd=3, color="@path1").encode(x=x, tooltip=tip)
    text = base.mark_text(align="left", dx=6, color="@ink").encode(x="rate:Q", text="text:N")
    return {"runs": chart_spec(alt.layer(bars, text), height={"step": 26})}


def _operations(lines: Sequence[RunLine]) -> list[str]:
    return list(dict.fromkeys(line.operation for line in lines))


def runs_section(lines: Sequence[RunLine], money: str, charts: dict[str, Any]) -> str:
    """HTML of the table, the money and the chart; empty without lines. Columns without any value are left out."""
    note = f'<p class="note">{escape(money)}</p>'
    if not lines:
        return note
    runs = len({line.run for line in lines})
    columns: list[tuple[str, str, Callable[[RunLine], str]]] = [
        *([("head", "run", lambda one: one.run)] if runs > 1 else []),
        ("" if runs > 1 else "head", "operation", lambda one: one.operation),
        ("n", "best rate", lambda one: one.rate_text),
        ("t", "at", lambda one: one.at),
        ("n", "p50", lambda one: _time(one.p50_us)),
        ("n", "p99", lambda one: _time(one.p99_us)),
        ("n", "against the first", lambda one: "" if one.ratio is None else f"×{one.ratio:.2f}"),
        ("n", "points in common", lambda one: f"{one.common:,}" if one.common else ""),
        ("n", "failed requests", lambda one: f"{one.failed:,}" if one.failed else ""),
        ("n", "rows", lambda one: f"{one.rows:,}"),
        ("n", "cost", lambda one: "" if one.usd is None else usd(one.usd)),
        ("n", "per TB", lambda one: "" if one.usd_per_tb is None else usd(one.usd_per_tb)),
    ]
    shown = lines[:_MAX_LINES]
    kept = [column for column in columns if any(column[2](one) for one in shown)]
    head = [("" if kind == "head" else kind, name) for kind, name, _ in kept]
    body = [[(kind, escape(text(one) or "–")) for kind, _, text in kept] for one in shown]
    said = []
    if runs > 1:
        said.append(f"{runs} runs. “Against the first” is the geometric mean of the ratios of rates over the points that both runs measured.")  # fmt: skip
    if len(lines) > len(shown):
        said.append(f"{len(lines) - len(shown):,} more lines are in the JSON.")
    more = f'<p class="note">{escape(" ".join(said))}</p>' if said else ""
    chart = figure("runs", "Best rate of each run: the median of the repeats of its fastest point.") if charts else ""
    return table(head, body) + note + more + chart


def _time(us: float | None) -> str:
    return format_seconds(us / 1e6) if us else ""
