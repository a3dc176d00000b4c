# SPDX-License-Identifier: Apache-2.0
"""Heat maps of a rank-pair matrix (latency and bandwidth), beside the topology of the nodes, as SVG or PNG."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from penstock.report.document import refuse_without_charts
from penstock.report.image_export import write_chart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["export_pairs"]

_CELL = 46
_LINE = 16
_WRAP = 70


def export_pairs(
    pairs: Sequence[Any], slow: set[tuple[int, int]], labels: Sequence[str], topology: Sequence[str], file: Path
) -> None:
    """Write the chart; the file's suffix selects SVG or PNG.

    Args:
        pairs: Objects with the ranks `a` < `b`, `latency_us`, and the bandwidths `a_to_b` and `b_to_a` in bytes/s.
        slow: The pairs to frame.
        labels: Label of each rank.
        topology: Lines of text, shown beside the maps.

    Raises:
        ConfigError: The suffix is neither .svg nor .png.
        Unsupported: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    import altair as alt

    latency = [_cell(labels, x, y, pair.latency_us, _short(pair.latency_us), (pair.a, pair.b) in slow) for pair in pairs for x, y in ((pair.a, pair.b), (pair.b, pair.a))]  # fmt: skip
    rates = [
        _cell(labels, sink, source, rate / 1e6, _short(rate / 1e6), (pair.a, pair.b) in slow)
        for pair in pairs
        for source, sink, rate in ((pair.a, pair.b, pair.a_to_b), (pair.b, pair.a, pair.b_to_a))
    ]
    maps = alt.hconcat(
        _map(latency, labels, "One-way latency (µs)", "oranges"),
        _map(rates, labels, "Bandwidth from row to column (MB/s)", "blues", is_rate=True),
        spacing=30,
    ).resolve_scale(color="independent")
    lines = [part for line in topology for part in textwrap.wrap(line, _WRAP, subsequent_indent="    ") or [""]]
    text = [{"line": number, "text": line.replace(" ", "\u00a0")} for number, line in enumerate(lines)]
    panel = (
        alt.Chart(alt.Data(values=text), title=alt.Title("Topology", anchor="start"))
        .mark_text(align="left", baseline="top", font="monospace", fontSize=11)
        .encode(x=alt.value(0), y=alt.Y("line:O", axis=None), text="text:N")
        .properties(width=max([*(len(line) for line in lines), 10]) * 7, height=max(1, len(lines)) * _LINE)
    )
    whole = alt.hconcat(maps, panel, spacing=30).configure_view(stroke=None)
    write_chart(whole.to_dict(), file)


def _short(value: float) -> str:
    """A number that fits into a cell."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(labels: Sequence[str], x: int, y: int, value: float, text: str, is_slow: bool) -> dict[str, Any]:  # noqa: FBT001 - a field of a row
    return {"x": labels[x], "y": labels[y], "value": value, "text": text, "slow": is_slow}


def _map(cells: list[dict[str, Any]], labels: Sequence[str], title: str, scheme: str, *, is_rate: bool = False) -> Any:
    """Heat map whose darkest cell is the slowest: the lowest rate or the highest latency."""
    import altair as alt

    size = max(2, len(labels)) * _CELL
    base = alt.Chart(alt.Data(values=cells), title=alt.Title(f"{title}; darker is slower", anchor="start")).encode(
        x=alt.X("x:N", sort=list(labels), title=None, axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("y:N", sort=list(labels), title=None),
    )
    middle = (min(cell["value"] for cell in cells) + max(cell["value"] for cell in cells)) / 2
    boxes = base.mark_rect().encode(
        color=alt.Color(
            "value:Q",
            scale=alt.Scale(scheme=scheme, reverse=is_rate),
            legend=alt.Legend(title=None, orient="bottom", gradientLength=size),
        ),
        stroke=alt.condition("datum.slow", alt.value("#c00000"), alt.value("white")),
        strokeWidth=alt.condition("datum.slow", alt.value(3), alt.value(1)),
    )
    texts = base.mark_text(fontSize=11).encode(
        text="text:N",
        color=alt.condition(
            f"datum.value {'<' if is_rate else '>'} {middle!r}", alt.value("white"), alt.value("black")
        ),
    )
    return (boxes + texts).properties(width=size, height=size)
