# SPDX-License-Identifier: Apache-2.0
"""Performance model of a sweep: a worker's time per unit of work as a sum of waiting times, fitted to all cells.

    own   = t_op + size / stream                 one worker alone: latency, and the bandwidth of one stream
    op    = c / rate * (1 + contention * c)      c workers share a limit on operations (metadata server, request limit)
    bytes = c * size / bandwidth * (1 + crowd * c)   c workers share a bandwidth
    time  = (own^p + op^p + bytes^p)^(1/p)       p = 1: times add up; large p: the slowest dominates

Both shared parts may get *slower* with more workers, as in the universal scalability law (retrograde scaling). The fit
is Levenberg-Marquardt in logarithms with Huber weights, which limit the effect of outliers. The fit is plain Python,
because a sweep has only about a hundred cells, and the machine that makes a report may lack numpy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Model", "Point", "fit"]

_SHARPNESS = (1.0, 2.0, 6.0)
_STEPS = 60
# Width of the prior in e-folds: a parameter this far from the extremes of the data adds as much to the loss as the
# typical error of one cell.
_LOOSE = 2.5
_HUBER = 1.5
_MIN_NOISE = 0.02
_FIRST_NOISE = 0.08


class Point(NamedTuple):
    """One measured cell: `c` workers, `size` bytes per unit of work, and `time` seconds that a worker takes for one
    unit.
    """

    c: float
    size: float
    time: float


class Terms(NamedTuple):
    """Waiting time of one unit of work, in seconds, by resource."""

    own: float
    op: float
    bytes: float


class Model(NamedTuple):
    """A fitted sweep. If the data show no contention, it is exactly 0. `noise` is the typical relative error of a cell.

    Attributes:
        t_op: Seconds of an operation without any other worker.
        per_byte: Seconds per byte in one stream.
        op: Seconds per operation in the shared part; its inverse is the maximum rate of operations.
        contention: Growth of `op` with each worker.
        byte: Seconds per byte in the shared part; its inverse is the bandwidth.
        crowd: Growth of `byte` with each worker.
        sharpness: Exponent p.
    """

    t_op: float
    per_byte: float
    op: float
    contention: float
    byte: float
    crowd: float
    sharpness: float
    noise: float

    def terms(self, c: float, size: float) -> Terms:
        """Waiting times of one unit of work of `size` bytes, with `c` workers."""
        return Terms(
            self.t_op + size * self.per_byte,
            c * self.op * (1 + self.contention * c),
            c * size * self.byte * (1 + self.crowd * c),
        )

    def time(self, c: float, size: float) -> float:
        """Seconds that one of `c` workers takes for one unit of work."""
        return _norm(self.terms(c, size), self.sharpness)

    def per_s(self, c: float, size: float) -> float:
        """Units of work per second, over all workers."""
        return c / self.time(c, size)


def _norm(terms: Terms, p: float) -> float:
    top = max(terms)
    return top * sum((term / top) ** p for term in terms) ** (1 / p) if top > 0 else math.inf


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivots; None for a singular matrix."""
    n = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < 1e-300:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            for k in range(i, n + 1):
                rows[r][k] -= factor * rows[i][k]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (rows[i][n] - sum(rows[i][k] * found[k] for k in range(i + 1, n))) / rows[i][i]
    return found


def _gradient(theta: Sequence[float], point: Point, p: float) -> tuple[float, list[float]]:
    """Logarithm of the time, and its derivatives with respect to the logarithm of each parameter."""
    t_op, per_byte, op, contention, byte, crowd = (math.exp(x) for x in theta)
    own = t_op + point.size * per_byte
    terms = Terms(own, point.c * op * (1 + contention * point.c), point.c * point.size * byte * (1 + crowd * point.c))
    time = _norm(terms, p)
    w_own, w_op, w_bytes = ((term / time) ** p for term in terms)
    kc, bc = contention * point.c, crowd * point.c
    return math.log(time), [
        w_own * t_op / own,
        w_own * point.size * per_byte / own,
        w_op,
        w_op * kc / (1 + kc),
        w_bytes,
        w_bytes * bc / (1 + bc),
    ]


def _centre(points: Sequence[Point]) -> list[float]:
    """Centre of each parameter's prior, from the extremes of the data. For contention, it is 0.03 at the largest worker
    count.
    """
    most = max(p.c for p in points)
    sizes = [p.size for p in points if p.size > 0]
    t_op = min(p.time for p in points)
    op = min(p.time / p.c for p in points)
    per_byte = min((p.time / p.size for p in points if p.size > 0), default=1e-30)
    byte = min((p.time / p.size / p.c for p in points if p.size > 0), default=1e-30)
    if not sizes:
        per_byte = byte = 1e-30
    return [math.log(x) for x in (t_op, per_byte, op, 0.03 / most, byte, 0.03 / most)]


def _descend(
    points: Sequence[Point],
    start: Sequence[float],
    centre: Sequence[float],
    p: float,
    noise: float,
    free: Sequence[int],
) -> tuple[float, list[float]]:
    def cost(theta: Sequence[float]) -> float:
        total = sum(((theta[i] - centre[i]) / _LOOSE) ** 2 for i in free)
        for point in points:
            error = abs(_gradient(theta, point, p)[0] - math.log(point.time)) / noise
            total += error**2 if error <= _HUBER else 2 * _HUBER * error - _HUBER**2
        return total

    theta, best, damping = list(start), cost(start), 1e-2
    for _ in range(_STEPS):
        normal = [[0.0] * len(free) for _ in free]
        right = [0.0] * len(free)
        for point in points:
            value, slope = _gradient(theta, point, p)
            error = math.log(point.time) - value
            weight = min(1.0, _HUBER * noise / abs(error)) / noise**2 if error else 1 / noise**2
            for a, i in enumerate(free):
                right[a] += weight * error * slope[i]
                for b, j in enumerate(free):
                    normal[a][b] += weight * slope[i] * slope[j]
        for a, i in enumerate(free):
            normal[a][a] += 1 / _LOOSE**2
            right[a] += (centre[i] - theta[i]) / _LOOSE**2
        while damping < 1e8:
            damped = [[v * (1 + damping) if a == b else v for b, v in enumerate(line)] for a, line in enumerate(normal)]
            step = _solve(damped, right)
            if step is not None:
                tried = list(theta)
                for a, i in enumerate(free):
                    tried[i] += max(-3.0, min(3.0, step[a]))
                value = cost(tried)
                if value < best:
                    break
            damping *= 5
        else:
            return best, theta
        gained, theta, best = best - value, tried, value
        damping = max(damping / 5, 1e-8)
        if gained < 1e-4 * (1 + best):
            break
    return best, theta


def _noise(points: Sequence[Point], theta: Sequence[float], p: float, parameters: int) -> float:
    errors = sorted(abs(_gradient(theta, q, p)[0] - math.log(q.time)) for q in points)
    # 1.48 times the median error estimates the standard deviation. A fit to few cells has few degrees of freedom. At
    # least half the number of cells is assumed, because the priors determine the parameters that the data do not.
    spare = max(len(points) / 2, len(points) - parameters) / len(points)
    return max(_MIN_NOISE, min(0.5, 1.4826 * errors[len(errors) // 2] / math.sqrt(spare)))


def fit(points: Sequence[Point]) -> Model:
    """Fit all cells of a sweep.

    Args:
        points: At least one; every time must be positive.
    """
    centre = _centre(points)
    moves = any(p.size > 0 for p in points)
    free = [0, 1, 2, 3, 4, 5] if moves else [0, 2, 3]
    starts = [centre, [*centre[:3], centre[3] + 4, *centre[4:]], [*centre[:5], centre[5] + 4]]
    rounds = [(*_descend(points, start, centre, p, _FIRST_NOISE, free), p) for p in _SHARPNESS for start in starts]
    _, theta, p = min(rounds, key=lambda tried: tried[0])
    noise = _noise(points, theta, p, len(free))
    # Fit again with the estimated noise. The smaller the noise, the more weight the data have against the prior.
    _, theta = _descend(points, theta, centre, p, noise, free)
    noise = _noise(points, theta, p, len(free))
    values = [math.exp(x) for x in theta]
    if not moves:
        values[1] = values[4] = 0.0
    t_op, per_byte, op, contention, byte, crowd = values
    return Model(t_op, per_byte, op, contention, byte, crowd, sharpness=p, noise=noise)
