# SPDX-License-Identifier: Apache-2.0
"""Merges the rows of one phase from several hosts into one row: sums their work on a common clock."""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from penstock import _native
from penstock.bench.phases import end_of
from penstock.bench.results import CacheState
from penstock.bench.rows import End, Latency, Row, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["merge"]

# Cache states, from the weakest to the strongest. The merged row gets the weakest state of all hosts.
_CACHES = ("warm", "unknown", "bypassed", "cold")
# Fields that describe a single host and are omitted from the merged row.
_OF_ONE_HOST = ("start_late_s", "steady_bytes_per_s", "boot_id", "affinity")


def merge(rows: Sequence[Row], began_s: Sequence[float]) -> Row:
    """Merge the rows of several hosts for the same phase.

    Args:
        began_s: Actual start of each host relative to the agreed start.
    Returns:
        The merged row. All times count from the earliest host's start. `first` is the moment when the first worker on
        any host ended, with the work of all hosts until then. (Each host's rate is assumed constant until its own first
        worker ended.) `last` is the moment when the last worker ended. Percentiles of latency are computed over all
        hosts' values.
    """
    start = min(began_s)
    delays = [began - start for began in began_s]
    one = rows[0]
    raw = {name: text for name, text in one.raw.items() if name not in _OF_ONE_HOST}
    raw |= {
        "start_skew_s": f"{max(delays):.6f}",
        "host_last_s": " ".join(f"{delay + row.last.time_s:.6f}" for row, delay in zip(rows, delays, strict=True)),
    }
    if verified := sum(int(row.raw.get("verified_bytes", 0)) for row in rows):
        raw["verified_bytes"] = str(verified)
    if ended := sorted({row.raw["ended_by"] for row in rows if "ended_by" in row.raw}):
        raw["ended_by"] = "+".join(ended)
    return msgspec.structs.replace(
        one,
        hosts=len(rows),
        first=_end(rows, delays, min(d + (row.first or row.last).time_s for row, d in zip(rows, delays, strict=True))),
        last=_end(rows, delays, max(d + row.last.time_s for row, d in zip(rows, delays, strict=True))),
        entry_latency=_latency(row.entry_latency for row in rows),
        io_latency=_latency(row.io_latency for row in rows),
        first_byte_latency=_latency(row.first_byte_latency for row in rows),
        service_latency=_latency(row.service_latency for row in rows),
        errors_by_class=_added(row.errors_by_class for row in rows),
        retries=sum(row.retries for row in rows),
        throttled_s=sum(row.throttled_s for row in rows),
        bytes_refetched=sum(row.bytes_refetched for row in rows),
        open_loop_per_s=_sum(row.open_loop_per_s for row in rows),
        series=_series(rows, delays),
        cache=_cache(rows),
        cpu_s=_sum(row.cpu_s for row in rows),
        cores=_cores(rows),
        invalid=tuple(dict.fromkeys(why for row in rows for why in row.invalid)),
        raw=raw,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _cores(rows: Sequence[Row]) -> float | None:
    """Processors per host: the sum over distinct machines, divided by the number of hosts. None if a host did not
    report its processors.
    """
    machines: dict[str, list[Row]] = {}
    for row in rows:
        if not row.cores or not (machine := row.raw.get("boot_id")):
            return None
        machines.setdefault(machine, []).append(row)
    return sum(map(_machine_cores, machines.values())) / len(rows)


def _machine_cores(rows: Sequence[Row]) -> float:
    """Processors that the hosts of one machine can keep busy together: the union of their affinities."""
    cores = [row.cores for row in rows if row.cores]
    allowed = [row.raw["affinity"].split(",") for row in rows if row.raw.get("affinity")]
    return min(sum(cores), len(set().union(*allowed))) if len(allowed) == len(rows) else max(cores)


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


def _latency(found: Iterable[Latency | None]) -> Latency | None:
    known = [latency for latency in found if latency is not None]
    return Latency.of(json.loads(_native.merge_latencies([json.dumps(each.to_fields()) for each in known])))


def _between(knots: Sequence[tuple[float, float]], moment: float) -> float:
    """Linear interpolation between knots. Constant before the first knot and after the last."""
    at = bisect_left(knots, moment, key=lambda knot: knot[0])
    if at == 0:
        return knots[0][1]
    if at == len(knots):
        return knots[-1][1]
    (before, low), (after, high) = knots[at - 1], knots[at]
    return low + (high - low) * (moment - before) / (after - before)


def _end(rows: Sequence[Row], delays: Sequence[float], moment: float) -> End:
    def done(name: str) -> int | None:
        total, is_counted = 0.0, False
        for row, delay in zip(rows, delays, strict=True):
            ends = [end for end in (row.first, row.last) if end is not None and getattr(end, name) is not None]
            if ends:
                is_counted = True
                knots = [(delay, 0.0), *((delay + end.time_s, float(getattr(end, name))) for end in ends)]
                total += _between(knots, moment)
        return round(total) if is_counted else None

    busy = [end.cpu for row in rows if (end := row.last) and end.cpu is not None]
    percent = 100 * sum(busy) / len(busy) if busy else None
    return end_of(moment, percent, entries=done("entries"), ios=done("ios"), moved=done("bytes"))


def _series(rows: Sequence[Row], delays: Sequence[float]) -> tuple[Sample, ...]:
    """Merged time series, resampled at the sample times of the host that worked longest."""
    longest = max(range(len(rows)), key=lambda at: (len(rows[at].series), rows[at].last.time_s))
    grid = [0.0, *(delays[longest] + sample.at_s for sample in rows[longest].series)]

    def sums(name: str) -> list[float]:
        total = [0.0] * len(grid)
        for row, delay in zip(rows, delays, strict=True):
            knots, before, so_far = [(delay, 0.0)], 0.0, 0.0
            for sample in row.series:
                value = getattr(sample, name) or 0
                so_far += value if name == "throttles" else value * (sample.at_s - before)
                before = sample.at_s
                knots.append((delay + sample.at_s, so_far))
            total = [held + _between(knots, moment) for held, moment in zip(total, grid, strict=True)]
        return total

    has_ios = any(sample.ios_per_s is not None for sample in rows[longest].series)
    moved, entries, ios, throttles = (sums(name) for name in ("bytes_per_s", "entries_per_s", "ios_per_s", "throttles"))
    made = []
    for at in range(1, len(grid)):
        seconds = grid[at] - grid[at - 1]
        if seconds <= 0:
            continue
        workers = [_workers(row, grid[at] - delay) for row, delay in zip(rows, delays, strict=True)]
        made.append(
            Sample(
                at_s=grid[at],
                bytes_per_s=(moved[at] - moved[at - 1]) / seconds,
                entries_per_s=(entries[at] - entries[at - 1]) / seconds,
                ios_per_s=(ios[at] - ios[at - 1]) / seconds if has_ios else None,
                throttles=round(throttles[at]) - round(throttles[at - 1]),
                workers=None if None in workers else sum(count or 0 for count in workers),
            )
        )
    return tuple(made)


def _workers(row: Row, moment: float) -> int | None:
    found = [sample.workers for sample in row.series if sample.at_s <= moment] or [s.workers for s in row.series[:1]]
    return found[-1] if found else None


def _cache(rows: Sequence[Row]) -> CacheState:
    states = [row.cache for row in rows]
    if len(set(states)) == 1:
        return states[0]
    worst = min((cache.state for cache in states), key=lambda state: _CACHES.index(state) if state in _CACHES else 0)
    found = [f"host {at}: {cache.state}, {cache.how}" for at, cache in enumerate(states)]
    return CacheState(state=worst, how="; ".join(found))
