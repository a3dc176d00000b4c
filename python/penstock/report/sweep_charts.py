# SPDX-License-Identifier: Apache-2.0
"""Builds the Vega-Lite charts of a sweep: surfaces with regimes, latencies, time series, disk limits, lost time.

Colours are names such as `@path1`, as in `charts`. A page replaces them with the colours of its light or dark
scheme, and `image_export` with the colours of the light scheme.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.rows import WATCHED
from penstock.report.document import chart_spec
from penstock.report.sweep import name_of, rate_label
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.rows import Row
    from penstock.report.sweep import CellGroup

__all__ = ["LINE_COLOURS", "REGIME_COLOURS", "sweep_charts"]

# Background colours on which text in the ink colour is readable, in both schemes.
REGIME_COLOURS = {
    "concurrency": "@fill1",
    "metadata": "@fill3",
    "bandwidth": "@fill2",
    "client": "@fill4",
    "iops": "@fillwait",
    "throttle": "@fill0",
}
LINE_COLOURS = ["@path1", "@path0", "@path2", "@path3", "@path4", "@wait", "@compute"]
# Maximum number of lines in a chart: one per colour.
_MAX_LINES = len(LINE_COLOURS)
_MAX_BARS = 24
_LOSSES = ["@compute", "@wait", "@path1", "@path4", "@path3", "@path2", "@path0", "@line", "@muted"]
Spec = dict[str, Any]


def surface(group: CellGroup) -> Spec:
    """Chart of throughput by size and threads. The colour shows the regime, the opacity the share of the best rate."""
    import altair as alt

    best = group.best.bytes_per_s or group.best.entries_per_s
    by_block = len({c.file_size_bytes for c in group.cells}) == 1 and len({c.block_size_bytes for c in group.cells}) > 1

    def size(cell: Any) -> int:
        return (cell.block_size_bytes if by_block else cell.file_size_bytes) or 0

    rows = [
        {
            "size": format_bytes(size(c), binary=True) if size(c) else "any",
            "threads": str(c.threads),
            "regime": c.regime,
            "rate": rate_label(c),
            "share": (c.bytes_per_s or c.entries_per_s) / best if best else 0.0,
            "mark": "▼" if c.retrograde else "",
            "next": f"{c.advice.text} (x{c.advice.gain:.1f})" if c.advice else "",
        }
        for c in group.cells
    ]
    sizes = [format_bytes(s, binary=True) if s else "any" for s in sorted({size(c) for c in group.cells})]
    threads = [str(t) for t in sorted({c.threads for c in group.cells}, reverse=True)]
    shown = [r for r in REGIME_COLOURS if r in group.regimes]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(
            "size:N",
            sort=sizes,
            title="block size" if by_block else "file size",
            axis=alt.Axis(labelAngle=0, orient="bottom", ticks=False, domain=False),
        ),
        y=alt.Y("threads:N", sort=threads, title="threads a host", axis=alt.Axis(ticks=False, domain=False)),
    )
    tip = [alt.Tooltip(f"{name}:N", title=title) for name, title in _TIPS]
    boxes = base.mark_rect(stroke="@sheet", strokeWidth=3, cornerRadius=5).encode(
        color=alt.Color(
            "regime:N",
            scale=alt.Scale(domain=shown, range=[REGIME_COLOURS[r] for r in shown]),
            legend=alt.Legend(orient="top", title=None, symbolType="square", columns=6),
        ),
        opacity=alt.Opacity("share:Q", scale=alt.Scale(type="sqrt", domain=[0, 1], range=[0.2, 0.7]), legend=None),
        tooltip=tip,
    )
    text = base.mark_text(color="@ink", fontWeight=600).encode(text="rate:N", tooltip=tip)
    marks = base.mark_text(color="@ink", dy=16, fontSize=10).encode(text="mark:N", tooltip=tip)
    return chart_spec(alt.layer(boxes, text, marks), height={"step": 46})


_TIPS = [
    ("size", "size"),
    ("threads", "threads"),
    ("rate", "rate"),
    ("regime", "limited by"),
    ("mark", "slower than with fewer"),
    ("next", "next measurement"),
]


def _legend(names: Sequence[str]) -> Any:
    import altair as alt

    return alt.Color(
        "name:N",
        scale=alt.Scale(domain=list(names), range=LINE_COLOURS[: len(names)]),
        legend=alt.Legend(
            orient="top", title=None, symbolType="stroke", symbolStrokeWidth=4, labelLimit=330, columns=2
        ),
    )


def _numbered(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Give each row a distinct name. A label that is equal in all rows is left out of the names."""
    seen: dict[str, int] = {}
    named = []
    if len({row.label for row in rows}) == 1 and not any(row.operation in WATCHED for row in rows):
        rows = [msgspec.structs.replace(row, label="") for row in rows]
    for row in rows:
        name = name_of(row)
        seen[name] = seen.get(name, 0) + 1
        named.append((name if seen[name] == 1 else f"{name} #{seen[name]}", row))
    return named


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, … around a range, for the labelled grid lines of a logarithmic axis."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [float(f"{digit}e{exponent}") for exponent in exponents for digit in (1, 2, 5)]


def latencies(rows: Sequence[Row]) -> Spec | None:
    """Chart of latency percentiles, one line per row: of whole files or objects if they were timed, else of blocks."""
    import altair as alt

    measured = [(row, r) for row in rows if (r := row.entry_latency or row.io_latency) and r.percentiles_us]
    if not measured:
        return None
    measured = sorted(measured, key=lambda pair: -max(pair[1].percentiles_us.values()))[:_MAX_LINES]
    named = [(name, r) for (name, _), (_, r) in zip(_numbered([row for row, _ in measured]), measured, strict=True)]
    order = sorted({float(p) for _, r in measured for p in r.percentiles_us})
    values = [
        {"name": name, "percentile": f"p{float(p):g}", "ms": us / 1000}
        for name, latency in named
        for p, us in sorted(latency.percentiles_us.items(), key=lambda item: float(item[0]))
        if us > 0
    ]
    shown = [us / 1000 for _, latency in named for us in latency.percentiles_us.values() if us > 0] or [1.0]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line(point=True, strokeWidth=2.5)
        .encode(
            x=alt.X(
                "percentile:N", sort=[f"p{p:g}" for p in order], title=None, axis=alt.Axis(labelAngle=0, grid=False)
            ),
            y=alt.Y(
                "ms:Q",
                title="milliseconds",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(values=_decades(min(shown), max(shown)), format="~g"),
            ),
            color=_legend([name for name, _ in named]),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("percentile:N"), alt.Tooltip("ms:Q", format=",.3f")],
        )
    )
    return chart_spec(chart, height=280)


def _with_series(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    most = sorted((r for r in rows if len(r.series) > 1), key=lambda r: -len(r.series))[:_MAX_LINES]
    return _numbered(most)


def series(rows: Sequence[Row]) -> Spec | None:
    """Chart of the rate over time, with marks where the store throttled requests."""
    import altair as alt

    moving = [row for row in rows if any(s.bytes_per_s for s in row.series)]
    # Leave out rows that transfer no data, such as deletions: they would be lines at zero.
    named = _with_series(moving or rows)
    if not named:
        return None
    moves = bool(moving)
    values = [
        {
            "name": name,
            "at": s.at_s,
            "rate": s.bytes_per_s / 1e6 if moves else s.entries_per_s,
            "throttles": s.throttles or None,
        }
        for name, row in named
        for s in row.series
    ]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("at:Q", title="seconds", axis=alt.Axis(grid=False, tickCount=8), scale=alt.Scale(nice=False)),
        y=alt.Y(
            "rate:Q", title="MB/s" if moves else "operations/s", axis=alt.Axis(tickCount=5), scale=alt.Scale(zero=True)
        ),
        color=_legend([name for name, _ in named]),
        tooltip=[
            alt.Tooltip("name:N"),
            alt.Tooltip("at:Q", format=".1f", title="seconds"),
            alt.Tooltip("rate:Q", format=",.1f"),
            alt.Tooltip("throttles:Q", title="refused"),
        ],
    )
    refused = base.transform_filter("datum.throttles > 0").mark_point(shape="triangle-down", filled=True, size=80)
    return chart_spec(alt.layer(base.mark_line(strokeWidth=2), refused.encode(color=alt.value("@ink"))), height=260)


_LIMITS = {
    "bytes_per_s": ("MB/s", 1e6),
    "ios_per_s": ("I/O operations/s", 1.0),
    "entries_per_s": ("operations/s", 1.0),
}


def limits(rows: Sequence[Row]) -> dict[str, Spec]:
    """One chart per stated limit of a disk or tier, with the measured rate over time and the limit as a line."""
    import altair as alt

    made: dict[str, Spec] = {}
    for limit, (unit, scale) in _LIMITS.items():
        named = [(name, row) for name, row in _with_series([r for r in rows if limit in r.limits])]
        values = [
            {"name": name, "at": s.at_s, "value": value / scale, "busy": s.busy, "queue": s.queue}
            for name, row in named
            for s in row.series
            if (value := getattr(s, limit)) is not None
        ]
        if not values:
            continue
        base = alt.Chart(alt.Data(values=values))
        lines = base.mark_line(strokeWidth=2).encode(
            x=alt.X("at:Q", title="seconds", axis=alt.Axis(grid=False, tickCount=8), scale=alt.Scale(nice=False)),
            y=alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=5), scale=alt.Scale(zero=True)),
            color=_legend([name for name, _ in named]),
            tooltip=[
                alt.Tooltip("name:N"),
                alt.Tooltip("value:Q", format=",.1f", title=unit),
                alt.Tooltip("busy:Q", format=".0%"),
                alt.Tooltip("queue:Q", format=".1f"),
            ],
        )
        stated = sorted({row.limits[limit] / scale for _, row in named})
        rule = alt.Chart(alt.Data(values=[{"value": v, "text": f"stated {v:,.0f} {unit}"} for v in stated]))
        made[limit] = chart_spec(
            alt.layer(
                lines,
                rule.mark_rule(strokeDash=[4, 3], color="@ink").encode(y="value:Q"),
                rule.mark_text(align="left", dx=4, dy=-6, color="@muted", fontSize=11).encode(
                    x=alt.value(0), y="value:Q", text="text:N"
                ),
            ),
            height=220,
        )
    return made


def losses(rows: Sequence[Row]) -> Spec | None:
    """Chart of each phase's worker time, by cause."""
    import altair as alt

    shown = _numbered([r for r in rows if sum(r.lost_s_by_cause.values()) > 0][:_MAX_BARS])
    if not shown:
        return None
    kinds = list(dict.fromkeys(kind for _, row in shown for kind in row.lost_s_by_cause))
    values = [
        {"name": name, "kind": kind, "share": s / sum(row.lost_s_by_cause.values()), "s": s, "order": kinds.index(kind)}
        for name, row in shown
        for kind, s in row.lost_s_by_cause.items()
    ]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_bar(height=18)
        .encode(
            y=alt.Y(
                "name:N",
                sort=[n for n, _ in shown],
                title=None,
                axis=alt.Axis(labelLimit=320, labelPadding=8, ticks=False, domain=False),
            ),
            x=alt.X(
                "share:Q",
                title="share of the workers' time",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", tickCount=5),
            ),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=[_LOSSES[i % len(_LOSSES)] for i in range(len(kinds))]),
                legend=alt.Legend(orient="top", title=None, symbolType="square", columns=5),
            ),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("s:Q", format=",.2f", title="seconds")],
        )
    )
    return chart_spec(chart, height={"step": 34})


def sweep_charts(groups: Sequence[CellGroup], rows: Sequence[Row]) -> dict[str, Spec]:
    """Build all charts for which the rows have data, by the name of their figure on the page."""
    sound = [r for r in rows if not r.invalid]
    made = {f"surface-{i}": surface(group) for i, group in enumerate(groups)}
    more = {"latencies": latencies(sound), "series": series(sound), "losses": losses(sound)}
    made |= {name: spec for name, spec in more.items() if spec is not None}
    return made | {f"limit-{name}": spec for name, spec in limits(sound).items()}
