# SPDX-License-Identifier: Apache-2.0
"""Prints a scaling sweep as text: one table with bars per variant, the comparisons, and the verdicts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from penstock.cli.wrapping import echo_wrapped, line_width, wrap_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.app.cells import Cell, Run
    from penstock.bench.app.spec import Spec
    from penstock.bench.app.statistics import Estimate
    from penstock.bench.app.summary import CellSummary, Overhead, Summary, VariantSummary

__all__ = ["print_lines", "print_summary", "run_printer"]

_BAR = 20
_MIN_BAR = 5
# Columns of a row of the table, without its bar.
_ROW = 76
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_lines(cells: Sequence[Cell], *, as_json: bool) -> None:
    """Print the command line of each cell, as `--dry-run` does."""
    from penstock.units import plural

    if as_json:
        import msgspec

        lines = [{"variant": c.variant, "ranks": c.ranks, "nodes": c.nodes, "line": c.line} for c in cells]
        click.echo(msgspec.json.encode({"schema_version": 2, "cells": lines}))
        return
    for cell in cells:
        click.echo(f"# {cell.variant}, {plural(cell.ranks, 'rank')} on {plural(cell.nodes, 'node')}")
        for line in cell.line:
            click.echo(shlex.join(line))


def run_printer(spec: Spec) -> Callable[[Cell, Run | None, int, int], None]:
    """Callback that prints one line per run on stderr."""
    from penstock.units import plural

    def show(cell: Cell, run: Run | None, done: int, total: int) -> None:
        place = f"{cell.variant}, {plural(cell.ranks, 'rank')}" + (f" on {cell.nodes} nodes" if cell.nodes > 1 else "")
        if run is None:
            text = f"failed: {cell.error}"
        else:
            value = (
                f"{run.value:,.6g} {spec.figure.name}, " if run.value is not None and spec.figure is not None else ""
            )
            text = f"{value}{run.wall_s:.2f} s" + (", warm-up" if run.round < 0 else "")
        click.echo(f"run {done} of {total}: {place}: {text}", err=True)

    return show


def print_summary(summary: Summary, notes: Sequence[str] = ()) -> None:
    """Print the summary on stdout."""
    from penstock.units import plural

    width = line_width()
    for variant in summary.variants:
        click.echo(f"{variant.variant} ({summary.scaling} scaling, {summary.quantity})")
        for line in _table(variant, summary.quantity, width):
            click.echo(line)
        for sentence in variant.verdict:
            echo_wrapped(f"  {sentence}", indent=4)
    if summary.overheads:
        base, quantity = summary.overheads[0].base, summary.overheads[0].quantity
        echo_wrapped(f"compared with {base}, in time per step by {quantity}", indent=4)
        for each in summary.overheads:
            echo_wrapped(f"  {each.variant}, {plural(each.ranks, 'rank')}: {each.sentence}{_start(each)}", indent=4)
    for note in (*summary.notes, *notes):
        echo_wrapped(f"note: {note}", indent=4)


def _start(each: Overhead) -> str:
    """Format the cost in wall time, if the comparison is by a figure of merit."""
    from penstock.bench.app.summary import MAX_COST

    if each.quantity == "wall seconds":
        return ""
    wall = each.wall_cost
    if wall.low is not None and wall.high is not None and wall.low <= 0 and wall.high > MAX_COST:
        return "; whole run with its start: no conclusion"
    between = "" if wall.low is None or wall.high is None else f", {100 * wall.low:+.1f} to {100 * wall.high:+.1f} %"
    return f"; whole run with its start {100 * wall.value:+.1f} %{between}"


def _table(variant: VariantSummary, quantity: str, width: int) -> list[str]:
    has_value = any(row.value is not None for row in variant.cells)
    value = f"{quantity:>14}" if has_value else ""
    lines = [f"  {'ranks':>5} {'nodes':>5} {'runs':>4}{value} {'wall':>9} {'speed-up':>8}  efficiency"]
    for row in variant.cells:
        lines += _row(row, width, has_value=has_value)
    return lines


def _row(row: CellSummary, width: int, *, has_value: bool) -> list[str]:
    head = f"  {row.ranks:>5} {row.nodes:>5} {row.runs:>4}"
    if row.wall_s is None:
        more = [*([f"hint: {row.hint}"] if row.hint else []), *(f"note: {note}" for note in row.notes)]
        lines = wrap_line(f"{head}  failed: {row.error}", width, 19)
        return lines + [line for text in more for line in wrap_line(f"{'':19}{text}", width, 19)]
    value = (f"{row.value:>14.6g}" if row.value is not None else f"{'–':>14}") if has_value else ""
    speed_up = f"{row.speed_up:>8.2f}" if row.speed_up is not None else f"{'–':>8}"
    text = f"{head}{value} {row.wall_s:>7.2f} s {speed_up}  {_efficiency(row.efficiency, width)}"
    after = [f"CPUs {' | '.join(placements(row.cpus)[:8])}"] if any(row.cpus) else []
    after += [f"({note})" for note in (*row.notes, *([f"{row.failed_runs} failed: {row.error}"] if row.error else []))]
    line = "  ".join((text, *after))
    if len(line) <= width:
        return [line]
    return [text, *(line for each in after for line in wrap_line(f"{'':19}{each}", width, 19))]


def placements(cpus: Sequence[str]) -> list[str]:
    """CPUs of each rank in rank order, or only once if they are equal for all ranks."""
    return list(cpus[:1] if len(set(cpus)) == 1 else cpus)


def _efficiency(estimate: Estimate | None, width: int) -> str:
    columns = min(_BAR, width - _ROW - 1)
    columns = columns if columns >= _MIN_BAR else 0
    gap = " " if columns else ""
    if estimate is None:
        return f"{'':{columns}}{gap}–"
    between = (
        ""
        if estimate.low is None or estimate.high is None or estimate.low == estimate.high
        else f" ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"
    )
    return f"{bar(estimate.value, columns)}{gap}{100 * estimate.value:.1f} %{between}"


def bar(share: float, columns: int = _BAR) -> str:
    """Draw a share as a bar of block characters; a share of 1 fills the bar."""
    eighths = round(min(max(share, 0.0), 1.0) * columns * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(columns)
