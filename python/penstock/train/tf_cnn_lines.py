# SPDX-License-Identifier: Apache-2.0
"""Progress lines of tf_cnn_benchmarks, for scripts that parse them.

Source:
    github.com/tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py, get_perf_timing: the mean is harmonic,
    the uncertainty is the standard error of the speeds, and the jitter 1.4826 x their median absolute deviation. Step
    lines are per worker, and the total is over all workers.
"""

from __future__ import annotations

import math
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["WARM_UP_STEPS", "perf_timing", "tf_cnn_lines"]

WARM_UP_STEPS = 10
_DISPLAY_EVERY = 10
_LINE = "-" * 64
_TO_DEVIATION = 1.4826  # median absolute deviation -> standard deviation of a normal distribution


def perf_timing(batch: float, step_s: Sequence[float]) -> tuple[float, float, float]:
    """Return images/s, their uncertainty and their jitter for steps of `batch` images."""
    speeds = [batch / seconds for seconds in step_s]
    middle = median(speeds)
    jitter = _TO_DEVIATION * median(abs(speed - middle) for speed in speeds)
    return batch / fmean(step_s), pstdev(speeds) / math.sqrt(len(speeds)), jitter


def tf_cnn_lines(
    steps: Sequence[tuple[int, float]], losses: Sequence[float], *, batch: float, workers: int, warm_up: int
) -> Iterator[str]:
    """Yield the lines of a run.

    Args:
        steps: Number and seconds of each step, or of every n-th step of a long run.
        losses: Loss of each step; empty if nothing was trained, which prints 0 as the original does.
        batch: Images of one worker in a step.
        warm_up: Number of steps at the start that the lines leave out.
    """
    yield "Step\tImg/sec\ttotal_loss"
    measured = [(step - warm_up, seconds) for step, seconds in steps if step > warm_up]
    shown = 0
    for k, (number, _) in enumerate(measured):
        if number == 1 or number // _DISPLAY_EVERY > shown:
            shown = number // _DISPLAY_EVERY
            speed, uncertainty, jitter = perf_timing(batch, [seconds for _, seconds in measured[: k + 1]])
            loss = losses[number + warm_up - 1] if number + warm_up <= len(losses) else 0.0
            yield f"{number}\timages/sec: {speed:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})\t{loss:.3f}"
    if measured:
        total = workers * batch / fmean(seconds for _, seconds in measured)
        yield from (_LINE, f"total images/sec: {total:.2f}", _LINE)
