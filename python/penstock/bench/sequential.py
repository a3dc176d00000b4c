# SPDX-License-Identifier: Apache-2.0
"""Sequential test for a difference: its error rate is valid although the test is evaluated after every block.

Each block yields one number: the mean logarithm of B's runs minus the mean logarithm of A's runs. Without a difference,
these numbers are symmetric about 0. The evidence is a Bayes factor for "the mean is not 0" with unknown scale (right
Haar prior), averaged over three widths of the effect. Without a difference, the evidence is a non-negative martingale.
Therefore, the probability that it *ever* exceeds 1/alpha is at most alpha (Ville's inequality). This bound is exact for
Gaussian blocks and conservative for heavier tails (see the tests). Pure functions: no clock and no process.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Interval", "always_valid", "bootstrap", "evidence"]

# Variances of the effect, in units of a block's variance. Small effects need many blocks, large effects only a few.
_WIDTHS = (0.1, 1.0, 16.0)
_HALVINGS = 80


class Interval(NamedTuple):
    """Lower and upper bound of an interval."""

    low: float
    high: float


def _spread(blocks: Sequence[float]) -> tuple[float, float]:
    n = len(blocks)
    mean = math.fsum(blocks) / n
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in blocks) / (n - 1)) if n > 1 else 0.0


def _factor(n: int, t_squared: float) -> float:
    free = n - 1
    total = 0.0
    for width in _WIDTHS:
        wide = 1 + n * width
        # Computed in logarithms, because t is very large on a machine with little noise.
        if math.isinf(t_squared):
            gained = (free + 1) / 2 * math.log(wide)
        else:
            gained = (free + 1) / 2 * (math.log1p(t_squared / free) - math.log1p(t_squared / (wide * free)))
        total += math.exp(min(700.0, gained - math.log(wide) / 2))
    return total / len(_WIDTHS)


def evidence(blocks: Sequence[float], mean: float = 0.0) -> float:
    """Bayes factor of the blocks: the likelihood with another mean, divided by the likelihood with `mean`. The factor
    is 1 for fewer than two blocks.
    """
    n = len(blocks)
    if n < 2:
        return 1.0
    found, spread = _spread(blocks)
    off = found - mean
    if spread == 0:
        return 1.0 if off == 0 else _factor(n, math.inf)
    return _factor(n, n * (off / spread) ** 2)


def always_valid(blocks: Sequence[float], alpha: float) -> Interval:
    """Confidence interval of the mean. With probability 1 - alpha, the intervals after every block all contain the true
    mean.
    """
    n = len(blocks)
    if n < 2 or _factor(n, math.inf) < 1 / alpha:
        return Interval(-math.inf, math.inf)
    mean, spread = _spread(blocks)
    if spread == 0:
        return Interval(mean, mean)
    low, high = 0.0, spread
    while evidence(blocks, mean + high) < 1 / alpha:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if evidence(blocks, mean + middle) < 1 / alpha else (low, middle)
    return Interval(mean - high, mean + high)


def bootstrap(blocks: Sequence[float], alpha: float, *, seed: int, resamples: int = 2000) -> Interval:
    """Bootstrap percentile interval of the mean. The interval is valid only if the number of blocks is fixed
    beforehand, so it must not be used to decide when to stop.
    """
    draw = random.Random(seed)
    means = sorted(math.fsum(draw.choices(blocks, k=len(blocks))) / len(blocks) for _ in range(resamples))
    cut = int(alpha / 2 * resamples)
    return Interval(means[cut], means[-1 - cut])
