# SPDX-License-Identifier: Apache-2.0
"""Writes the report of a study as one offline HTML file: the answer, the table, charts, then how it was run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.report.document import chart_spec, document, escape, figure, refuse_without_charts, table
from penstock.study.markdown import COLUMN_NOTES, about_part, score
from penstock.study.result import Chart, Table, Text
from penstock.study.table import COLUMNS, Cell, all_claims, groups, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.study.result import Block, StudyResult
    from penstock.study.table import Row

__all__ = ["study_page"]

_COLOURS = 5  # `@path0` to `@path4` of the page's scheme
_HOLDS = {True: "✓ holds", False: "✗ does not hold", None: "not decided"}


def study_page(result: StudyResult) -> str:
    """Return the complete HTML document.

    Raises:
        MissingPackage: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    found = rows(result)
    specs: dict[str, Any] = {}
    if any(row.predicted and row.predicted.error is not None for row in found):
        specs["errors"] = _errors(found)
    answer, _, more = result.answer.partition(". ")
    parts = [
        _kicker(f"study {result.letter}: {result.study}", result.publication, f"size {result.size}"),
        f"<h1>{escape(answer.removesuffix('.'))}</h1>",
        f'<p class="lead">{escape(" ".join(filter(None, (more, score(found)))))}</p>',
        f'<p class="note">{escape(result.question)}</p>',
    ]
    if not result.complete:
        parts.append(
            '<p class="invalid">This run was interrupted, or a part failed; the page has the parts that ended.</p>'
        )
    parts += [
        f'<p class="missed">The publication contradicts itself. {_inline(text)}</p>' for text in result.contradictions
    ]
    if found:
        parts.append("<h2>Published, inverted, predicted, measured</h2>")
        legend = "".join(f"<li><b>{name}</b>: {escape(text)}</li>" for name, text in COLUMN_NOTES)
        parts += [_figures(title, members) for title, members in groups(found).items()]
        parts.append(f'<ul class="notes">{legend}</ul>')
    missing = [text for part in result.parts for text in part.result.not_measured]
    parts += [f'<p class="note"><b>Not measured</b>: {_inline(text)}.</p>' for text in missing]
    if "errors" in specs:
        parts.append(
            figure(
                "errors",
                "Relative error of each prediction from limits alone. Grey: computed from the publication's own rates, "
                "for comparison.",
            )
        )
    for part in result.parts:
        parts += [_block(block, specs) for block in part.result.blocks]
    claims = all_claims(result)
    if claims:
        head = [("", "claim"), ("w", "here"), ("", "result")]
        lines = [
            [("w", escape(each.claim)), ("w", escape(each.here)), ("", escape(_HOLDS[each.holds]))] for each in claims
        ]
        parts += ["<h2>Claims</h2>", table(head, lines)]
    if result.not_comparable:
        items = "".join(f"<li>{_inline(text)}</li>" for text in result.not_comparable)
        parts += ["<h2>What cannot be compared</h2>", f'<ul class="notes">{items}</ul>']
    items = "".join(f"<li>{_inline(about_part(part))}</li>" for part in result.parts)
    parts += [
        "<h2>How it was run</h2>",
        f'<ul class="notes">{items}</ul><p class="note">Files of the study: {result.spec_hash}.</p>',
    ]
    return document(f"{result.title} (study {result.letter})", parts, specs)


def _kicker(*texts: str) -> str:
    spans = "".join(f"<span>{escape(text)}</span>" for text in texts)
    return f'<p class="kicker"><b>Penstock</b>{spans}</p>'


def _figures(title: str, members: Sequence[Row]) -> str:
    head = [("", "figure"), *(("n", column) for column in COLUMNS)]
    lines = []
    for row in members:
        remarks = [row.note] if row.note else []
        if row.predicted is not None and row.predicted.note:
            remarks.append(f"predicted: {row.predicted.note}")
        if row.measured is not None and row.measured.note:
            remarks.append(f"measured: {row.measured.note}")
        cells = [("n", _cell(getattr(row, column))) for column in COLUMNS]
        small = f"<br><small style='font-weight:400'>{escape('; '.join(remarks))}</small>" if remarks else ""
        # In other tables, row names do not wrap. These row names are longer, and wrap.
        lines.append([("head", f'<span style="white-space:normal">{escape(row.label)}{small}</span>'), *cells])
    return f"<h3>{escape(title)}</h3>{table(head, lines)}"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if cell.error is None:
        return escape(cell.text)
    return f"{escape(cell.text)}<br><small>{cell.error:+.1%}</small>"


def _block(block: Block, specs: dict[str, Any]) -> str:
    if isinstance(block, Text):
        title = f"<h2>{escape(block.title)}</h2>" if block.title else ""
        text = f'<p class="note">{_inline(block.text)}</p>' if block.text else ""
        items = "".join(f"<li>{_inline(item)}</li>" for item in block.items)
        return title + text + (f'<ul class="notes">{items}</ul>' if items else "")
    if isinstance(block, Table):
        head = [("" if at < block.left else "n", name) for at, name in enumerate(block.head)]
        lines = [
            [("head" if at == 0 else "" if at < block.left else "n", _inline(cell)) for at, cell in enumerate(row)]
            for row in block.rows
        ]
        title = f"<h3>{_inline(block.title)}</h3>" if block.title else ""
        return title + table(head, lines) + (f'<p class="note">{_inline(block.note)}</p>' if block.note else "")
    specs[block.name] = _lines(block)
    return f"<h3>{escape(block.title)}</h3>" + figure(block.name, escape(block.caption))


def _inline(text: str) -> str:
    """Escape text, and convert its `**bold**` and backquotes to HTML."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def _errors(found: Sequence[Row]) -> dict[str, Any]:
    import altair as alt

    data = []
    for row in found:
        for column in ("predicted", "inverted"):
            cell: Cell | None = getattr(row, column)
            if cell is not None and cell.error is not None:
                data.append({"figure": row.label, "column": column, "error": cell.error * 100, "text": cell.text})
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y(
            "figure:N", sort=[row.label for row in found], title=None,
            axis=alt.Axis(labelLimit=330, ticks=False, domain=False),
        ),
        x=alt.X("error:Q", title="difference from the published value, %", axis=alt.Axis(tickCount=7)),
        color=alt.Color(
            "column:N", scale=alt.Scale(domain=["predicted", "inverted"], range=["@path1", "@compute"]),
            legend=alt.Legend(orient="top", title=None),
        ),
        shape=alt.Shape("column:N", scale=alt.Scale(domain=["predicted", "inverted"], range=["circle", "diamond"]), legend=None),
        tooltip=[alt.Tooltip("figure:N"), alt.Tooltip("column:N"), alt.Tooltip("text:N"), alt.Tooltip("error:Q", format="+.1f")],
    )  # fmt: skip
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(color="@muted").encode(x="x:Q")
    return chart_spec(alt.layer(zero, base.mark_point(filled=True, size=110, opacity=1)), height={"step": 26})


def _lines(block: Chart) -> dict[str, Any]:
    import altair as alt

    names = [line.name for line in block.lines]
    data = [
        {"line": line.name, "x": x, "y": y, "order": at}
        for line in block.lines
        for at, (x, y) in enumerate(line.points)
    ]

    def scale(is_log: bool) -> Any:  # noqa: FBT001 - a property of an axis
        return alt.Scale(type="log", base=10) if is_log else alt.Scale(zero=True)

    chart = (
        alt.Chart(alt.Data(values=data))
        .mark_line(point=alt.OverlayMarkDef(size=55, filled=True), strokeWidth=2.2)
        .encode(
            x=alt.X("x:Q", title=block.x, scale=scale(block.log_x), axis=alt.Axis(grid=False, tickCount=8)),
            y=alt.Y("y:Q", title=block.y, scale=scale(block.log_y), axis=alt.Axis(tickCount=6)),
            color=alt.Color(
                "line:N",
                scale=alt.Scale(domain=names, range=[f"@path{at % _COLOURS}" for at in range(len(names))]),
                legend=alt.Legend(orient="top", title=None, labelLimit=300, columns=3),
            ),
            strokeDash=alt.StrokeDash("line:N", sort=names, legend=None),
            order="order:Q",
            tooltip=[alt.Tooltip("line:N"), alt.Tooltip("x:Q", format=".4g", title=block.x), alt.Tooltip("y:Q", format=".4g", title=block.y)],
        )
    )  # fmt: skip
    return chart_spec(chart, height=280)
