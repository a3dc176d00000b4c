# SPDX-License-Identifier: Apache-2.0
"""Writes the report of a study as Markdown: the answer, the claims, the table of figures, then each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.study.result import Chart, Table, Text
from penstock.study.table import COLUMNS, Cell, all_claims, groups, rows
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.study.result import Block, PartRecord, StudyResult
    from penstock.study.table import Row

__all__ = ["COLUMN_NOTES", "about_part", "markdown", "score"]

COLUMN_NOTES = (
    ("Published", "as the publication prints it."),
    (
        "Inverted",
        "computed from the publication's own rates. It only shows that the formulas agree; no credit is taken.",
    ),
    (
        "Predicted",
        "computed from limits alone: network card, account, disks, step time, latency per file. This is scored.",
    ),
    ("Measured", "measured here; F is the factor by which the rates of a tier were multiplied."),
)
_HOLDS = {True: "yes", False: "**no**", None: "not decided"}


def markdown(result: StudyResult) -> str:
    """Return the whole report."""
    out = [f"# Study {result.letter}: {result.title}", "", f"**{result.question}**", "", result.answer, ""]
    if not result.complete:
        out += ["This run was interrupted, or a part failed; the report contains the parts that had ended.", ""]
    out += [f"Published: {result.publication}. Size here: `{result.size}`.", ""]
    out += [f"- **Contradiction in the publication**: {text}" for text in result.contradictions]
    missing = [text for part in result.parts for text in part.result.not_measured]
    out += [f"- **Not measured**: {text}." for text in missing]
    found = rows(result)
    if found:
        out += ["", "## Figures", "", *(f"- **{name}**: {text}" for name, text in COLUMN_NOTES)]
    for title, members in groups(found).items():
        out += ["", f"### {title}", "", *_figures(members)]
    if text := score(found):
        out += ["", text]
    for part in result.parts:
        for block in part.result.blocks:
            out += ["", *_block(block)]
    claims = all_claims(result)
    if claims:
        lines = [[each.claim, each.here, _HOLDS[each.holds]] for each in claims]
        out += ["", "## Claims", "", *_table(["claim", "here", "holds"], lines, left=2)]
    if result.not_comparable:
        out += ["", "## What cannot be compared", "", *(f"- {text}" for text in result.not_comparable)]
    out += ["", "## How it was run", "", *(f"- {about_part(part)}" for part in result.parts), ""]
    return "\n".join(out)


def score(found: Sequence[Row]) -> str:
    """Return a sentence with the median and the largest error of the predictions; empty if none can be compared."""
    errors = sorted(abs(row.predicted.error) for row in found if row.predicted and row.predicted.error is not None)
    if not errors:
        return ""
    middle = len(errors) // 2
    median = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
    return (
        f"Predictions from limits alone: median error {median:.1%}, largest {errors[-1]:.1%},"
        f" over {len(errors)} published figures."
    )


def about_part(part: PartRecord) -> str:
    """Describe when, where and how a part was run."""
    if part.skipped:
        return f"{part.name}: skipped, because it needs {part.skipped}"
    text = f"{part.name}: {part.created}, {part.seconds:g} s"
    if part.command:
        text += f", `{part.command}`"
    if part.provenance is not None:
        made, card = part.provenance, part.provenance.machine
        commit = f", commit {made.commit[:12]}{' with changes' if made.dirty else ''}" if made.commit else ""
        text += (
            f"; Penstock {made.version}{commit}; {card.cpu}, {card.cores} cores,"
            f" {format_bytes(card.memory_bytes)}, {card.kernel}; load average at the end {part.load_average}"
        )
    return text


def _figures(members: Sequence[Row]) -> list[str]:
    lines = [[row.label, *(_cell(getattr(row, column)) for column in COLUMNS)] for row in members]
    out = _table(["figure", *COLUMNS], lines)
    notes: dict[str, str] = {}
    for row in members:
        if row.note:
            notes[row.label] = row.note
        if row.predicted is not None and row.predicted.note:
            notes[f"{row.label}, predicted"] = row.predicted.note
        if row.measured is not None and row.measured.note:
            notes[f"{row.label}, measured"] = row.measured.note
    return [*out, *(["", *(f"- {name}: {text}" for name, text in notes.items())] if notes else [])]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return cell.text if cell.error is None else f"{cell.text} ({cell.error:+.1%})"


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        title = [f"## {block.title}", ""] if block.title else []
        items = [f"- {text}" for text in block.items]
        return [*title, *([block.text, ""] if block.text and items else [block.text] if block.text else []), *items]
    if isinstance(block, Table):
        title = [f"**{block.title}**", ""] if block.title else []
        return [*title, *_table(block.head, block.rows, left=block.left), *(["", block.note] if block.note else [])]
    assert isinstance(block, Chart)
    xs = sorted({x for line in block.lines for x, _ in line.points})
    lines = []
    for line in block.lines:
        at = dict(line.points)
        lines.append([line.name, *(f"{at[x]:.4g}" if x in at else "–" for x in xs)])
    head = [f"{block.y} by {block.x}", *(f"{x:g}" for x in xs)]
    return [f"**{block.title}**", "", *_table(head, lines), "", block.caption]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    rule = [":--" if at < left else "--:" for at in range(len(head))]
    return [f"| {' | '.join(each)} |" for each in (head, rule, *lines)]
