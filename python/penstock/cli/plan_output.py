# SPDX-License-Identifier: Apache-2.0
"""Formats a plan for the terminal: one wide table, or two tables that fit 80 columns."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from penstock.plan.analysis import limit_words
from penstock.plan.result import money_words
from penstock.units import format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.plan.analysis import BreakEvenPoint
    from penstock.plan.check import Errors
    from penstock.plan.result import PlanResult, Row

__all__ = ["error_lines", "lines"]

_WIDE = 150
# Maximum number of rows of a table. Longer tables are reduced to a part of the frontier and the best row of each path.
_MAX_ROWS = 24
_MAX_FRONTIER = 10
_MAX_NAME = 34
_MAX_TEXT = 110


def _time(seconds: float) -> str:
    return format_seconds(seconds) if math.isfinite(seconds) else "never"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], ragged: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if at in ragged else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return [line(head), *(line(row) for row in rows)]


def _shown(result: PlanResult, *, whole: bool) -> list[Row]:
    """All rows, or a part of the frontier and the best row of each path on each machine."""
    if whole or len(result.rows) <= _MAX_ROWS:
        return list(result.rows)
    best: dict[tuple[str, str], Row] = {}
    for row in result.rows:
        key = (row.prediction.path, row.prediction.machine)
        if key not in best or _order(row) < _order(best[key]):
            best[key] = row
    front = sorted((row for row in result.rows if row.on_frontier), key=lambda row: row.prediction.finish_s)
    step = max(1, -(-len(front) // _MAX_FRONTIER))
    ids = {row.id for row in (*best.values(), *front[::step], *front[-1:])}
    return sorted((row for row in result.rows if row.id in ids), key=_order)


def _order(row: Row) -> tuple[bool, float, float]:
    """Possible rows first, then by cost (unknown costs last) and time."""
    total = row.prediction.money.total
    return (bool(row.prediction.impossible), math.inf if total is None else total, row.prediction.finish_s)


def _mark(row: Row) -> str:
    if row.prediction.impossible:
        return "impossible"
    return "frontier" if row.on_frontier else "dominated" if row.prediction.money.total is not None else "no price"


def _name(row: Row) -> str:
    return textwrap.shorten(row.prediction.path, _MAX_NAME, placeholder="…")


def _where(row: Row) -> str:
    return f"{row.prediction.nodes} x {row.prediction.machine}"


def lines(result: PlanResult, width: int, *, whole: bool = False) -> list[str]:
    """Format a plan for a terminal of `width` columns.

    Args:
        whole: Show every row. By default, a long table is reduced to a part of the frontier and the best row of each
            path.
    """
    text_width = min(width, _MAX_TEXT)
    shown = _shown(result, whole=whole)
    out = [*textwrap.wrap(result.answer, text_width), ""]
    out += _wide(result, shown) if width >= _WIDE else _narrow(result, shown)
    hidden = len(result.rows) - len(shown)
    if hidden:
        out.append(f"{hidden:,} more rows are dominated or repeat a path (--all shows them)")
    for row in shown:
        if row.prediction.impossible:
            out += textwrap.wrap(
                f"{_name(row)} on {_where(row)} is impossible: {row.prediction.impossible}", text_width
            )
    out += ["", *_more(result, text_width)]
    return out


def _wide(result: PlanResult, shown: Sequence[Row]) -> list[str]:
    money = result.currency
    head = ["path", "nodes", "accelerators", "before", "first epoch", "epoch", "job", "compute", "storage", "requests"]
    head += ["egress", "total", "limited by", ""]
    rows = []
    for row in shown:
        p = row.prediction
        items = (p.money.compute, p.money.storage, p.money.requests, p.money.egress, p.money.total)
        rows.append(
            [
                _name(row),
                _where(row),
                str(p.accelerators),
                *(_time(seconds) for seconds in (p.before_s, p.first_epoch_s, p.epoch_s, p.finish_s)),
                *(money_words(item, money) for item in items),
                p.limited_by,
                _mark(row),
            ]
        )
    return _grid(head, rows, {0, 1, 12, 13})


def _narrow(result: PlanResult, shown: Sequence[Row]) -> list[str]:
    """Two tables of at most 80 columns, joined by the number in the first column."""
    times, money = [], []
    for at, row in enumerate(shown, 1):
        p = row.prediction
        name = textwrap.shorten(row.prediction.path, 20, placeholder="…")
        times.append(
            [f"{at}", name, str(p.nodes), _time(p.before_s), _time(p.epoch_s), _time(p.finish_s), p.limited_by]
        )
        items = (p.money.compute, p.money.storage, p.money.requests, p.money.egress, p.money.total)
        words = [money_words(item, result.currency) for item in items]
        money.append([f"{at}", textwrap.shorten(p.machine, 14, placeholder="…"), *words, _mark(row)])
    first = _grid(["", "path", "nodes", "before", "epoch", "job", "limit"], times, {1, 6})
    second = _grid(["", "machine", "compute", "storage", "requests", "egress", "total", ""], money, {1, 7})
    return [*first, "", *second]


def _where_of(point: BreakEvenPoint) -> str:
    return f"{point.nodes} x {point.machine}"


def _more(result: PlanResult, width: int) -> list[str]:
    out: list[str] = []

    def add(text: str) -> None:
        out.extend(textwrap.wrap(text, width, subsequent_indent="  "))

    unit = result.unit
    chosen = next(row.prediction for row in result.rows if row.id == result.sensitivity_of)
    here = (chosen.machine.removesuffix(" spot"), chosen.nodes)
    for need in (need for need in result.demand if (need.machine, need.nodes) == here):
        add(
            f"Demand of {need.accelerators} accelerators ({need.nodes} x {need.machine}), read as {need.form}: "
            f"{need.samples_per_s:,.0f} {unit}/s, {format_rate(need.bytes_per_s)}, {need.opens_per_s:,.0f} opens/s, "
            f"{need.in_flight:,.0f} requests in flight, {need.cores_per_node:.1f} cores a node."
        )
    here_points = [each for each in result.break_even if (each.machine, each.nodes) == (chosen.machine, chosen.nodes)]
    for point in here_points:
        if point.from_epochs is not None:
            cost = f", and costs less with {point.from_epochs_money} or more" if point.from_epochs_money else ""
            add(
                f"Break-even on {_where_of(point)}: {point.path} ends before {point.against} with {point.from_epochs} "
                f"epochs or more{cost}."
            )
    never = [point for point in here_points if point.from_epochs is None]
    if never:
        names = "; ".join(point.path for point in never)
        add(
            f"Break-even on {_where_of(never[0])}: never in time, because {never[0].against} has epochs as short ({names})."
        )
    row_name = "cheapest row" if chosen.money.total is not None else "fastest row (no cost is known)"
    measured = next(row for row in result.rows if row.id == result.sensitivity_of).epoch_range_s
    if measured is not None:
        add(
            f"Epoch of the {row_name} within the uncertainty of the measured limits: {_time(measured[0])} to "
            f"{_time(measured[1])}."
        )
    felt = [row for row in result.sensitivity if abs(row.time_elasticity) >= 0.005]
    if felt:
        add(
            f"Sensitivity of the {row_name} (duration for -20 % and +20 % of the limit): "
            + "; ".join(
                f"{row.limit} {_time(row.time_less_s)} to {_time(row.time_more_s)} ({row.time_elasticity:+.2f})"
                for row in felt[:4]
            )
            + "."
        )
    spots = [row.prediction for row in result.rows if row.prediction.lost_s and not row.prediction.impossible]
    if spots:
        least = min(spots, key=lambda row: row.money.known)
        add(
            f"Spot nodes: {least.path} on {least.nodes} x {least.machine} is expected to lose {_time(least.lost_s)} of "
            f"{_time(least.finish_s)} to interruptions and checkpoints."
        )
    for text in result.unknown:
        add(f"Unknown: {text}.")
    for doubt in result.doubts:
        add(f"Doubtful: {doubt}.")
    for note in result.notes:
        add(note)
    add(f"{result.dates[:1].upper()}{result.dates[1:]}.")
    return out


def error_lines(found: Errors, width: int) -> list[str]:
    """Format the table of errors of `penstock plan --check`."""
    head = ["path", "predicted", "measured", "error", "predicted limit"]
    rows = [
        [
            textwrap.shorten(row.path, _MAX_NAME, placeholder="…"),
            _time(row.predicted_epoch_s),
            _time(row.measured_epoch_s),
            f"{100 * row.error:+.1f} %",
            textwrap.shorten(limit_words(row.limited_by), 30, placeholder="…"),
        ]
        for row in found.rows
    ]
    out = [*_grid(head, rows, {0, 4}), ""]
    out.append(
        f"Error of the epoch time over {len(found.rows)} runs: median {100 * found.median_error:.1f} %, "
        f"worst {100 * found.worst_error:.1f} %"
    )
    for text in found.skipped:
        out += textwrap.wrap(f"Left out: {text}", min(width, _MAX_TEXT), subsequent_indent="  ")
    return out
