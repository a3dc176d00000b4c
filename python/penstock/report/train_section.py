# SPDX-License-Identifier: Apache-2.0
"""Section of training runs in a report: where a step's time went, a timeline of steps, and the data path's cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.bench import results
from penstock.bench.importers.trace_rows import is_run
from penstock.report.document import chart_spec, escape, figure, table
from penstock.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.bench.results import RunRecord

__all__ = ["read_training_runs", "train_charts", "train_section"]

PARTS = {
    "data_wait_s": ("waiting for data", "@wait"),
    "host_to_device_s": ("host to device", "@path4"),
    "compute_s": ("compute", "@compute"),
    "slowest_rank_wait_s": ("waiting for the slowest rank", "@path3"),
    "exposed_communication_s": ("exposed communication", "@path1"),
    "other_s": ("other", "@line"),
}
"""Part of a step in a result -> its name and colour, in the order in which a timeline draws them."""

_MAX_RUNS = 8


def read_training_runs(path: Path) -> list[RunRecord]:
    """Read the newest 8 training runs with a breakdown of their steps in a folder, oldest first. Other results, and
    files of other programs, are left out.

    Raises:
        Corrupt: The result of a run is invalid, or has a newer schema.
    """
    if path.is_file():
        files = [path] if path.name == "result.json" else []
    else:
        files = [path / "result.json"] if (path / "result.json").is_file() else sorted(path.glob("*/result.json"))
    # fio's JSON, too, is often named result.json.
    records = [results.load(file) for file in files if is_run(file.read_text(encoding="utf-8", errors="replace"))]
    return [one for one in records if one.kind.startswith("train") and one.step_breakdown][-_MAX_RUNS:]


def _name(record: RunRecord) -> str:
    return record.label or record.id


def _colour() -> Any:
    import altair as alt

    names, colours = zip(*PARTS.values(), strict=True)
    legend = alt.Legend(orient="top", title=None, symbolType="square", columns=3, labelLimit=260)
    return alt.Color("part:N", scale=alt.Scale(domain=list(names), range=list(colours)), legend=legend)


def _mean_steps(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Stacked bars: one bar per run and rank, the parts of its mean step in milliseconds."""
    import altair as alt

    several = len(records) > 1
    rows = [
        {
            "bar": f"{_name(record)}, rank {rank['rank']}" if several else f"rank {rank['rank']}",
            "part": text,
            "order": order,
            "ms": 1000 * rank[name],
        }
        for record in records
        for rank in record.step_breakdown["ranks"]
        for order, (name, (text, _)) in enumerate(PARTS.items())
        if rank[name] > 0
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="milliseconds of a mean step"),
            y=alt.Y("bar:N", title=None, sort=None, axis=alt.Axis(labelLimit=320)),
            color=_colour(),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("bar:N"), alt.Tooltip("part:N"), alt.Tooltip("ms:Q", format=".3f")],
        )
    )
    return chart_spec(chart)


def _timeline(record: RunRecord) -> dict[str, Any]:
    """Timeline: one row per rank, a few consecutive steps, each part of a step as a bar from its start to its end."""
    import altair as alt

    rows = []
    for step in record.step_breakdown["timeline"]:
        at_s = step["began_s"]
        for name, (text, _) in PARTS.items():
            end_s = at_s + step[name]
            if step[name] > 0:
                one = {"rank": f"rank {step['rank']}", "step": step["step"], "part": text}
                rows.append({**one, "from": 1000 * at_s, "to": 1000 * end_s, "ms": 1000 * step[name]})
            at_s = end_s
    bars = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("rank:N", title=None, sort=None))
    chart = bars.mark_bar(stroke="@sheet", strokeWidth=0.5).encode(
        x=alt.X("from:Q", title="milliseconds", scale=alt.Scale(nice=False)),
        x2="to:Q",
        color=_colour(),
        tooltip=[
            alt.Tooltip("rank:N"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("part:N"),
            alt.Tooltip("ms:Q", format=".3f"),
        ],
    )
    return chart_spec(chart)


def train_charts(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Build the charts of the section: `train-steps` of all runs, `train-timeline` of the newest run with a
    timeline.
    """
    if not records:
        return {}
    charts = {"train-steps": _mean_steps(records)}
    if shown := _with_timeline(records):
        charts["train-timeline"] = _timeline(shown)
    return charts


def _with_timeline(records: Sequence[RunRecord]) -> RunRecord | None:
    return next((one for one in reversed(records) if one.step_breakdown.get("timeline")), None)


def train_section(records: Sequence[RunRecord]) -> str:
    """Build the section's HTML; empty without runs."""
    if not records:
        return ""
    parts = [
        "<h2>Where a training step’s time went</h2>",
        figure(
            "train-steps",
            "Parts of a mean step. The rank that reaches an allreduce last does not wait; what others wait longer is "
            "their wait for the slowest rank.",
        ),
    ]
    if shown := _with_timeline(records):
        slowest = shown.step_breakdown.get("slowest")
        named = f" Rank {slowest['rank']} is the slowest in {slowest['share_of_steps']:.0%} of them." if slowest else ""
        parts.append(
            figure(
                "train-timeline",
                f"The latest steps of {escape(_name(shown))}, by rank.{named} Lengths are measured; "
                "within a step, the parts are drawn in a fixed order.",
            )
        )
    compared = [one for one in records if one.data_path]
    if compared:
        parts += ["<h2>What the data path costs</h2>", _data_paths(compared)]
    return "".join(parts)


def _data_paths(records: Sequence[RunRecord]) -> str:
    head = [
        ("", "run"),
        ("n", "step"),
        ("n", "real"),
        ("n", "synthetic"),
        ("n", "cost"),
        ("n", "95 % interval"),
        ("w", "limited by"),
    ]
    rows = []
    for record in records:
        found = record.data_path
        low, high = found["cost_interval"]
        interval = "unknown" if low is None or high is None else f"{low:.1%} to {high:.1%}"
        limit = str(found["limiting"]).removesuffix("_s").replace("_", " ")
        rows.append(
            [
                ("head", escape(_name(record))),
                ("n", escape(format_seconds(record.step_breakdown["step_s"]))),
                ("n", f"{found['real']['median']:,.1f} {escape(found['unit'])}"),
                ("n", f"{found['synthetic']['median']:,.1f} {escape(found['unit'])}"),
                ("n", f"{found['cost']:.1%}"),
                ("n", interval),
                ("w", escape(f"{limit}: {found['reason']}")),
            ]
        )
    return table(head, rows)
