# SPDX-License-Identifier: Apache-2.0
"""Writes the page of a scaling sweep: speed-up and efficiency by size, comparison of variants, bindings and failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.report.document import chart_spec, document, escape, figure, refuse_without_charts, table
from penstock.report.sweep_charts import LINE_COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.bench.app.document import Document
    from penstock.bench.app.statistics import Estimate
    from penstock.bench.app.summary import CellSummary, Summary, VariantSummary

__all__ = ["scaling_charts", "scaling_page"]

_POINTS = 40
Spec = dict[str, Any]


def _colour(names: list[str]) -> Any:
    import altair as alt

    legend = alt.Legend(orient="top", title=None, labelLimit=320, columns=2)
    return alt.Color("variant:N", scale=alt.Scale(domain=names, range=LINE_COLOURS), legend=legend)


def _law(variant: VariantSummary) -> Iterator[dict[str, Any]]:
    """Points of the fitted law, as speed-up relative to the smallest size."""
    ran = [row.ranks for row in variant.cells if row.efficiency is not None]
    if variant.fit is None or not ran:
        return
    share, most = variant.fit.serial_share.value, max(ran) / min(ran)
    for at in range(_POINTS + 1):
        q = most ** (at / _POINTS)
        speed_up = 1 / (share + (1 - share) / q) if variant.fit.law == "Amdahl" else q - share * (q - 1)
        yield {"variant": variant.variant, "ranks": min(ran) * q, "speed_up": speed_up}


def speed_up_chart(summary: Summary) -> Spec:
    """Chart of the speed-up by ranks: measured points with intervals, the fitted law, and linear scaling."""
    import altair as alt

    names = [v.variant for v in summary.variants]
    points: list[dict[str, Any]] = []
    law: list[dict[str, Any]] = []
    linear: list[dict[str, Any]] = []
    for variant in summary.variants:
        rows = [row for row in variant.cells if row.efficiency is not None and row.speed_up is not None]
        law += list(_law(variant))
        for row in rows:
            growth = row.ranks / min(each.ranks for each in rows)
            assert row.efficiency is not None
            low, high = row.efficiency.low, row.efficiency.high
            points.append(
                {
                    "variant": variant.variant,
                    "ranks": row.ranks,
                    "nodes": row.nodes,
                    "speed_up": row.speed_up,
                    "low": None if low is None else low * growth,
                    "high": None if high is None else high * growth,
                }
            )
            linear.append({"ranks": row.ranks, "speed_up": growth})
    ranks = sorted({point["ranks"] for point in points})
    x = alt.X("ranks:Q", title="ranks", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=ranks))
    y = alt.Y("speed_up:Q", title="speed-up", scale=alt.Scale(zero=True))
    colour = _colour(names)
    ideal = alt.Chart(alt.Data(values=linear)).mark_line(strokeDash=[4, 3], color="@muted").encode(x=x, y=y)
    fitted = alt.Chart(alt.Data(values=law)).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour)
    base = alt.Chart(alt.Data(values=points))
    bars = base.mark_rule().encode(x=x, y=alt.Y("low:Q", title="speed-up"), y2="high:Q", color=colour)
    tips = [alt.Tooltip(f"{name}:{kind}") for name, kind in (("variant", "N"), ("ranks", "Q"), ("nodes", "Q"))]
    tips.append(alt.Tooltip("speed_up:Q", format=".2f", title="speed-up"))
    marks = base.mark_point(filled=True, size=70).encode(x=x, y=y, color=colour, tooltip=tips)
    return chart_spec(alt.layer(ideal, fitted, bars, marks), height=300)


def cost_chart(summary: Summary) -> Spec:
    """Chart of each variant's cost relative to the first variant, with intervals; 0 means no difference."""
    import altair as alt

    rows = [
        {
            "what": f"{each.variant}, {each.ranks}",
            "variant": each.variant,
            "cost": 100 * each.cost.value,
            "low": None if each.cost.low is None else 100 * each.cost.low,
            "high": None if each.cost.high is None else 100 * each.cost.high,
        }
        for each in summary.overheads
    ]
    y = alt.Y("what:N", title=None, sort=[row["what"] for row in rows], axis=alt.Axis(labelLimit=300, ticks=False))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[4, 3], color="@muted").encode(x="x:Q")
    bars = base.mark_rule(color="@path1").encode(x=alt.X("low:Q", title="more time than the first, %"), x2="high:Q")
    marks = base.mark_point(filled=True, size=70, color="@path1").encode(
        x="cost:Q", tooltip=[alt.Tooltip("what:N"), alt.Tooltip("cost:Q", format="+.1f", title="%")]
    )
    return chart_spec(alt.layer(zero, bars, marks), height={"step": 26})


def scaling_charts(summary: Summary) -> dict[str, Spec]:
    """All charts of a sweep, by name."""
    charts = {}
    if any(row.efficiency is not None for variant in summary.variants for row in variant.cells):
        charts["speed-up"] = speed_up_chart(summary)
    if summary.overheads:
        charts["cost"] = cost_chart(summary)
    return charts


def _efficiency(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    between = (
        ""
        if estimate.low is None or estimate.high is None or estimate.low == estimate.high
        else f" ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"
    )
    return f"{100 * estimate.value:.1f} %{between}"


def _row(row: CellSummary) -> list[tuple[str, str]]:
    failed = row.error and (f"{row.failed_runs} failed: {row.error}" if row.runs else f"failed: {row.error}")
    remarks = "; ".join(filter(None, [failed, row.hint, *row.notes]))
    return [
        ("head", f"{row.ranks} on {row.nodes}"),
        ("n", str(row.runs)),
        ("n", "–" if row.value is None else f"{row.value:.6g}"),
        ("n", "–" if row.wall_s is None else f"{row.wall_s:.2f} s"),
        ("n", "–" if row.speed_up is None else f"{row.speed_up:.2f}"),
        ("n", _efficiency(row.efficiency)),
        ("", escape(" | ".join(row.cpus[:16]))),
        ("w", escape(remarks)),
    ]


def _section(variant: VariantSummary, quantity: str) -> str:
    head = [("", "ranks on nodes"), ("n", "runs"), ("n", quantity), ("n", "wall"), ("n", "speed-up")]
    head += [("n", "efficiency"), ("", "CPUs of each rank"), ("w", "remarks")]
    verdict = "".join(f"<p>{escape(sentence)}.</p>" for sentence in variant.verdict)
    return f"<h2>{escape(variant.variant)}</h2>{verdict}" + table(head, [_row(row) for row in variant.cells])


def scaling_page(found: Document) -> str:
    """Return the complete HTML document.

    Raises:
        Unsupported: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    summary = found.summary
    charts = scaling_charts(summary)
    title = f"{summary.scaling.capitalize()} scaling"
    parts = [f"<h1>{escape(found.label or title)}</h1>"]
    if not found.complete:
        parts.append("<p>This sweep was interrupted; it contains the runs that had ended.</p>")
    if "speed-up" in charts:
        what = (
            "the whole problem grows with the ranks" if summary.scaling == "weak" else "the same problem at every size"
        )
        parts.append(
            figure("speed-up", f"Speed-up by ranks, {escape(what)}. Dashed: linear. Lines: the fitted law. Bars: 95 %.")
        )
    if "cost" in charts:
        base = escape(summary.overheads[0].base)
        parts.append(figure("cost", f"Time per step compared with {base}, with 95 % intervals; 0 is no difference."))
        sentences = "".join(
            f"<li>{escape(each.variant)}, {each.ranks} ranks: {escape(each.sentence)}</li>"
            for each in summary.overheads
        )
        parts.append(f"<ul>{sentences}</ul>")
    parts += [_section(variant, summary.quantity) for variant in summary.variants]
    notes = (*summary.notes, *found.notes)
    parts += [f'<p class="note">{escape(note)}.</p>' for note in notes]
    machine = found.machine.machine
    parts.append(
        f'<p class="note">{escape(machine.cpu)}, {machine.cores} cores, {escape(machine.kernel)};'
        f" specification {escape(found.spec_hash)}; Penstock {escape(found.machine.version)}.</p>"
    )
    return document(title, parts, charts)
