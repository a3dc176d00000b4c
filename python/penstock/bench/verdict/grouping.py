# SPDX-License-Identifier: Apache-2.0
"""Groups rows into cells (one operation, concurrency and size), and cells into sweeps that one model can describe.

Decides which rows are comparable. Does not judge their limits.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.rows import HOUSEKEEPING, End, Row, moves_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cell", "Sweep", "gather"]

# Maximum ratio of the last worker's end to the first worker's end. With a larger ratio, the last worker is a straggler,
# and the total rate does not describe the storage.
_LONG_TAIL = 1.5
# Minimum rate, about one unit of work in thirty years. A lower rate is a rounding error.
_MIN_PER_S = 1e-9
# Minimum number of points for a label to mark a separate sweep. With fewer points, it marks repeats or single points.
_MIN_SWEEP = 4


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep; repeats are merged by their median.

    Attributes:
        row: One of the cell's rows, for the fields that all its rows have in common.
        workers: Requests that can be in flight at once.
        size_bytes: Bytes per unit of work: a file, or a block if block size was swept. 0 if no bytes are moved.
        per_s: Units of work per second.
        spread: Spread of the repeats, as a share of their median; None without repeats.
        tail: Time until the last worker's end, divided by the time until the first worker's end.
        cpu: Busy share of the processors in the benchmark's affinity, including other processes.
        own_cpu: Share of the processors available to the benchmark (affinity and quota) that it kept busy itself.
        queueing: Mean latency divided by minimum latency, which shows how long a request waits for others.
        worst: Maximum latency divided by mean latency.
        worst_s: Maximum latency.
        io_share: Share of a file's latency spent in reads or writes; the remaining share is open and close.
        refused: Share of requests that were throttled; None if these were not counted.
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
        """Bytes per second of all workers; 0 for an operation that moves no bytes."""
        return self.per_s * self.size_bytes


class Sweep(msgspec.Struct, frozen=True):
    """Cells that differ only in concurrency and size. `unit` is the counted unit of work: "file" or "block"."""

    cells: tuple[Cell, ...]
    unit: str
    moves_bytes: bool

    @property
    def several_sizes(self) -> bool:
        """Whether sizes differ. With a single size, a fit cannot separate limits on bytes from limits on operations."""
        return self.moves_bytes and len({c.size_bytes for c in self.cells}) > 1

    def fitted_size(self, cell: Cell) -> float:
        """Size of a cell in the model: 0 if sizes do not differ or no bytes are moved."""
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
    # If a time limit ended the run before any file was complete, the byte rate gives the file rate.
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
    rates = [rate for rate in rates if rate > _MIN_PER_S]
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
    # Penstock's object benchmark counts every response. A row without throttled requests therefore means that none was
    # throttled.
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
    """Group rows into sweeps. Rows marked INVALID, and housekeeping between phases, are omitted."""
    sound = [r for r in rows if not r.invalid and r.operation not in HOUSEKEEPING]
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in sound:
        # Reading empty files only opens them, so their time does not show the cost of a byte.
        empty = row.file_size_bytes == 0
        key = (row.operation, row.path_type, row.hosts, row.io_depth, row.direct, row.random, empty)
        families.setdefault(key, []).append(row)
    return [sweep for family in families.values() for part in _by_label(family) for sweep in _sweeps(part)]


def _by_label(family: list[Row]) -> list[list[Row]]:
    """Split a family into one sweep per label, if labels mark different storage. In that case, the same point occurs
    under several labels.
    """
    labels: dict[str, list[Row]] = {}
    points: dict[tuple[object, ...], set[str]] = {}
    for row in family:
        labels.setdefault(row.label, []).append(row)
        points.setdefault((row.threads, row.file_size_bytes, row.block_size_bytes), set()).add(row.label)
    shared = any(len(under) > 1 for under in points.values())
    whole = all(len({(r.threads, r.file_size_bytes) for r in rows}) >= _MIN_SWEEP for rows in labels.values())
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
        # Operations that move no bytes may still take longer for larger files (as deletes do), so each size is a
        # separate sweep.
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
