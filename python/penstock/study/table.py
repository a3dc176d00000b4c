# SPDX-License-Identifier: Apache-2.0
"""Computes the table of a study: published, inverted, predicted and measured values side by side, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.study.result import Claim

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.study.result import StudyResult, Value
    from penstock.study.spec import ExpectedFigure

__all__ = ["COLUMNS", "Cell", "Row", "all_claims", "format_value", "groups", "rows"]

COLUMNS = ("published", "inverted", "predicted", "measured")
_COMPUTED: tuple[Literal["inverted", "predicted"], ...] = ("inverted", "predicted")
NOT_ON_ONE_MACHINE = "modelled, not measured"


class Cell(msgspec.Struct, frozen=True):
    """One value as text. `error` is the relative difference from the published value. `is_within` states whether this
    difference is within the aim of the figure. Both are None if there is nothing to compare.
    """

    text: str
    error: float | None = None
    is_within: bool | None = None
    note: str = ""


class Row(msgspec.Struct, frozen=True):
    """One row of the report. Columns without a value are None."""

    id: str
    group: str
    label: str
    published: Cell | None
    inverted: Cell | None
    predicted: Cell | None
    measured: Cell | None
    note: str = ""


def format_value(value: float, unit: str) -> str:
    """Format a value with its unit, with three or four significant digits."""
    if unit == "USD":
        return f"${value:,.2f}" if abs(value) < 9.995 else f"${value:,.0f}"
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 100:
        text = f"{value:.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".strip()


def rows(result: StudyResult) -> list[Row]:
    """Return a row for each figure of `expected.toml`, in its order."""
    return [_row(figure, result) for figure in result.figures]


def all_claims(result: StudyResult) -> list[Claim]:
    """Claims of all figures, followed by the claims of all parts."""
    return [*_figure_claims(result), *(claim for part in result.parts for claim in part.result.claims)]


def _figure_claims(result: StudyResult) -> list[Claim]:
    """Return a claim for each figure with an aim: its inverted or predicted value is near enough to the published
    value.
    """
    found = []
    for figure in result.figures:
        for column in _COMPUTED:
            within = getattr(figure, f"{column}_within")
            if within is None and not (figure.bound and column == "inverted"):
                continue
            value = result.column(column).get(figure.id)
            if value is None and within is None:
                continue
            cell = _cell(value, figure, within)
            if figure.bound:
                aim = f"is {figure.bound} {format_value(figure.published or 0.0, figure.unit)}"
            else:
                aim = f"is within {within:.0%} of {_published_text(figure)}"
            here = (
                "not computed"
                if cell is None
                else cell.text + (f" ({cell.error:+.1%})" if cell.error is not None else "")
            )
            found.append(Claim(f"{figure.label}, {column}: {aim}", here, None if cell is None else cell.is_within))
    return found


def _row(figure: ExpectedFigure, result: StudyResult) -> Row:
    measured = _cell(result.column("measured").get(figure.id), figure, None)
    is_modelled = any(figure.id in result.column(column) for column in _COMPUTED)
    if measured is None and not figure.one_machine:
        measured = Cell(NOT_ON_ONE_MACHINE if is_modelled else "not measured")
    published = None if figure.published is None else Cell(_published_text(figure), note=figure.source)
    return Row(
        id=figure.id,
        group=figure.group,
        label=figure.label,
        published=published,
        inverted=_cell(result.column("inverted").get(figure.id), figure, figure.inverted_within),
        predicted=_cell(result.column("predicted").get(figure.id), figure, figure.predicted_within),
        measured=measured,
        note=figure.note,
    )


def _published_text(figure: ExpectedFigure) -> str:
    if figure.text:
        return figure.text
    return format_value(figure.published or 0.0, figure.unit)


def _cell(value: Value | None, figure: ExpectedFigure, within: float | None) -> Cell | None:
    if value is None:
        return None
    text = format_value(value.value, figure.unit)
    if value.low is not None and value.high is not None:
        text += f" ({format_value(value.low, '')} to {format_value(value.high, '')})"
    if value.scale is not None and value.scale != 1:
        text += f" at F = {value.scale:g}"
    if figure.published is None:
        return Cell(text, note=value.note)
    if figure.bound:
        is_beyond = value.value > figure.published if figure.bound == "above" else value.value < figure.published
        return Cell(text, is_within=is_beyond, note=value.note)
    if not figure.published or not value.is_comparable or value.scale not in (None, 1):
        return Cell(text, note=value.note)
    error = value.value / figure.published - 1
    # Rounded to a tenth of a percent, as it is printed: 5.0 % is within 5 %.
    return Cell(text, error, None if within is None else round(abs(error), 3) <= within, value.note)


def groups(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows by the title of their table, in the order of their first row."""
    tables: dict[str, list[Row]] = {}
    for row in found:
        tables.setdefault(row.group, []).append(row)
    return tables
