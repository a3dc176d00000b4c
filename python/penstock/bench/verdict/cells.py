# SPDX-License-Identifier: Apache-2.0
"""Rows gathered into cells (one operation, concurrency and size) and cells into sweeps that one model can describe.

Owns what is comparable with what. Refuses to judge: it says nothing of limits.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.rows import HOUSEKEEPING, End, Row, moves_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cell", "Sweep", "gather"]

# A tail of more than half of the run: the last worker's rate is then a straggler's, not the storage's.
_LONG_TAIL = 1.5
# One unit of work in thirty years: a rate below is a rounding, not a measurement.
_LEAST_PER_S = 1e-9
# Fewer points under a label are repeats or a name for each point, not a sweep of its own.
_LEAST_SWEEP = 4


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point: repeats are merged by their median.

    Attributes:
        row: One of its rows, for what all have in common.
        workers: Requests that can be under way at once.
        size_bytes: What the unit of work moves: a file, or a block where blocks are what is swept. 0 moves nothing.
        per_s: Units of work a second.
        spread: Of the repeats, as a share of their median; None for one.
        tail: Time to the last worker's end over that to the first's.
        cpu: Share of the processors of the bench's affinity that were busy, with whatever.
        own_cpu: Share of the processors that the bench may use (affinity and quota) that it kept busy itself.
        queueing: Mean over least latency: how long a request waits for others.
        worst: Largest over mean latency.
        worst_s: Largest latency.
        io_share: Share of a file's latency that is reading or writing it; the rest is opening and closing.
        refused: Share of requests that were refused for rate; None where nobody counted.
        lost: Share of the workers' time spent backing off.
    """

    row: Row
    workers: int
    size_bytes: float
    per_s: float
    repeats: int = 1
    spread: float | None = None
    tail: float | None = None
    cpu: float | None = None
    own_cpu: float | None = None
    queueing: float | None = None
    worst: float | None = None
    worst_s: float | None = None
    io_share: float | None = None
    refused: float | None = None
    lost: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Of all workers; 0 for an operation that moves none."""
        return self.per_s * self.size_bytes


class Sweep(msgspec.Struct, frozen=True):
    """Cells that differ in concurrency and size only. `unit` is what is counted: "file" or "block"."""

    cells: tuple[Cell, ...]
    unit: str
    moves_bytes: bool

    @property
    def several_sizes(self) -> bool:
        """Whether size was swept; with one size alone, what bytes share and what operations share are the same to a fit."""
        return self.moves_bytes and len({c.size_bytes for c in self.cells}) > 1

    def fitted_size(self, cell: Cell) -> float:
        """A cell's size as the model knows it: 0 where sizes do not differ or move nothing."""
        return cell.size_bytes if self.several_sizes else 0.0


def _end(row: Row) -> End:
    first = row.first
    if first is not None and first.time_s > 0 and row.last.time_s > _LONG_TAIL * first.time_s and _bytes_per_s(first):
        return first
    return row.last


def _bytes_per_s(end: End) -> float:
    if end.bytes_per_s:
        return end.bytes_per_s
    return end.bytes / end.time_s if end.bytes and end.time_s > 0 else 0.0


def _files_per_s(row: Row, end: End) -> float:
    if end.entries_per_s:
        return end.entries_per_s
    if end.entries and end.time_s > 0:
        return end.entries / end.time_s
    # A run that a time limit ended has finished no file; what it moved tells the same.
    return _bytes_per_s(end) / row.file_size_bytes if row.file_size_bytes else 0.0


def _blocks_per_s(row: Row, end: End) -> float:
    if end.ios_per_s:
        return end.ios_per_s
    return _bytes_per_s(end) / row.block_size_bytes if row.block_size_bytes else 0.0


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _blocks_a_file(row: Row) -> float:
    size, block = row.file_size_bytes or 0, row.block_size_bytes or 0
    return max(1.0, size / block) if size and block else 1.0


def _cell(rows: list[Row], unit: str) -> Cell | None:
    row = rows[0]
    rates = []
    for each in rows:
        end = _end(each)
        rates.append(_blocks_per_s(each, end) if unit == "block" else _files_per_s(each, end))
    rates = [rate for rate in rates if rate > _LEAST_PER_S]
    if not rates:
        return None
    middle = median(rates)
    latency = [(r.io_latency if unit == "block" else r.entry_latency) or r.io_latency for r in rows]
    entry, io = (
        _median(x.mean_us if x else None for x in (r.entry_latency for r in rows)),
        _median(x.mean_us if x else None for x in (r.io_latency for r in rows)),
    )
    least = _median(x.min_us if x else None for x in latency)
    mean = _median(x.mean_us if x else None for x in latency)
    most = _median(x.max_us if x else None for x in latency)
    asked = sum(r.last.ios or r.last.entries or 0 for r in rows)
    # Our own bench of objects counts every answer: no word of refusals is word of none.
    counted = any(
        r.errors_by_class or r.retries or (r.path_type == "object" and r.source.startswith("penstock")) for r in rows
    )
    refusals = sum(r.errors_by_class.get(name, 0) for r in rows for name in ("429", "503"))
    worker_s = sum(r.last.time_s * r.workers for r in rows)
    if unit == "block":
        size = float(row.block_size_bytes or 0)
    else:
        size = float(row.file_size_bytes or 0) if moves_bytes(row.operation) else 0.0
    return Cell(
        row=row,
        workers=row.workers,
        size_bytes=size,
        per_s=middle,
        repeats=len(rates),
        spread=(max(rates) - min(rates)) / middle if len(rates) > 1 else None,
        tail=_median(r.last.time_s / r.first.time_s if r.first and r.first.time_s > 0 else None for r in rows),
        cpu=_median(r.last.cpu for r in rows),
        own_cpu=_median(r.own_cpu for r in rows),
        queueing=mean / least if mean and least else None,
        worst=most / mean if mean and most else None,
        worst_s=most / 1e6 if most else None,
        io_share=min(1.0, io * _blocks_a_file(row) / entry) if unit == "file" and entry and io else None,
        refused=refusals / (asked + refusals) if counted and asked + refusals else None,
        lost=sum(r.throttled_s for r in rows) / worker_s if worker_s else 0.0,
    )


def gather(rows: Iterable[Row]) -> list[Sweep]:
    """The sweeps that rows consist of. Rows marked INVALID, and phases between the measured ones, are left out."""
    sound = [r for r in rows if not r.invalid and r.operation not in HOUSEKEEPING]
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in sound:
        # Reading files of no bytes is opening them, which no byte's cost belongs to.
        empty = row.file_size_bytes == 0
        key = (row.operation, row.path_type, row.hosts, row.io_depth, row.direct, row.random, empty)
        families.setdefault(key, []).append(row)
    return [sweep for family in families.values() for part in _by_label(family) for sweep in _sweeps(part)]


def _by_label(family: list[Row]) -> list[list[Row]]:
    """A family apart by its labels, where these tell storages apart: the same point under several, and a sweep under each."""
    labels: dict[str, list[Row]] = {}
    points: dict[tuple[object, ...], set[str]] = {}
    for row in family:
        labels.setdefault(row.label, []).append(row)
        points.setdefault((row.threads, row.file_size_bytes, row.block_size_bytes), set()).add(row.label)
    shared = any(len(under) > 1 for under in points.values())
    whole = all(len({(r.threads, r.file_size_bytes) for r in rows}) >= _LEAST_SWEEP for rows in labels.values())
    return list(labels.values()) if shared and whole else [family]


def _sweeps(family: list[Row]) -> list[Sweep]:
    moves = moves_bytes(family[0].operation) and family[0].file_size_bytes != 0
    blocks_of: dict[object, set[object]] = {}
    for row in family:
        if row.block_size_bytes and _blocks_a_file(row) > 1:
            blocks_of.setdefault(row.file_size_bytes, set()).add(row.block_size_bytes)
    whole_devices = family[0].path_type in ("file", "blockdev")
    of_blocks = moves and (whole_devices or any(len(blocks) > 1 for blocks in blocks_of.values()))
    of_blocks = of_blocks and all(row.block_size_bytes for row in family)
    parts: dict[object, list[Row]] = {}
    for row in family:
        # What moves no bytes may still take longer for larger files (deleting does): each size is a sweep over threads.
        apart = (of_blocks and not whole_devices) or not moves
        parts.setdefault(row.file_size_bytes if apart else None, []).append(row)
    unit = "block" if of_blocks else "file"
    return [sweep for part in parts.values() if (sweep := _sweep(part, unit, moves))]


def _sweep(rows: list[Row], unit: str, moves: bool) -> Sweep | None:  # noqa: FBT001
    points: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        points.setdefault((row.threads, row.file_size_bytes, row.block_size_bytes), []).append(row)
    cells = [cell for point in points.values() if (cell := _cell(point, unit))]
    if moves:
        cells = [cell for cell in cells if cell.size_bytes > 0]
    cells.sort(key=lambda cell: (cell.size_bytes, cell.workers))
    return Sweep(tuple(cells), unit, moves) if cells else None
