# SPDX-License-Identifier: Apache-2.0
"""Estimates limits from the rows of a probe: sustained rate and burst, latency distribution, knee. Pure functions."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from penstock.bench.student_t import student_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.rows import Latency, Row

__all__ = [
    "LatencyFit",
    "Rate",
    "knee",
    "latency_fit",
    "quantile_us",
    "refused",
    "refused_share",
    "stream_rate",
    "sustained",
]

_BLOCKS = 8
# Minimum relative uncertainties: the clock and the sampling of the counters are not more accurate.
_MIN_RATE_ERROR = 0.005
_MIN_LATENCY_ERROR = 0.01
# Share of a phase that is left out at its start, while connections open and requests fill the pipeline.
_RAMP = 0.2
# If the start of a phase is faster than the rest by this factor, the start is a burst, not noise.
_BURST = 1.25
_Z99 = NormalDist().inv_cdf(0.99)
_FITTED = (0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Sustained rate of one phase, in units per second.

    Attributes:
        error: Half the width of the 95 % interval, as a share of the rate.
        burst: Units that passed above the sustained rate at the start; 0 if there was no burst.
        burst_error: Half the width of the 95 % interval of `burst`, in units.
        throttled: Share of the attempts that the store refused with 429 or 503.
    """

    per_s: float
    error: float
    burst: float = 0.0
    burst_error: float = 0.0
    throttled: float = 0.0


class LatencyFit(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a latency: median and 99th percentile in milliseconds, with relative 95 % half-widths.

    Attributes:
        shape: `lognormal` if the measured 99th percentile agrees with a lognormal distribution fitted to the upper
            half. In this case, `p99_ms` is the percentile of the fit. Otherwise, `shape` is `other`, and `p99_ms` is
            the measured percentile.
    """

    count: int
    p50_ms: float
    p99_ms: float
    p50_error: float
    p99_error: float
    shape: Literal["lognormal", "other"]


class _Line(NamedTuple):
    slope: float
    intercept: float


def _cumulative(row: Row, what: Literal["bytes", "requests", "ios"]) -> list[tuple[float, float]]:
    """Cumulative work at the end of each interval of a row's series."""
    points, total, before_s = [(0.0, 0.0)], 0.0, 0.0
    for sample in row.series:
        rate = {"bytes": sample.bytes_per_s, "requests": sample.entries_per_s, "ios": sample.ios_per_s or 0.0}[what]
        total += rate * (sample.at_s - before_s)
        before_s = sample.at_s
        points.append((sample.at_s, total))
    return points


def _line(points: Sequence[tuple[float, float]]) -> _Line:
    """Line through the points by least squares."""
    mean_t, mean_n = fmean(t for t, _ in points), fmean(n for _, n in points)
    spread = math.fsum((t - mean_t) ** 2 for t, _ in points)
    slope = math.fsum((t - mean_t) * (n - mean_n) for t, n in points) / spread if spread > 0 else 0.0
    return _Line(slope, mean_n - slope * mean_t)


def _block_error(points: Sequence[tuple[float, float]], per_s: float) -> float:
    """Relative 95 % half-width of a rate, from the rates of equal blocks of the phase."""
    blocks = min(_BLOCKS, (len(points) - 1) // 2)
    if blocks < 2 or per_s <= 0:
        return 1.0
    edges = [points[round(at * (len(points) - 1) / blocks)] for at in range(blocks + 1)]
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(edges) if b[0] > a[0]]
    if len(rates) < 2:
        return 1.0
    half = student_quantile(len(rates) - 1) * stdev(rates) / math.sqrt(len(rates))
    return max(_MIN_RATE_ERROR, half / per_s)


def _tail_start(row: Row, points: Sequence[tuple[float, float]]) -> tuple[int, bool]:
    """Index of the first point of the sustained part, and whether a burst precedes it."""
    end_s = points[-1][0]
    refused_s = next((sample.at_s for sample in row.series if sample.throttles), None)
    if refused_s is not None:
        # The first refused requests are sent again after a back-off. After that, the token bucket is empty.
        at_s = refused_s + max(0.3, 0.1 * end_s)
        start = next((i for i, (t, _) in enumerate(points) if t >= at_s), len(points))
        if start <= len(points) - 4:
            return start, True
    ramp = max(1, int(_RAMP * (len(points) - 1)))
    if len(points) < 16:
        return ramp, False
    # The corner of a two-piece line: the point that lies farthest above the chord.
    first = max(1, ramp // 4)
    (t0, n0), (t1, n1) = points[first], points[-1]
    rise = (n1 - n0) / (t1 - t0)
    corner = max(range(first + 4, len(points) - 4), key=lambda i: points[i][1] - n0 - rise * (points[i][0] - t0))
    before, after = _line(points[first : corner + 1]).slope, _line(points[corner:]).slope
    return (corner, True) if before > _BURST * after else (ramp, False)


def sustained(row: Row, what: Literal["bytes", "requests", "ios"], *, delay_s: float | None = None) -> Rate | None:
    """Sustained rate of a phase, and the burst before it. None if the phase has too few samples.

    Args:
        delay_s: Time between the admission of a request and its end. By default the mean latency, which is too long if
            requests also wait in this process, as they do after refusals.

    A token bucket that starts full admits B + L t requests by time t. Therefore, the line through the sustained part
    has the slope L. B is the intercept of this line plus the requests that were admitted but not yet complete (L x
    latency).
    """
    points = _cumulative(row, what)
    if len(points) < 6 or points[-1][1] <= 0:
        return None
    start, has_burst = _tail_start(row, points)
    tail = points[start:]
    line = _line(tail)
    per_s = (tail[-1][1] - tail[0][1]) / (tail[-1][0] - tail[0][0])
    if per_s <= 0:
        return None
    error = _block_error(tail, per_s)
    if delay_s is None:
        latency = row.service_latency or row.io_latency
        delay_s = (latency.mean_us or 0.0) / 1e6 if latency else 0.0
    burst = line.intercept + line.slope * delay_s if has_burst else 0.0
    burst_error = error * per_s * (tail[0][0] + tail[-1][0]) / 2 if has_burst else 0.0
    is_seen = burst > max(burst_error, 1.0)
    return Rate(
        per_s=per_s,
        error=error,
        burst=burst if is_seen else 0.0,
        burst_error=burst_error if is_seen else 0.0,
        throttled=refused_share(row),
    )


def refused(row: Row) -> int:
    """Number of attempts that the store refused with 429 or 503."""
    return row.errors_by_class.get("429", 0) + row.errors_by_class.get("503", 0)


def refused_share(row: Row) -> float:
    """Share of the attempts that the store refused."""
    attempts = (row.last.entries or 0) + row.retries
    return refused(row) / attempts if attempts else 0.0


def _bounds_us(bucket: int) -> tuple[float, float]:
    """Lower and upper edge of a bucket of the core's histogram (see `bench.rows.Latency`)."""

    def edge(index: int) -> float:
        return index / 1000 if index < 128 else ((128 + index % 128) << (index // 128 - 1)) / 1000

    return edge(bucket), edge(bucket + 1)


def quantile_us(latency: Latency, share: float) -> float:
    """Quantile of a latency in microseconds, interpolated within its bucket (which is at most 1 % wide)."""
    want, seen = share * sum(count for _, count in latency.buckets), 0.0
    for bucket, count in latency.buckets:
        if seen + count >= want:
            low, high = _bounds_us(bucket)
            return low + (high - low) * (want - seen) / count
        seen += count
    return latency.max_us or 0.0


def latency_fit(latency: Latency | None) -> LatencyFit | None:
    """Median and 99th percentile of a latency. None for fewer than 20 values.

    Source:
        Standard error of a sample quantile: sqrt(p (1 - p) / n) / density. For a lognormal distribution it is, in
        logarithms, 1.25 sigma / sqrt(n) for the median and 3.73 sigma / sqrt(n) for the 99th percentile.
    """
    if latency is None or not latency.buckets or (count := sum(n for _, n in latency.buckets)) < 20:
        return None
    middle = quantile_us(latency, 0.5)
    if middle <= 0:
        return None
    normal = NormalDist()
    shares = [share for share in _FITTED if count * (1 - share) >= 5] or [0.75]
    deviates = [normal.inv_cdf(share) for share in shares]
    logs = [math.log(max(quantile_us(latency, share), middle) / middle) for share in shares]
    sigma = math.fsum(z * y for z, y in zip(deviates, logs, strict=True)) / math.fsum(z * z for z in deviates)
    fitted, measured = middle * math.exp(_Z99 * sigma), quantile_us(latency, 0.99)
    root = math.sqrt(count)
    measured_error = max(_MIN_LATENCY_ERROR, 1.96 * 3.73 * max(sigma, 0.01) / root)
    agrees = abs(math.log(measured / fitted)) <= max(measured_error, 0.03)
    return LatencyFit(
        count=count,
        p50_ms=middle / 1000,
        p99_ms=(fitted if agrees else measured) / 1000,
        p50_error=max(_MIN_LATENCY_ERROR, 1.96 * 1.2533 * sigma / root),
        # A fit to several quantiles has about two thirds of the error of the highest quantile alone.
        p99_error=max(_MIN_LATENCY_ERROR, measured_error * (2 / 3 if agrees else 1)),
        shape="lognormal" if agrees else "other",
    )


def stream_rate(row: Row, size_bytes: int) -> float | None:
    """Bytes per second of one stream after its first byte; None if the row lacks the latencies."""
    whole, first = row.service_latency, row.first_byte_latency
    if whole is None or first is None or whole.mean_us is None or first.mean_us is None:
        return None
    transfer_s = (whole.mean_us - first.mean_us) / 1e6
    return size_bytes / transfer_s if transfer_s > 0 else None


def knee(points: Sequence[tuple[int, float]], share: float = 0.9) -> int | None:
    """Smallest measured concurrency that reaches `share` of the highest rate; None without points."""
    if not points:
        return None
    best = max(rate for _, rate in points)
    return min(count for count, rate in points if rate >= share * best)
