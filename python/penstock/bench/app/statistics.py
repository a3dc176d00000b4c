# SPDX-License-Identifier: Apache-2.0
"""Statistics of a scaling sweep: paired intervals, and fits of Amdahl's and Gustafson's laws. Pure functions.

Runs are interleaved in rounds: every round runs each size and variant once. Ratios are computed within a round, so slow
drift of the machine cancels.

Sources: G. Amdahl, AFIPS 1967; J. Gustafson, Communications of the ACM 31(5), 1988.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.student_t import student_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Estimate", "amdahl", "gustafson", "paired_ratio", "share_of_rounds"]


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % interval. `low` and `high` are None for a single round."""

    value: float
    low: float | None = None
    high: float | None = None

    def mapped(self, change: Callable[[float], float]) -> Estimate:
        """Apply an increasing function to the value and its interval."""
        low = None if self.low is None else change(self.low)
        return Estimate(change(self.value), low, None if self.high is None else change(self.high))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Geometric mean of `above[i] / below[i]`, with the t interval of its logarithm."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    n = len(logs)
    mean = math.fsum(logs) / n
    if n < 2:
        return Estimate(math.exp(mean))
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1))
    half = student_quantile(n - 1) * spread / math.sqrt(n)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def amdahl(points: Sequence[tuple[float, float]]) -> float:
    """Serial share s of Amdahl's law, T(q) = T(1) · (s + (1 - s) / q), by least squares of the relative errors.

    Args:
        points: Pairs of (q, seconds), where q is the number of ranks divided by the smallest number of ranks. At least
            two different q.
    Returns:
        The share. Times that no law explains, such as times that grow with the ranks, give values outside 0 to 1.
    """
    # T = a + b/q, weighted by 1/T², because timing errors are relative.
    weights = [1 / t**2 for _, t in points]
    total = math.fsum(weights)
    x_mean = math.fsum(w / q for w, (q, _) in zip(weights, points, strict=True)) / total
    t_mean = math.fsum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    across = math.fsum(w * (1 / q - x_mean) ** 2 for w, (q, _) in zip(weights, points, strict=True))
    b = math.fsum(w * (1 / q - x_mean) * (t - t_mean) for w, (q, t) in zip(weights, points, strict=True)) / across
    a = t_mean - b * x_mean
    return a / (a + b) if a + b > 0 else 1.0


def gustafson(points: Sequence[tuple[float, float]]) -> float:
    """Serial share s of Gustafson's law: scaled speed-up S(q) = q - s · (q - 1), by least squares of the relative
    errors.

    Args:
        points: Pairs of (q, scaled speed-up), with at least one q above 1.
    Returns:
        The share, as for `amdahl`.
    """
    weighed = [(1 / q**2, q, speed_up) for q, speed_up in points if q > 1]
    above = math.fsum(w * (q - 1) * (q - speed_up) for w, q, speed_up in weighed)
    return above / math.fsum(w * (q - 1) ** 2 for w, q, _ in weighed)


def share_of_rounds(
    rounds: Sequence[Mapping[float, float]], fit: Callable[[Sequence[tuple[float, float]]], float]
) -> Estimate:
    """Fit a share to the mean of all rounds, with a t interval from the jackknife over rounds. Both are limited to 0 to 1.

    In simulations with 2 to 8 rounds and noise of 2 and 10 %, 93 to 97 % of these intervals contained the true share.
    Of the percentile intervals of a bootstrap over 3 to 8 rounds, only 67 to 91 % did.

    Args:
        rounds: Values of each round by q.
    """
    value, n = fit(_means(rounds)), len(rounds)
    if n < 2:
        return Estimate(value).mapped(_limited)
    without = [fit(_means([*rounds[:at], *rounds[at + 1 :]])) for at in range(n)]
    mean = math.fsum(without) / n
    half = student_quantile(n - 1) * math.sqrt((n - 1) / n * math.fsum((x - mean) ** 2 for x in without))
    return Estimate(value, value - half, value + half).mapped(_limited)


def _limited(share: float) -> float:
    return min(1.0, max(0.0, share))


def _means(rounds: Sequence[Mapping[float, float]]) -> list[tuple[float, float]]:
    """Geometric mean of the values at each q, over the rounds."""
    return [(q, math.exp(math.fsum(math.log(each[q]) for each in rounds) / len(rounds))) for q in sorted(rounds[0])]
