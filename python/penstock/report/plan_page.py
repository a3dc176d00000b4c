# SPDX-License-Identifier: Apache-2.0
"""Writes the page of a plan: the answer, the frontier of time and money, every prediction, and the sources of its
numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock.plan.analysis import limit_words
from penstock.plan.result import money_words
from penstock.report.document import chart_spec, document, escape, figure, refuse_without_charts, table
from penstock.units import format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.plan.result import PlanResult, Row
    from penstock.plan.simulated_plan import SimulatedScenario

__all__ = ["plan_charts", "plan_page"]

# Rows of the large table. The JSON document and the log contain all rows.
MAX_ROWS = 400
_PALETTE = 5  # colours of page.css; paths of the same colour differ in shape
Spec = dict[str, Any]


def _possible(result: PlanResult) -> list[Row]:
    return [row for row in result.rows if not row.prediction.impossible and math.isfinite(row.prediction.finish_s)]


def _paths(result: PlanResult) -> list[str]:
    return list(dict.fromkeys(row.prediction.path for row in result.rows))


def _colours(result: PlanResult) -> Any:
    import altair as alt

    paths = _paths(result)
    return alt.Color(
        "path:N",
        scale=alt.Scale(domain=paths, range=[f"@path{i % _PALETTE}" for i in range(len(paths))]),
        legend=alt.Legend(orient="top", title=None, labelLimit=320, columns=2),
    )


def _fact(row: Row, currency: str) -> dict[str, Any]:
    p = row.prediction
    return {
        "path": p.path,
        "where": f"{p.nodes} x {p.machine}",
        "nodes": p.nodes,
        "hours": p.finish_s / 3600,
        "rate": p.samples_per_s,
        "money": p.money.total,
        "cost": money_words(p.money.total, currency),
        "time": format_seconds(p.finish_s),
        "limit": limit_words(p.limited_by),
        "front": row.on_frontier,
    }


def frontier_chart(result: PlanResult) -> Spec:
    """Chart of money by hours: dominated predictions are hollow, and a line joins the frontier."""
    import altair as alt

    rows = [_fact(row, result.currency) for row in _possible(result) if row.prediction.money.total is not None]
    x = alt.X("hours:Q", title="hours until the job has ended", scale=alt.Scale(type="log"), axis=alt.Axis(grid=False))
    y = alt.Y("money:Q", title=f"cost of the job, {result.currency}", scale=alt.Scale(type="log"))
    tip = [
        alt.Tooltip(f"{name}:N", title=title)
        for name, title in (
            ("path", "path"), ("where", "nodes"), ("time", "time"), ("cost", "cost"), ("limit", "limited by")
        )
    ]  # fmt: skip
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    line = (
        base.transform_filter("datum.front")
        .mark_line(color="@muted", strokeDash=[4, 3], interpolate="step-after")
        .encode(order=alt.Order("hours:Q"))
    )
    behind = base.transform_filter("!datum.front").mark_point(size=45, opacity=0.55)
    ahead = base.transform_filter("datum.front").mark_point(size=80, filled=True, opacity=1)
    colour = _colours(result)
    shape = alt.Shape("path:N", scale=alt.Scale(domain=_paths(result)))
    marks = [points.encode(color=colour, shape=shape, tooltip=tip) for points in (behind, ahead)]
    return chart_spec(alt.layer(line, *marks), height=340)


def scaling_chart(result: PlanResult) -> Spec:
    """Chart of the predicted rate by number of nodes, for the plan's first machine."""
    import altair as alt

    machine = result.rows[0].prediction.machine
    rows = [_fact(row, result.currency) for row in _possible(result) if row.prediction.machine == machine]
    tip = [alt.Tooltip("path:N"), alt.Tooltip("nodes:Q"), alt.Tooltip("rate:Q", format=",.0f"), alt.Tooltip("limit:N")]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(strokeWidth=2.5, point=True)
        .encode(
            x=alt.X("nodes:Q", title=f"nodes of {machine}", axis=alt.Axis(grid=False, tickMinStep=1)),
            y=alt.Y("rate:Q", title=f"{result.unit}/s"),
            color=_colours(result),
            strokeDash=alt.StrokeDash("path:N", scale=alt.Scale(domain=_paths(result)), legend=None),
            tooltip=tip,
        )
    )
    return chart_spec(chart, height=280)


def sensitivity_chart(result: PlanResult) -> Spec:
    """Chart of the job's hours for -20 % and +20 % of each limit that matters."""
    import altair as alt

    felt = [row for row in result.sensitivity if abs(row.time_elasticity) >= 0.005]
    rows = [
        {"limit": row.limit, "less": row.time_less_s / 3600, "more": row.time_more_s / 3600, "e": row.time_elasticity}
        for row in felt
    ]
    y = alt.Y("limit:N", title=None, sort=[row["limit"] for row in rows], axis=alt.Axis(labelLimit=300, ticks=False))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    tip = [
        alt.Tooltip("limit:N"), alt.Tooltip("less:Q", format=".2f", title="hours with 20 % less"),
        alt.Tooltip("more:Q", format=".2f", title="hours with 20 % more"),
        alt.Tooltip("e:Q", format="+.2f", title="elasticity"),
    ]  # fmt: skip
    bar = base.mark_bar(height=14, color="@path1").encode(
        x=alt.X("less:Q", title="hours of the job", scale=alt.Scale(zero=False)), x2="more:Q", tooltip=tip
    )
    return chart_spec(bar, height={"step": 28})


def plan_charts(result: PlanResult) -> dict[str, Spec]:
    """All charts of a plan, by name."""
    charts = {}
    if any(row.prediction.money.total is not None for row in _possible(result)):
        charts["frontier"] = frontier_chart(result)
    if len({row.prediction.nodes for row in result.rows}) > 1:
        charts["scaling"] = scaling_chart(result)
    if any(abs(row.time_elasticity) >= 0.005 for row in result.sensitivity):
        charts["sensitivity"] = sensitivity_chart(result)
    return charts


def _row(row: Row, currency: str) -> list[tuple[str, str]]:
    p = row.prediction
    mark = "frontier" if row.on_frontier else "dominated" if p.money.total is not None else "no price"
    money = (p.money.compute, p.money.storage, p.money.requests, p.money.egress, p.money.total)
    return [
        ("head", escape(p.path)),
        ("", escape(f"{p.nodes} x {p.machine}")),
        ("n", f"{p.accelerators:,}"),
        *(("n", escape(_time(seconds))) for seconds in (p.before_s, p.first_epoch_s, p.epoch_s, p.lost_s, p.finish_s)),
        *(("n", escape(money_words(item, currency))) for item in money),
        ("w", escape(p.impossible or limit_words(p.limited_by))),
        ("", escape("impossible" if p.impossible else mark)),
    ]


def _time(seconds: float) -> str:
    return format_seconds(seconds) if math.isfinite(seconds) else "never"


_HEAD = [
    ("", "path"), ("", "nodes"), ("n", "accelerators"), ("n", "before"), ("n", "first epoch"), ("n", "epoch"),
    ("n", "lost (spot)"), ("n", "job"), ("n", "compute"), ("n", "storage"), ("n", "requests"), ("n", "egress"),
    ("n", "total"), ("w", "limited by"), ("", ""),
]  # fmt: skip


def plan_page(result: PlanResult, *, target: str | None = None, simulated: Sequence[SimulatedScenario] = ()) -> str:
    """Return the complete HTML document, with the sentence about a target and the simulated epochs if there are any.

    Raises:
        Unsupported: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    charts = plan_charts(result)
    captions = {
        "frontier": "Cost by time. Filled points are on the frontier: no other prediction beats them in both. Hollow points are dominated.",
        "scaling": f"Predicted {escape(result.unit)}/s by number of nodes.",
        "sensitivity": "Hours of the job if one limit is 20 % lower or higher; limits without an effect are left out.",
    }
    parts = [f"<h1>Plan: {escape(result.name)}</h1>", f"<p>{escape(result.answer)}</p>"]
    if target is not None:
        parts.append(f"<p>{escape(target)}</p>")
    parts += [figure(name, captions[name]) for name in charts]
    shown = sorted(result.rows, key=lambda row: (not row.on_frontier, row.prediction.finish_s))[:MAX_ROWS]
    parts.append("<h2>Predictions</h2>" + table(_HEAD, (_row(row, result.currency) for row in shown)))
    if len(result.rows) > len(shown):
        parts.append(f'<p class="note">{len(result.rows) - len(shown):,} more rows are left out here.</p>')
    if simulated:
        parts.append("<h2>Simulated epochs</h2>" + _simulations(simulated))
    parts.append("<h2>Demand of accelerators that never wait</h2>" + _demand(result))
    if result.break_even:
        parts.append("<h2>Break-even of paths that stage</h2>" + _break_even(result))
    if result.unknown:
        missing = "".join(f"<li>{escape(text)}</li>" for text in result.unknown)
        parts.append(f"<h2>Unknown prices</h2><ul>{missing}</ul>")
    if result.doubts:
        doubts = "".join(f"<li>{escape(text)}</li>" for text in result.doubts)
        parts.append(f"<h2>Doubtful limits</h2><ul>{doubts}</ul>")
    sources = "".join(f"<li>{escape(text)}</li>" for text in (*result.prices, *result.limits))
    parts.append(f"<h2>Where the numbers are from</h2><ul>{sources}</ul>")
    parts += [f'<p class="note">{escape(note)}</p>' for note in (*result.notes, f"{result.dates}.")]
    parts.append(
        f'<p class="note">Predictions {escape(result.id)}.*, made {escape(result.created)}; plan file {escape(result.spec_hash)}.</p>'
    )
    return document(f"Plan: {result.name}", parts, charts)


def _break_even(result: PlanResult) -> str:
    head = [
        ("", "path"),
        ("", "against"),
        ("", "nodes"),
        ("n", "ends first from (epochs)"),
        ("n", "costs less from (epochs)"),
    ]
    return table(
        head,
        (
            [
                ("head", escape(point.path)),
                ("", escape(point.against)),
                ("", escape(f"{point.nodes} x {point.machine}")),
                ("n", "never" if point.from_epochs is None else f"{point.from_epochs:,}"),
                ("n", "never or unknown" if point.from_epochs_money is None else f"{point.from_epochs_money:,}"),
            ]
            for point in result.break_even[:MAX_ROWS]
        ),
    )


def _simulations(simulated: Sequence[SimulatedScenario]) -> str:
    head = [("", "path"), ("", "nodes"), ("n", "epoch (median)"), ("n", "5 % to 95 %"), ("n", "refused requests")]
    head += [("n", "failures"), ("w", "use of shared limits")]

    def row(one: SimulatedScenario) -> list[tuple[str, str]]:
        found = one.simulation
        return [
            ("head", escape(one.path)),
            ("", escape(f"{one.nodes} x {one.machine}")),
            ("n", _time(found.p50_s)),
            ("n", f"{_time(found.p5_s)} to {_time(found.p95_s)}"),
            ("n", f"{found.refused:,.0f}"),
            ("n", f"{found.failures:.1f}"),
            ("w", escape(found.uses_of_limits)),
        ]

    verdicts = (f"<li>{escape(one.path)}: {escape(one.simulation.verdict)}</li>" for one in simulated)
    return f"{table(head, map(row, simulated))}<ul>{''.join(verdicts)}</ul>"


def _demand(result: PlanResult) -> str:
    head = [("", "machine"), ("", "form"), ("n", "nodes"), ("n", "accelerators"), ("n", f"{result.unit}/s")]
    head += [("n", "bytes/s"), ("n", "per node"), ("n", "opens/s"), ("n", "in flight"), ("n", "cores per node")]
    return table(
        head,
        (
            [
                ("head", escape(need.machine)),
                ("", need.form),
                ("n", f"{need.nodes:,}"),
                ("n", f"{need.accelerators:,}"),
                ("n", f"{need.samples_per_s:,.0f}"),
                ("n", format_rate(need.bytes_per_s)),
                ("n", format_rate(need.node_bytes_per_s)),
                ("n", f"{need.opens_per_s:,.0f}"),
                ("n", f"{need.in_flight:,.0f}"),
                ("n", f"{need.cores_per_node:.1f}"),
            ]
            for need in result.demand[:MAX_ROWS]
        ),
    )
