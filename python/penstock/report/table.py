# SPDX-License-Identifier: Apache-2.0
"""The comparison for a terminal: as wide as the terminal allows, and readable without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.report import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from penstock.report.facts import Comparison, PathFacts

__all__ = ["render"]

WIDE = 150

_MEASURED: dict[str, Callable[[PathFacts], str]] = {
    "samples/s": lambda p: words.rate(p.samples_per_s),
    "data wait": lambda p: words.share(p.wait_share),
    "first batch": lambda p: words.seconds(p.first_batch_s),
    "staging": lambda p: words.seconds(p.stage_s) if p.stage_s else "–",
    "moved": lambda p: words.size(p.bytes),
    "throttles": lambda p: words.count(p.throttles),
}
_SHORT = {"data wait": "wait", "first batch": "first", "throttles": "503s"}
_PREDICTED: dict[str, Callable[[PathFacts], str]] = {
    "epoch": lambda p: f"{p.predicted.epoch_min:.0f} min",
    "job": lambda p: words.hours(p.predicted.total_h),
    "cost": lambda p: words.usd(p.predicted.usd),
    "published": lambda p: f"{p.published.run_h} h, {p.published.usd}" if p.published else "not tried",
}


def _table(
    facts: Comparison,
    title: str,
    columns: dict[str, Callable[[PathFacts], str]],
    last: tuple[str, Callable[[PathFacts], str]] | None = None,
) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    table.add_column("path", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if last:
        table.add_column(last[0], overflow="fold")
    best = facts.best()
    for path in facts.paths:
        cells = [make(path) for make in columns.values()]
        table.add_row(path.label, *cells, *([last[1](path)] if last else []), style="bold" if path is best else None)
    return table


def render(facts: Comparison, width: int) -> RenderableType:
    """Tables for a terminal of `width` columns: one wide one, or two that fit 80."""
    headline = Text(" ".join(facts.headline), style="bold")
    learnt = facts.learning
    curve = (
        f"One loss curve on {len(facts.paths)} paths, bit for bit (xxh {learnt.digest[:12]}); "
        if learnt.identical
        else "The loss curves DIFFER between paths; "
    )
    learning = Text(f"{curve}MAE {learnt.mae:.3f} against {learnt.mae_constant:.3f} of a constant answer.")
    small = Text(
        f"Rates rehearsed at scale F = {facts.scale:g} of the stated tier limits. {facts.prices_line[:1].upper()}{facts.prices_line[1:]}.",
        style="dim",
    )
    if width >= WIDE:
        both = {**_MEASURED, **_PREDICTED}
        tables: list[RenderableType] = [
            _table(
                facts,
                "Rehearsed here, and the published job predicted from it (48 epochs, 4 nodes)",
                both,
                ("limited by", lambda p: p.predicted.limited_by),
            )
        ]
    else:
        tables = [
            _table(facts, "Rehearsed here", {_SHORT.get(name, name): make for name, make in _MEASURED.items()}),
            Text(""),
            _table(facts, "The published job, predicted (48 epochs, 4 nodes)", _PREDICTED),
            Text(""),
            *(Text(f"{p.label}: limited by {p.limited_by}") for p in facts.paths),
        ]
    return Padding(Group(headline, Text(""), *tables, Text(""), learning, small), (1, 0))
