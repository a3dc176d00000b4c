# SPDX-License-Identifier: Apache-2.0
"""Builds the Vega-Lite charts of a comparison.

Colours are names such as `@path1`, which the page replaces with the colours of its light or dark scheme. Imports altair
only when it builds the first chart.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.report import number_format
from penstock.report.document import chart_spec
from penstock.units import format_seconds

if TYPE_CHECKING:
    from penstock.report.comparison import Comparison

__all__ = ["charts", "per_point"]

_ROW = {"step": 46}
# Colours of the parts of a step: a muted colour for computation, and a separate hue for each kind of waiting.
_PARTS = {
    "accelerators": "@compute",
    "first bytes": "@wait",
    "bytes in transit": "@path1",
    "throttled": "@path4",
    "inflating": "@path3",
    "checking and copying": "@path2",
    "not yet requested": "@line",
}
MAX_POINTS = 64
Spec = dict[str, Any]


def _literal(text: str) -> str:
    """Quote a text as a string literal for a Vega expression."""
    return json.dumps(text)


def _colour(facts: Comparison, *, legend: bool = False) -> Any:
    import altair as alt

    shown = (
        alt.Legend(orient="top", title=None, symbolType="stroke", symbolStrokeWidth=4, labelLimit=260, columns=2)
        if legend
        else None
    )
    labels = [p.label for p in facts.paths]
    return alt.Color(
        "path:N", scale=alt.Scale(domain=labels, range=[f"@path{i}" for i in range(len(labels))]), legend=shown
    )


def _labels(facts: Comparison) -> Any:
    import altair as alt

    return alt.Y(
        "path:N",
        sort=[p.label for p in facts.paths],
        title=None,
        axis=alt.Axis(labelExpr="split(datum.label, ', ')", labelLimit=150, labelPadding=8, ticks=False, domain=False),
    )


def rates(facts: Comparison) -> Spec:
    """Chart of the measured samples/s, with the model's prediction and the maximum rate of the accelerators."""
    import altair as alt

    ceiling = facts.rehearsal.batch / facts.rehearsal.step_s if facts.rehearsal.step_s else 0.0
    rows = [
        {
            "path": p.label,
            "rate": p.samples_per_s,
            "model": p.model_samples_per_s or None,
            "text": number_format.rate(p.samples_per_s),
            "limit": p.limited_by,
        }
        for p in facts.paths
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(y=_labels(facts))
    top = max([ceiling, *(p.samples_per_s for p in facts.paths)]) * 1.12
    axis = alt.X("rate:Q", title="samples/s", scale=alt.Scale(domain=[0, top]), axis=alt.Axis(tickCount=6))
    tip = [
        alt.Tooltip("path:N"),
        alt.Tooltip("rate:Q", format=".1f", title="measured samples/s"),
        alt.Tooltip("model:Q", format=".1f", title="model's prediction"),
        alt.Tooltip("limit:N", title="limited by"),
    ]
    bars = base.mark_bar(height=20, cornerRadiusEnd=3).encode(x=axis, color=_colour(facts), tooltip=tip)
    text = base.mark_text(align="right", dx=-7, fontWeight=600, color="@paper").encode(x="rate:Q", text="text:N")
    model_mark = base.mark_tick(thickness=2, size=30, color="@ink").encode(x="model:Q", tooltip=tip)
    line = alt.Chart(alt.Data(values=[{"x": ceiling, "text": "maximum of the accelerators"}]))
    rule = line.mark_rule(strokeDash=[4, 3], color="@muted").encode(x="x:Q")
    note = line.mark_text(align="right", dx=-5, dy=2, baseline="top", color="@muted", fontSize=11).encode(
        x="x:Q", y=alt.value(0), text="text:N"
    )
    return chart_spec(alt.layer(bars, text, model_mark, rule, note), height=_ROW)


def steps(facts: Comparison) -> Spec:
    """Chart of the time of a rehearsal's step, by part."""
    import altair as alt

    order = list(dict.fromkeys(part for p in facts.paths for part in p.step_parts_s))
    rows = [
        {"path": p.label, "part": part, "seconds": value, "order": order.index(part), "text": format_seconds(value)}
        for p in facts.paths
        for part, value in p.step_parts_s.items()
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(height=20)
        .encode(
            y=_labels(facts),
            x=alt.X("seconds:Q", title="seconds per step", axis=alt.Axis(tickCount=6)),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=order, range=[_PARTS.get(part, "@muted") for part in order]),
                legend=alt.Legend(orient="top", title=None, symbolType="square", labelLimit=300),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("path:N"),
                alt.Tooltip("part:N", title="goes to"),
                alt.Tooltip("text:N", title="a step"),
            ],
        )
    )
    return chart_spec(chart, height=_ROW)


def per_point(steps: int) -> int:
    """Number of steps to average into one point of the loss chart. Averaging reduces the noise of small batches."""
    return max(1, -(-steps // MAX_POINTS))


def _thinned(curve: list[float], each: int) -> list[tuple[int, float]]:
    """Average every `each` steps of a loss curve; return pairs of (last step, mean loss)."""
    parts = [(i, curve[i : i + each]) for i in range(0, len(curve), each)]
    return [(i + len(part), sum(part) / len(part)) for i, part in parts]


def losses(facts: Comparison) -> Spec:
    """Chart of the loss on every path. Each line is thinner than the line below it, so that equal curves are
    visible.
    """
    import altair as alt

    each = per_point(len(facts.paths[0].losses))
    curves = {p.name: _thinned(p.losses, each) for p in facts.paths}
    rows = [{"path": p.label, "step": step, "loss": loss} for p in facts.paths for step, loss in curves[p.name]]
    near = alt.selection_point(on="pointerover", nearest=True, fields=["step"], empty=False)
    data = alt.Data(values=rows)
    layers = []
    for i, path in enumerate(facts.paths):
        width = 2.5 + 5 * (len(facts.paths) - 1 - i)
        layers.append(
            alt.Chart(data)
            .transform_filter(f"datum.path === {_literal(path.label)}")
            .mark_line(strokeWidth=width, strokeCap="round", strokeJoin="round", opacity=1)
            .encode(
                x=alt.X(
                    "step:Q",
                    title="training step" if each == 1 else f"training step (each point the mean of {each})",
                    axis=alt.Axis(tickMinStep=1, grid=False),
                    scale=alt.Scale(nice=False),
                ),
                y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
                color=_colour(facts, legend=True),
            )
        )
    tip = [alt.Tooltip("step:Q"), *(alt.Tooltip(f"{p.name}:Q", title=p.label, format=".9f") for p in facts.paths)]
    wide = [
        {"step": point[0][0], "loss": point[0][1], **{p.name: at[1] for p, at in zip(facts.paths, point, strict=True)}}
        for point in zip(*curves.values(), strict=False)
    ]
    dots = (
        alt.Chart(alt.Data(values=wide))
        .mark_point(filled=True, size=70, color="@ink")
        .encode(x="step:Q", y="loss:Q", opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tip)
        .add_params(near)
    )
    return chart_spec(alt.layer(*layers, dots), height=280)


def job_hours(facts: Comparison) -> Spec:
    """Chart of hours and cost of the published job: Penstock's predictions, and the published figures."""
    import altair as alt

    rows = [
        {
            "path": p.label,
            "hours": p.predicted.total_h,
            "text": f"{number_format.hours(p.predicted.total_h)}  ·  {number_format.usd(p.predicted.usd)}",
            "usd": p.predicted.usd,
            "limit": p.predicted.limited_by,
        }
        for p in facts.paths
    ]
    stood = [
        {
            "path": p.label,
            "hours": p.published.run_h_value,
            "what": f"{p.published.path}: {p.published.run_h} h, {p.published.usd}",
            "text": f"published {p.published.run_h} h",
        }
        for p in facts.paths
        if p.published
    ]
    hours = [p.predicted.total_h for p in facts.paths] + [p.published.run_h_value for p in facts.paths if p.published]
    top = max(hours) * 1.22
    axis = alt.X(
        "hours:Q",
        title="hours of the job, staging included",
        scale=alt.Scale(domain=[0, top]),
        axis=alt.Axis(tickCount=6),
    )
    base = alt.Chart(alt.Data(values=rows)).encode(y=_labels(facts))
    tip = [alt.Tooltip("path:N"), alt.Tooltip("text:N", title="predicted"), alt.Tooltip("limit:N", title="limited by")]
    bars = base.mark_bar(height=20, cornerRadiusEnd=3).encode(x=axis, color=_colour(facts), tooltip=tip)
    text = base.mark_text(align="left", dx=7, color="@ink", fontWeight=600).encode(x="hours:Q", text="text:N")
    theirs = alt.Chart(alt.Data(values=stood)).encode(y=_labels(facts))
    marks = theirs.mark_point(shape="diamond", size=90, filled=True, color="@ink", yOffset=17).encode(
        x="hours:Q", tooltip=[alt.Tooltip("what:N", title="published")]
    )
    # Place each label on that side of its mark where the chart has more space.
    names = [
        theirs.transform_filter(test)
        .mark_text(align=align, dx=dx, dy=17, fontSize=11, color="@muted")
        .encode(x="hours:Q", text="text:N")
        for test, align, dx in ((f"datum.hours < {top / 2}", "left", 9), (f"datum.hours >= {top / 2}", "right", -9))
    ]
    return chart_spec(alt.layer(bars, text, marks, *names), height={"step": 58})


def scaling(facts: Comparison) -> Spec:
    """Chart of the predicted samples/s against the number of nodes."""
    import altair as alt

    labels = {p.name: p.label for p in facts.paths}
    rows = [
        {"path": labels.get(s.path, s.path), "nodes": s.nodes, "rate": s.samples_per_s, "limit": s.limited_by}
        for s in facts.scaling
    ]
    near = alt.selection_point(on="pointerover", nearest=True, fields=["nodes", "path"], empty=False)
    tip = [
        alt.Tooltip("path:N"),
        alt.Tooltip("nodes:Q"),
        alt.Tooltip("rate:Q", format=",.0f", title="samples/s"),
        alt.Tooltip("limit:N", title="limited by"),
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(
            "nodes:Q", title="nodes of 8 V100", axis=alt.Axis(tickCount=8, grid=False), scale=alt.Scale(nice=False)
        ),
        y=alt.Y("rate:Q", title="samples/s", axis=alt.Axis(tickCount=5)),
        color=_colour(facts, legend=True),
    )
    dots = (
        base.mark_point(filled=True, size=60)
        .encode(opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tip)
        .add_params(near)
    )
    return chart_spec(alt.layer(base.mark_line(strokeWidth=2.5), dots), height=280)


def charts(facts: Comparison) -> dict[str, Spec]:
    """Build all charts of a comparison, by the name of their figure on the page."""
    made = {"rates": rates(facts), "steps": steps(facts), "hours": job_hours(facts)}
    if any(p.losses for p in facts.paths):
        made["losses"] = losses(facts)
    if facts.scaling:
        made["scaling"] = scaling(facts)
    return made
