# SPDX-License-Identifier: Apache-2.0
"""Advice for a point: a change, and the gain that the fitted model predicts. The next measurement should confirm it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.units import format_bytes

if TYPE_CHECKING:
    from penstock.bench.verdict.grouping import Cell, Sweep
    from penstock.bench.verdict.sweep_fit import Model

__all__ = ["Advice", "advise"]

# Minimum gain that is worth a run.
_MIN_GAIN = 1.1
# Maximum extrapolation: predictions go up to this multiple of the measured range.
_FURTHER = 4
_NEAR_ALL = 0.9
_MAX_FILE = 1 << 32


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One change and its predicted gain. `next` is the measurement that would confirm it.

    Attributes:
        gain: Predicted rate divided by measured rate.
        extrapolated: The proposed point is outside the measured range.
    """

    text: str
    gain: float
    next: dict[str, int | str]
    extrapolated: bool = False


def advise(cell: Cell, sweep: Sweep, model: Model, regime: str) -> Advice | None:
    """Return the change that helps most at a cell; None if the model finds none."""
    if regime in ("client", "throttle"):
        return _elsewhere(cell, regime)
    workers, size = (
        advice if advice and advice.gain >= _MIN_GAIN else None
        for advice in (_workers(cell, sweep, model), _size(cell, sweep, model))
    )
    if size and regime in ("metadata", "iops"):
        return size  # a larger size removes the limit on shared operations; other thread counts only reduce it
    return max((a for a in (workers, size) if a), key=lambda a: a.gain, default=None)


def _elsewhere(cell: Cell, regime: str) -> Advice | None:
    row = cell.row
    if regime == "client":
        return Advice(
            text=f"the client is at its limit: use {2 * row.hosts} hosts, or less CPU per byte (larger blocks, "
            "direct I/O)",
            gain=2.0,
            next={"operation": row.operation, "threads": row.threads, "hosts": 2 * row.hosts},
            extrapolated=True,
        )
    fewer = max(1, row.threads // 2)
    if fewer == row.threads:
        return None
    return Advice(
        text=f"the store throttles: {fewer} threads lose less time to back-off; more key prefixes or accounts raise "
        "the limit",
        gain=1.0,
        next={"operation": row.operation, "threads": fewer, "hosts": row.hosts},
    )


def _next(cell: Cell, **changes: int) -> dict[str, int | str]:
    row = cell.row
    sizes = {"file_size_bytes": row.file_size_bytes, "block_size_bytes": row.block_size_bytes}
    point: dict[str, int | str] = {"operation": row.operation, "hosts": row.hosts, "threads": row.threads}
    point |= {name: value for name, value in sizes.items() if value is not None}
    return point | changes


def _workers(cell: Cell, sweep: Sweep, model: Model) -> Advice | None:
    """Advise the smallest thread count that reaches nearly the best rate at this size."""
    size = sweep.fitted_size(cell)
    seen = sorted({c.workers for c in sweep.cells})
    each = cell.workers // cell.row.threads if cell.row.threads else 1
    tried = [t for k in range(13) if (t := 2**k) * each <= _FURTHER * seen[-1]]
    tried = sorted({*tried, *(max(1, c.row.threads) for c in sweep.cells)})
    if len(seen) < 2 or not tried:
        return None
    rates = {t: model.per_s(t * each, size) for t in tried}
    best = max(rates.values())
    threads = next(t for t in tried if rates[t] >= _NEAR_ALL * best)
    if threads == cell.row.threads:
        return None
    gain = rates[threads] / model.per_s(cell.workers, size)
    fewer = threads < cell.row.threads
    return Advice(
        text=f"use {threads} {'thread' if threads == 1 else 'threads'} per "
        f"host{': fewer are faster' if fewer and gain > 1 else ''}",
        gain=gain,
        next=_next(cell, threads=threads),
        extrapolated=threads * each > seen[-1],
    )


def _size(cell: Cell, sweep: Sweep, model: Model) -> Advice | None:
    """Advise the smallest size that reaches nearly the best rate with this thread count."""
    if not sweep.several_sizes:
        return None
    largest = max(c.size_bytes for c in sweep.cells)
    tried = [float(2**k) for k in range(10, 33) if cell.size_bytes < 2**k <= min(_FURTHER * largest, _MAX_FILE)]
    if not tried:
        return None
    rates = {s: s * model.per_s(cell.workers, s) for s in tried}
    best = max(rates.values())
    size = next(s for s in tried if rates[s] >= _NEAR_ALL * best)
    what = "blocks" if sweep.unit == "block" else "files"
    field = "block_size_bytes" if sweep.unit == "block" else "file_size_bytes"
    verb = "read and write" if sweep.unit == "block" else "pack into"
    return Advice(
        text=f"{verb} {what} of {format_bytes(int(size), binary=True)} or more",
        gain=rates[size] / (cell.size_bytes * model.per_s(cell.workers, cell.size_bytes)),
        next=_next(cell, **{field: int(size)}),
        extrapolated=size > largest,
    )
