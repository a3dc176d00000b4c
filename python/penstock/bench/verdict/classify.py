# SPDX-License-Identifier: Apache-2.0
"""Judges each cell: its limit is the largest term of the fitted model, checked against the other measurements.

The largest term belongs to the resource that a worker waits for longest, and the regime is the name of that resource.
Rates alone cannot separate some limits: a request limit looks like a metadata server, and a busy client like a busy
disk. If the benchmark recorded latencies, processor time and throttled requests, these separate such limits. Otherwise,
the convention in the guide decides. The evidence states what was used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.verdict.advice import Advice, advise
from penstock.bench.verdict.grouping import gather
from penstock.bench.verdict.sweep_context import context_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.bench.rows import Row
    from penstock.bench.verdict.grouping import Cell
    from penstock.bench.verdict.sweep_context import Seen
    from penstock.bench.verdict.sweep_fit import Model

__all__ = ["REGIMES", "Judged", "Verdict", "classify"]

REGIMES = ("concurrency", "metadata", "bandwidth", "client", "iops", "throttle")

# If this share of its processors is busy, a client has no capacity left, whatever the storage could deliver.
_BUSY = 0.85
# Minimum share of the busy CPU time that the benchmark itself must account for. Below this share, other processes
# disturb the measurement.
_OWN = 0.5
# If more workers raise the rate by less than this factor, the number of workers is not the limit.
_WORTH_MORE = 1.2
# If the gain reaches this share of a proportional gain, workers do not slow each other down. The value is half-way
# between no slow-down (1) and the smallest shared limit worth reporting (1.5 times slower).
_UNHINDERED = 0.82
# A rate that is lower than the rate of fewer workers by this share is retrograde scaling, unless noise explains it.
_DROP = 0.07
# In an acceptable run, noise cannot explain a drop of this size or more.
_CERTAIN_DROP = 0.12
# Minimum share of throttled requests (`_REFUSED`), or of workers' time lost to back-off (`_LOST`), to call throttling
# the limit.
_REFUSED = 0.02
_LOST = 0.10
# Throttling is assumed if the maximum latency reaches both values: in seconds, and as a multiple of the mean. A
# throttled request backs off for a second or more, while all other requests are as fast as before.
_BACKED_OFF_S = 0.5
_BACKED_OFF_TIMES = 15.0
# If reads or writes take at least this share of a file's time, opening files is not the limit.
_ALL_IO = 0.85
# Size below which opening files is assumed to be the limit, if only one size was measured. At half a megabyte, the
# 10,000 files/s of a metadata server equal 5 GB/s.
_SMALL_FILE_BYTES = 512 * 1024
# Disks with published limits count a random I/O of up to this size as one operation (io1, Premium SSD: 256 KiB).
_SMALL_BLOCK_BYTES = 256 * 1024
# On any disk, direct I/O below this block size is limited by operations, because read-ahead does not merge the blocks.
_TINY_BLOCK_BYTES = 64 * 1024
# Speeds of hosts' network links.
_LINKS_GBIT = (1, 10, 25, 40, 50, 100, 200, 400)
# Share of a full link that is payload: without the headers of Ethernet, TCP and HTTP.
_LINK_SHARE = (0.86, 0.985)
# Used if only one thread count was measured. Requests queue at the server if the ratio of mean to minimum latency is at
# least `_QUEUES`. If the ratio is unknown, they queue with at least `_MANY_WORKERS` workers.
_MANY_WORKERS = 16
_QUEUES = 3.0


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One cell and its limit. `evidence` contains the figures that support the verdict; `advice` is the next
    measurement.
    """

    operation: str
    label: str
    threads: int
    file_size_bytes: int | None
    regime: str
    retrograde: bool
    hosts: int
    io_depth: int
    block_size_bytes: int | None
    direct: bool
    random: bool
    bytes_per_s: float
    entries_per_s: float
    evidence: dict[str, Any]
    advice: Advice | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Judgements of all cells of all sweeps. `left_out` counts rows that are INVALID or cannot be judged."""

    schema_version: int = 2
    cells: tuple[Judged, ...]
    left_out: int = 0


def classify(rows: Iterable[Row]) -> Verdict:
    """Judge every cell of a set of rows."""
    rows = list(rows)
    sweeps = gather(rows)
    judged: list[Judged] = []
    for sweep in sweeps:
        seen = context_of(sweep, sweeps)
        judged += [_judge(cell, seen) for cell in sweep.cells]
    return Verdict(cells=tuple(judged), left_out=len(rows) - sum(c.repeats for s in sweeps for c in s.cells))


def _elasticity(cell: Cell, cells: Sequence[Cell], axis: str) -> float | None:
    """Elasticity d log(rate) / d log(axis) at a cell, computed from its neighbours. The rate is in bytes, or in units
    of work if no bytes are moved.
    """

    def where(c: Cell) -> float:
        return float(c.workers) if axis == "workers" else c.size_bytes

    def rate(c: Cell) -> float:
        return c.bytes_per_s or c.per_s

    def beside(c: Cell) -> bool:
        return c.size_bytes == cell.size_bytes if axis == "workers" else c.workers == cell.workers

    line = sorted(filter(beside, cells), key=where)
    at = [where(c) for c in line].index(where(cell))
    low, high = line[max(0, at - 1)], line[min(len(line) - 1, at + 1)]
    if where(low) == where(high) or where(low) <= 0:
        return None
    return math.log(rate(high) / rate(low)) / math.log(where(high) / where(low))


def _drop(cell: Cell, seen: Seen) -> float:
    """Drop of the rate below the best rate of fewer workers at this size, as a share: the mean of the measured drop and
    the fitted drop.
    """
    fewer = [c for c in seen.sweep.cells if c.size_bytes == cell.size_bytes and c.workers < cell.workers]
    if not fewer:
        return 0.0
    size = seen.sweep.fitted_size(cell)
    best = max(fewer, key=lambda c: c.per_s)
    measured = 1 - cell.per_s / best.per_s
    fitted = 1 - seen.model.per_s(cell.workers, size) / max(seen.model.per_s(c.workers, size) for c in fewer)
    # The errors of the two drops are independent: the measured drop has the noise of a single cell, and the fitted drop
    # has the error of the model.
    return (measured + max(fitted, 0.0)) / 2 if measured > 0 else 0.0


def _retrograde(cell: Cell, seen: Seen) -> bool:
    return _drop(cell, seen) > min(_CERTAIN_DROP, max(_DROP, 1.2 * seen.model.noise))


def _limit(cell: Cell, seen: Seen) -> tuple[str, dict[str, float], str]:
    """Return the limiting resource according to the rates ("own", "op" or "bytes"), the terms, and the kind of
    evidence.
    """
    model, sweep = seen.model, seen.sweep
    terms = model.terms(cell.workers, sweep.fitted_size(cell))
    shares = {"own": terms.own, "op": terms.op, "bytes": terms.bytes}
    if seen.several_workers and (seen.sweep.several_sizes or not sweep.moves_bytes):
        return _largest(shares, cell, seen), shares, "fit over threads and sizes"
    if all(c.workers == 1 for c in sweep.cells):
        # Without a second thread count, the bandwidth of one stream cannot be separated from the bandwidth of the
        # storage.
        return "own", shares, "one request at a time; no other concurrency was tried"
    if not seen.several_workers:
        # With one thread count, the time that grows with the size is spent on bytes. The rest is spent on the
        # operation, in the worker or in the server.
        per_byte = model.per_byte + cell.workers * model.byte * (1 + model.crowd * cell.workers)
        flat = model.t_op + cell.workers * model.op * (1 + model.contention * cell.workers)
        if seen.sweep.several_sizes and cell.size_bytes * per_byte > flat:
            return (
                "bytes",
                shares,
                "fit over sizes; with one thread count, the limit per stream cannot be separated from the total limit",
            )
        if not seen.sweep.several_sizes and sweep.moves_bytes and cell.size_bytes >= _SMALL_FILE_BYTES:
            return "bytes", shares, "a single point: by its size alone"
        queued = cell.queueing is not None and cell.queueing >= _QUEUES
        many = cell.queueing is None and cell.workers >= _MANY_WORKERS
        how = (
            "one thread count: by latency above the minimum"
            if cell.queueing
            else "one thread count: by the number of threads"
        )
        return ("op" if queued or many else "own"), shares, how
    # If all cells have the same size, the fit over thread counts separates a worker's own time from the time on shared
    # resources. The share of time for opening decides which resource is shared or, if this share is unknown, the size.
    opening, how = cell.size_bytes < _SMALL_FILE_BYTES, "its size"
    if cell.io_share is not None:
        opening, how = cell.io_share < 0.5, "the share of time for opening"
    shares = {"own": terms.own, "op" if opening else "bytes": terms.op}
    return (
        _largest(shares, cell, seen),
        shares,
        f"fit over threads; one size, so the shared resource follows from {how}",
    )


def _largest(shares: dict[str, float], cell: Cell, seen: Seen) -> str:
    """Return the largest term, but a worker's own term only if more workers would raise the rate.

    If contention begins before the server is saturated, a worker's own term may be the largest although more workers do
    not help.
    """
    if _is_unhindered(cell, seen):
        return "own"
    largest = max(shares, key=lambda name: shares[name])
    if largest != "own" or _gain_of_more(cell, seen) >= _WORTH_MORE:
        return largest
    return max((name for name in shares if name != "own"), key=lambda name: shares[name])


def _is_unhindered(cell: Cell, seen: Seen) -> bool:
    """Whether the largest number of workers at this size brings a nearly proportional gain.

    With only two or three thread counts, the fitted limit is extrapolated from rates that did not reach it.
    """
    beside = [c for c in seen.sweep.cells if c.size_bytes == cell.size_bytes]
    fewest = min(beside, key=lambda c: c.workers)
    if cell.workers < max(c.workers for c in beside) or cell.workers < 2 * fewest.workers:
        return False
    return cell.per_s >= _UNHINDERED * fewest.per_s * cell.workers / fewest.workers


def _gain_of_more(cell: Cell, seen: Seen) -> float:
    """Best gain from more workers at this size: geometric mean of the measured and the fitted gain, or the fitted gain
    alone.
    """
    size = seen.sweep.fitted_size(cell)
    more = [c for c in seen.sweep.cells if c.size_bytes == cell.size_bytes and c.workers > cell.workers]
    tried = [*(c.workers for c in more), 2 * cell.workers, 4 * cell.workers]
    fitted = max(seen.model.per_s(workers, size) for workers in tried) / seen.model.per_s(cell.workers, size)
    measured = max((c.per_s for c in more), default=0.0) / cell.per_s
    return math.sqrt(fitted * measured) if more else fitted


def _throttled(cell: Cell, limit: str) -> str | None:
    """Return evidence that the store throttles requests instead of queueing them, or None."""
    if cell.refused is not None and cell.refused >= _REFUSED:
        return f"{cell.refused:.1%} of the requests were throttled"
    if cell.lost >= _LOST:
        return f"{cell.lost:.0%} of the workers' time went to backing off"
    if cell.refused is not None:
        return None  # throttled requests were counted, and few were found
    if cell.row.path_type != "object":
        return None
    if cell.worst is not None and cell.worst >= _BACKED_OFF_TIMES and (cell.worst_s or 0.0) >= _BACKED_OFF_S:
        return (
            f"the slowest request took {cell.worst:.0f} times the mean ({cell.worst_s:.1f} s): "
            "typical of retries after throttling; throttled requests were not counted"
        )
    if limit == "op":
        return "an object store enforces its request limit by throttling; throttled requests were not counted"
    return None


def _counts_operations(cell: Cell, seen: Seen, limit: str) -> str | None:
    """Return evidence that the shared limit is on I/O operations, not on opening files or on bytes; or None."""
    row = cell.row
    if limit != "own" and seen.blocks_alone:
        return "files of one block and of many blocks have the same block rate"
    if limit == "op":
        if seen.sweep.unit == "block":
            return "the block rate does not depend on the block size"
        if row.random:
            return "random reads and writes at a rate that does not depend on their size"
        if cell.io_share is not None and cell.io_share >= _ALL_IO and seen.sweep.moves_bytes:
            return f"{cell.io_share:.0%} of a file's time is its I/O, not its opening"
        return None
    block = row.block_size_bytes
    if limit == "bytes" and seen.sweep.unit == "file" and block and row.file_size_bytes and block < row.file_size_bytes:
        if seen.larger_blocks > 1.5 * cell.bytes_per_s and block <= _SMALL_BLOCK_BYTES:
            return f"larger blocks move {seen.larger_blocks / cell.bytes_per_s:.1f} times as much"
        if row.random and block <= _SMALL_BLOCK_BYTES:
            return f"random blocks of {block} bytes"
        if row.direct and block < _TINY_BLOCK_BYTES:
            return f"direct I/O in blocks of {block} bytes"
    return None


def _judge(cell: Cell, seen: Seen) -> Judged:
    limit, shares, how = _limit(cell, seen)
    row = cell.row
    regime = {"own": "concurrency", "op": "metadata", "bytes": "bandwidth"}[limit]
    why = how
    # Under a CPU quota, some processors are idle because the benchmark may not use them. In that case, only the
    # benchmark's own share shows that the client is at its limit. In a phase shorter than the kernel's clock tick,
    # neither share is known.
    used = 0.0 if cell.cpu is None else max(cell.cpu, cell.own_cpu or 0.0)
    busy = used >= _BUSY
    crowded = busy and cell.own_cpu is not None and cell.own_cpu < _OWN * used
    # The store causes the time lost to throttling, even if the machine was busy with other work.
    if (reason := _throttled(cell, limit)) and (limit != "own" or cell.lost >= _LOST):
        regime, why = "throttle", reason
    elif busy and not crowded and (limit != "own" or used >= 0.97):
        regime, why = "client", f"{used:.0%} of the client's processors are busy"
    elif limit != "own" and seen.hosts_help:
        regime, why = "client", "more hosts with the same threads per host scale almost proportionally"
    elif reason := _counts_operations(cell, seen, limit):
        regime, why = "iops", reason
    total = sum(shares.values())
    cells = seen.sweep.cells
    evidence: dict[str, Any] = {
        "reason": why,
        "elasticity_threads": _rounded(_elasticity(cell, cells, "workers")),
        "elasticity_size": _rounded(_elasticity(cell, cells, "size")) if seen.sweep.moves_bytes else None,
        "share_of_peak": _rounded(cell.bytes_per_s / seen.peak_bytes_per_s) if seen.peak_bytes_per_s else None,
        "time_s": {
            "measured": cell.workers / cell.per_s,
            "fitted": seen.model.time(cell.workers, seen.sweep.fitted_size(cell)),
        },
        "terms": {name: _rounded(value / total) for name, value in shares.items()},
        "drop": _rounded(_drop(cell, seen)),
        "noise": _rounded(seen.model.noise),
        "fit": _model_facts(seen.model),
    }
    measured = {
        "cpu": cell.cpu,
        "own_cpu": cell.own_cpu,
        "queueing": cell.queueing,
        "worst_over_mean": cell.worst,
        "io_share": cell.io_share,
        "refused": cell.refused,
        "backing_off": cell.lost or None,
        "tail": cell.tail,
        "spread": cell.spread,
    }
    evidence |= {name: _rounded(value) for name, value in measured.items() if value is not None}
    if crowded:
        evidence["crowded"] = "other programs, not this measurement, kept the processors busy"
    if regime == "bandwidth" and (link := _near_link(seen.peak_bytes_per_s / row.hosts)):
        evidence["near_link_gbit_per_s"] = link
    return Judged(
        operation=row.operation,
        label=row.label,
        threads=row.threads,
        file_size_bytes=row.file_size_bytes,
        regime=regime,
        retrograde=_retrograde(cell, seen),
        hosts=row.hosts,
        io_depth=row.io_depth,
        block_size_bytes=row.block_size_bytes,
        direct=row.direct,
        random=row.random,
        bytes_per_s=cell.bytes_per_s,
        entries_per_s=cell.per_s,
        evidence=evidence,
        advice=advise(cell, seen.sweep, seen.model, regime),
    )


def _near_link(bytes_per_s: float) -> int | None:
    """Return the speed (Gbit/s) of a network link that a host's best rate nearly fills, if any. This is a hint, not a
    judgement.
    """
    return next((g for g in _LINKS_GBIT if _LINK_SHARE[0] <= bytes_per_s * 8 / (g * 1e9) <= _LINK_SHARE[1]), None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _model_facts(model: Model) -> dict[str, float | None]:
    """Parameters of the fit in common units. A limit that the sweep does not show is None."""

    def inverse(value: float) -> float | None:
        return _rounded(1 / value) if value > 1e-25 else None

    return {
        "t_op_s": _rounded(model.t_op),
        "stream_bytes_per_s": inverse(model.per_byte),
        "operations_per_s": inverse(model.op),
        "bandwidth_bytes_per_s": inverse(model.byte),
        "contention_per_worker": _rounded(model.contention),
        "crowding_per_worker": _rounded(model.crowd),
        "sharpness": model.sharpness,
    }
