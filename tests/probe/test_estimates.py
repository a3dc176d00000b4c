# SPDX-License-Identifier: Apache-2.0
"""Tests the estimates of a probe on rows whose limits are known."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.rows import End, Latency, Row, Sample
from penstock.probe.estimates import knee, latency_fit, quantile_us, stream_rate, sustained


def _bucket(ns: int) -> int:
    """Bucket of the core's histogram, as `bench.rows.Latency` describes it."""
    if ns < 128:
        return ns
    shift = ns.bit_length() - 8
    return (shift + 1) * 128 + (ns >> shift) - 128


def _latency(values_us: list[float]) -> Latency:
    counts = Counter(_bucket(int(value * 1000)) for value in values_us)
    return Latency(
        count=len(values_us),
        mean_us=sum(values_us) / len(values_us),
        max_us=max(values_us),
        buckets=tuple(sorted(counts.items())),
    )


def _row(counts: list[float], step_s: float = 0.1, throttles: list[int] | None = None, **fields) -> Row:
    """A phase whose intervals complete `counts` requests of 1,000 bytes."""
    samples = tuple(
        Sample(
            at_s=(at + 1) * step_s,
            bytes_per_s=count * 1000 / step_s,
            entries_per_s=count / step_s,
            throttles=throttles[at] if throttles else 0,
        )
        for at, count in enumerate(counts)
    )
    total = sum(counts)
    return Row(operation="READ", last=End(time_s=len(counts) * step_s, entries=total), series=samples, **fields)


def _token_bucket(limit: float, burst: float, offered: float, seconds: float, step_s: float = 0.1):
    """Requests that a token bucket admits per interval, and the refusals."""
    held, admitted, refused = burst, [], []
    for _ in range(round(seconds / step_s)):
        held = min(burst, held + limit * step_s)
        taken = min(held, offered * step_s)
        held -= taken
        admitted.append(taken)
        refused.append(round(offered * step_s - taken))
    return admitted, refused


@settings(max_examples=60, deadline=None)
@given(
    limit=st.floats(50, 5000), burst_s=st.floats(0.2, 2), over=st.floats(1.5, 6), seconds=st.sampled_from([8.0, 15.0])
)
def prop_token_bucket_is_recovered(limit: float, burst_s: float, over: float, seconds: float) -> None:
    burst = limit * burst_s
    admitted, refused = _token_bucket(limit, burst, limit * over, seconds)
    if not any(refused) or refused.index(next(r for r in refused if r)) * 0.1 > seconds * 0.6:
        return  # the bucket lasts for most of the phase
    found = sustained(_row(admitted, throttles=refused), "requests")
    assert found is not None
    assert found.per_s == pytest.approx(limit, rel=0.02)
    assert found.burst == pytest.approx(burst, rel=0.1, abs=0.02 * limit * seconds)


def test_token_bucket_is_recovered_over_many_limits() -> None:
    prop_token_bucket_is_recovered()


def test_steady_rate_has_no_burst_and_a_small_error() -> None:
    draw = random.Random(1)
    found = sustained(_row([100 + draw.gauss(0, 3) for _ in range(80)]), "bytes")
    assert found is not None
    assert found.per_s == pytest.approx(1e6, rel=0.02)
    assert found.burst == 0
    assert 0.005 <= found.error < 0.05


def test_falling_rate_without_refusals_is_a_burst_of_credits() -> None:
    # A disk with 3,000 credits that serves 1,500/s with them, and 500/s without: they last 3 s.
    found = sustained(_row([150.0] * 30 + [50.0] * 90), "requests")
    assert found is not None
    assert found.per_s == pytest.approx(500, rel=0.02)
    assert found.burst == pytest.approx(3000, rel=0.1)


def test_rate_of_a_phase_with_few_samples_is_unknown() -> None:
    assert sustained(_row([10, 10, 10]), "requests") is None
    assert sustained(_row([0.0] * 40), "requests") is None


@settings(max_examples=25, deadline=None)
@given(p50=st.floats(0.5, 100), ratio=st.floats(1.1, 5), seed=st.integers(0, 1000))
def prop_lognormal_latency_is_recovered(p50: float, ratio: float, seed: int) -> None:
    draw, sigma = random.Random(seed), math.log(ratio) / 2.326
    fit = latency_fit(_latency([1000 * p50 * math.exp(draw.gauss(0, sigma)) for _ in range(2000)]))
    assert fit is not None
    assert fit.p50_ms == pytest.approx(p50, rel=2.2 * fit.p50_error + 0.01)
    assert fit.p99_ms == pytest.approx(p50 * ratio, rel=2.2 * fit.p99_error + 0.01)


def test_lognormal_latency_is_recovered_over_many_distributions() -> None:
    prop_lognormal_latency_is_recovered()


def test_latency_with_a_separate_tail_keeps_the_measured_percentile() -> None:
    draw = random.Random(2)
    values = [10_000 * math.exp(draw.gauss(0, 0.1)) for _ in range(2000)]
    fit = latency_fit(_latency(values + [200_000.0] * 60))
    assert fit is not None
    assert fit.shape == "other"
    assert fit.p99_ms == pytest.approx(200, rel=0.02)


def test_latency_of_few_requests_is_unknown() -> None:
    assert latency_fit(None) is None
    assert latency_fit(_latency([1.0] * 19)) is None


def test_quantiles_are_within_a_bucket() -> None:
    latency = _latency([float(value) for value in range(1, 1001)])
    for share in (0.1, 0.5, 0.9, 0.99):
        assert quantile_us(latency, share) == pytest.approx(1000 * share, rel=0.015)


def test_stream_rate_leaves_out_the_first_byte() -> None:
    row = _row([1.0], service_latency=_latency([130_000.0] * 30), first_byte_latency=_latency([30_000.0] * 30))
    assert stream_rate(row, 1_000_000) == pytest.approx(1e7, rel=0.01)
    assert stream_rate(_row([1.0]), 1_000_000) is None


def test_knee_is_the_first_concurrency_near_the_best_rate() -> None:
    assert knee([(1, 10), (4, 40), (16, 92), (64, 100)]) == 16
    assert knee([(1, 100), (4, 60)]) == 1
    assert knee([]) is None
