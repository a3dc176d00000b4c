# SPDX-License-Identifier: Apache-2.0
"""Fits the time of a message to its size: t = alpha + size / beta (Hockney's model), by weighted least squares.

The weights are 1 / t², so that each size counts by its relative error. Without weights, the largest message alone would
determine the line. The intervals are confidence intervals of the linear regression (Student's t).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.student_t import student_quantile
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LineFit", "fit_line"]

# The sizes show a bandwidth only if the largest message has this many bytes (several packets of Ethernet), and its bytes
# take this many times the latency. With smaller messages, noise or a change of the library's protocol gives the slope.
_MIN_BYTES = 4096
_MIN_SHARE = 2.0


class LineFit(msgspec.Struct, frozen=True):
    """A fitted line.

    Attributes:
        alpha_s: Time of an empty message, in seconds.
        alpha_s_95, beta_bytes_per_s_95: 95 % intervals.
        beta_bytes_per_s: Bandwidth of an endless message. None if the sizes do not show it: the time does not grow
            significantly with the size, all messages are below 4 KiB, or the bytes of the largest message take less
            than twice the upper limit of the latency.
        half_bytes: Size at which half of the bandwidth is reached (alpha x beta). None without a bandwidth.
        worst_residual: Largest relative difference between a measured time and the line.
        points: Number of sizes.
    """

    alpha_s: float
    alpha_s_95: tuple[float, float]
    beta_bytes_per_s: float | None
    beta_bytes_per_s_95: tuple[float, float] | None
    half_bytes: float | None
    worst_residual: float
    points: int


def fit_line(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> LineFit:
    """Fit a line through the times of some sizes.

    Args:
        sizes_bytes: At least 3 different sizes.
        times_s: Time of one message of each size, > 0.

    Raises:
        ConfigError: There are fewer than 3 sizes, or a time is not positive.
    """
    if len(sizes_bytes) != len(times_s) or len(set(sizes_bytes)) < 3:
        raise ConfigError(f"fit: needs at least 3 different sizes (got {len(set(sizes_bytes))})")
    if not all(math.isfinite(time) and time > 0 for time in times_s):
        raise ConfigError("fit: every time must be positive")
    weights = [1 / time**2 for time in times_s]
    total = math.fsum(weights)
    mean_x = math.fsum(w * x for w, x in zip(weights, sizes_bytes, strict=True)) / total
    mean_t = math.fsum(w * t for w, t in zip(weights, times_s, strict=True)) / total
    spread = math.fsum(w * (x - mean_x) ** 2 for w, x in zip(weights, sizes_bytes, strict=True))
    slope = (
        math.fsum(w * (x - mean_x) * (t - mean_t) for w, x, t in zip(weights, sizes_bytes, times_s, strict=True))
        / spread
    )
    alpha = mean_t - slope * mean_x
    if alpha < 0:  # the sizes are too large to show a start-up time, so fit a line through the origin
        alpha = 0.0
        slope = math.fsum(w * x * t for w, x, t in zip(weights, sizes_bytes, times_s, strict=True)) / math.fsum(
            w * x * x for w, x in zip(weights, sizes_bytes, strict=True)
        )
    residuals = [alpha + slope * x - t for x, t in zip(sizes_bytes, times_s, strict=True)]
    freedom = len(times_s) - 2
    variance = math.fsum(w * r * r for w, r in zip(weights, residuals, strict=True)) / freedom
    quantile = student_quantile(freedom)
    slope_error = quantile * math.sqrt(variance / spread)
    alpha_error = quantile * math.sqrt(variance * (1 / total + mean_x**2 / spread))
    worst = max(abs(r) / t for r, t in zip(residuals, times_s, strict=True))
    alpha_95 = (max(0.0, alpha - alpha_error), alpha + alpha_error)
    largest = max(sizes_bytes)
    if largest < _MIN_BYTES or slope <= slope_error or largest * slope < _MIN_SHARE * alpha_95[1]:
        return LineFit(alpha, alpha_95, None, None, None, worst, len(times_s))
    beta_95 = (1 / (slope + slope_error), 1 / (slope - slope_error))
    return LineFit(alpha, alpha_95, 1 / slope, beta_95, alpha / slope, worst, len(times_s))
