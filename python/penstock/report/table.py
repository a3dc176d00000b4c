# SPDX-License-Identifier: Apache-2.0
"""Formats a comparison as a plain-text table that is as wide as the terminal and readable without colour.

Does not access the terminal: takes a width, and returns lines with flags for bold and dim.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from penstock.report import number_format
from penstock.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.report.comparison import Comparison, PathFacts

__all__ = ["Line", "lines"]

WIDE = 160
_GAP = "  "


class Line(NamedTuple):
    """One line of output. `strong` lines should be bold, `faint` lines dim."""

    text: str
    strong: bool = False
    faint: bool = False


def _staging(path: PathFacts) -> str:
    return format_seconds(path.stage_s) if path.stage_s else "–"


_MEASURED: dict[str, Callable[[PathFacts], str]] = {
    "samples/s": lambda p: number_format.rate(p.samples_per_s),
    "data wait": lambda p: number_format.share(p.wait_share),
    "first batch": lambda p: format_seconds(p.first_batch_s),
    "staging": _staging,
    "moved": lambda p: format_bytes(p.bytes),
    "throttles": lambda p: number_format.count(p.throttles),
}
_SHORT = {"data wait": "wait", "first batch": "first", "throttles": "503s"}
_PREDICTED: dict[str, Callable[[PathFacts], str]] = {
    "epoch": lambda p: f"{p.predicted.epoch_min:.0f} min",
    "job": lambda p: number_format.hours(p.predicted.total_h),
    "cost": lambda p: number_format.usd(p.predicted.usd),
    "published": lambda p: f"{p.published.run_h} h, {p.published.usd}" if p.published else "not tried",
}


def _grid(
    facts: Comparison, title: str, columns: Mapping[str, Callable[[PathFacts], str]], last: str = ""
) -> list[Line]:
    """Format a table. The first column is the path; figures are right-aligned.

    If `last` is given, it is the title of a left-aligned last column with the bottleneck.
    """
    best = facts.best()
    head = ["path", *columns, *([last] if last else [])]
    rows = [
        [p.label, *(make(p) for make in columns.values()), *([p.predicted.limited_by] if last else [])]
        for p in facts.paths
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def row(cells: list[str]) -> str:
        ragged = {0, len(columns) + 1}
        return _GAP.join(
            cell.ljust(w) if i in ragged else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return [
        Line(title, strong=True),
        Line(row(head), faint=True),
        *(Line(row(cells), strong=p is best) for p, cells in zip(facts.paths, rows, strict=True)),
    ]


def _wrapped(text: str, width: int, *, strong: bool = False, faint: bool = False) -> list[Line]:
    return [Line(part, strong, faint) for part in textwrap.wrap(text, width)]


def _missed(facts: Comparison, width: int) -> list[Line]:
    misses = facts.misses()
    text = f"{number_format.MISSED} {' '.join(misses)}"
    return _wrapped(text, width) if misses else []


def lines(facts: Comparison, width: int) -> list[Line]:
    """Format the whole comparison for a terminal of `width` columns: one wide table, or two tables that fit 80
    columns.
    """
    learnt = facts.learning
    curve = (
        f"One loss curve on {len(facts.paths)} paths, bit for bit ({learnt.digest[:12]})"
        if learnt.identical
        else "The loss curves DIFFER between paths"
    )
    tested = "" if not facts.invalid else f" INVALID as a measurement: {facts.invalid}."
    small = f"Rates rehearsed at scale F = {facts.scale:g} of the stated tier limits. {facts.prices_line[:1].upper()}{facts.prices_line[1:]}.{tested}"
    predicted = "the published job predicted (48 epochs, 4 nodes)"
    if width >= WIDE:
        tables = _grid(facts, f"Rehearsed here, and {predicted}", {**_MEASURED, **_PREDICTED}, "limited by")
    else:
        tables = [
            *_grid(facts, "Rehearsed here", {_SHORT.get(name, name): make for name, make in _MEASURED.items()}),
            Line(""),
            *_grid(facts, f"{predicted[:1].upper()}{predicted[1:]}", _PREDICTED),
            Line(""),
            *(part for p in facts.paths for part in _wrapped(f"{p.label}: limited by {p.predicted.limited_by}", width)),
        ]
    return [
        *_wrapped(" ".join(facts.headline), min(width, 110), strong=True),
        *_missed(facts, min(width, 110)),
        Line(""),
        *tables,
        Line(""),
        *_wrapped(
            f"{curve}; MAE {learnt.mae:.3f} against {learnt.mae_constant:.3f} of a constant answer.", min(width, 110)
        ),
        *_wrapped(small, min(width, 110), faint=True),
    ]
