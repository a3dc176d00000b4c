# SPDX-License-Identifier: Apache-2.0
"""Context of a sweep: its fit, and whether block size or the number of hosts explains its limit better.

Compares sweeps with each other. Does not judge single cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.bench.verdict.sweep_fit import Point, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.verdict.grouping import Sweep
    from penstock.bench.verdict.sweep_fit import Model

__all__ = ["Seen", "context_of"]

# Files of at least `_MANY_BLOCKS` blocks are limited by their blocks, not by open. Rates within `_SAME_RATE` count as
# equal.
_MANY_BLOCKS = 4
_SAME_RATE = 0.15
# If more hosts bring at least this share of a proportional gain, each host was at its own limit.
_IN_PROPORTION = 0.7


class Seen(NamedTuple):
    """Properties of a sweep as a whole."""

    sweep: Sweep
    model: Model
    several_workers: bool
    peak_bytes_per_s: float
    # From other sweeps of the same operation: the best rate with larger blocks, and whether more hosts raised the rate.
    larger_blocks: float
    hosts_help: bool
    blocks_alone: bool


def context_of(sweep: Sweep, others: Sequence[Sweep]) -> Seen:
    """Fit a sweep and compare it with the other sweeps of the same rows."""
    points = [Point(c.workers, sweep.fitted_size(c), c.workers / c.per_s) for c in sweep.cells]
    model = fit(points)
    return Seen(
        sweep=sweep,
        model=model,
        several_workers=len({c.workers for c in sweep.cells}) > 1,
        peak_bytes_per_s=max(c.bytes_per_s for c in sweep.cells),
        larger_blocks=_larger_blocks(sweep, others),
        hosts_help=_hosts_help(sweep, others),
        blocks_alone=_blocks_alone(sweep, model),
    )


def _larger_blocks(sweep: Sweep, others: Sequence[Sweep]) -> float:
    """Best rate of the same operation on the same hosts with larger blocks than in this sweep; 0 if none was
    measured.
    """
    one = sweep.cells[0].row
    largest = max(c.row.block_size_bytes or 0 for c in sweep.cells)
    return max(
        (
            cell.bytes_per_s
            for other in others
            for cell in other.cells
            if (cell.row.operation, cell.row.hosts, cell.row.label) == (one.operation, one.hosts, one.label)
            and (cell.row.block_size_bytes or 0) > largest
        ),
        default=0.0,
    )


def _blocks_alone(sweep: Sweep, model: Model) -> bool:
    """Whether one limit on blocks explains both the operations limit and the bytes limit of the fit.

    In that case, files of one block and files of many blocks reach the same block rate. Two separate limits (metadata
    and bandwidth) would reach the same block rate only by chance.
    """
    rates: dict[str, list[float]] = {"op": [], "bytes": []}
    for cell in sweep.cells if sweep.unit == "file" else ():
        terms = model.terms(cell.workers, sweep.fitted_size(cell))
        blocks = cell.size_bytes / cell.row.block_size_bytes if cell.row.block_size_bytes else 0.0
        if max(terms) > terms.own and blocks and not 1 < blocks < _MANY_BLOCKS:
            rates["op" if blocks <= 1 else "bytes"].append(cell.per_s * max(1.0, blocks))
    small, large = rates["op"], rates["bytes"]
    if not small or not large or len({c.row.block_size_bytes for c in sweep.cells}) > 1:
        return False
    known = [*small, *large]
    return max(known) / min(known) < 1 + max(_SAME_RATE, 3 * model.noise)


def _hosts_help(sweep: Sweep, others: Sequence[Sweep]) -> bool:
    """Whether more hosts with the same threads brought a nearly proportional gain. If so, each host was at its own
    limit.
    """
    one = sweep.cells[0].row
    best = max(c.per_s * max(c.size_bytes, 1.0) for c in sweep.cells)
    for other in others:
        row = other.cells[0].row
        same = other.unit == sweep.unit and all(
            getattr(row, name) == getattr(one, name) for name in ("operation", "io_depth", "direct", "random")
        )
        # An operation that moves no bytes has one sweep per file size.
        same = same and (sweep.moves_bytes or row.file_size_bytes == one.file_size_bytes)
        if same and row.hosts > one.hosts:
            there = max(c.per_s * max(c.size_bytes, 1.0) for c in other.cells)
            if there / best > 1 + _IN_PROPORTION * (row.hosts / one.hosts - 1):
                return True
    return False
