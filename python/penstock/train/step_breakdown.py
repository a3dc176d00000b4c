# SPDX-License-Identifier: Apache-2.0
"""Breakdown of a step's time over all ranks: compute, exposed communication, and the three kinds of waiting.

Each rank measures its own exposed communication, which contains the wait for ranks that reach the allreduce later. The
last of these ranks does not wait, so the shortest time of all ranks in a step is the communication itself. The time by
which another rank exceeds the shortest time is that rank's wait for the slowest rank. This method needs neither a
barrier nor equal clocks.
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.train.driver import Share
    from penstock.train.step_rows import StepRow

__all__ = ["PARTS", "aligned_rows", "breakdown", "parts_of", "shortest_communication"]

PARTS = (
    "compute_s",
    "exposed_communication_s",
    "data_wait_s",
    "slowest_rank_wait_s",
    "host_to_device_s",
    "other_s",
)
"""Parts of a step, which add up to its length. `other_s` is the loop's own work."""

_MAX_RANKS = 64  # ranks listed in a result
_TIMELINE_RANKS = 8
# A rank is named as the slowest if the other ranks wait for more than `_NAMED_SHARE` of a step. In addition, they must
# wait for this rank in more steps than chance explains: by `_NAMED_DEVIATIONS` standard deviations of a binomial
# distribution.
_NAMED_SHARE = 0.02
_NAMED_DEVIATIONS = 3.0


def aligned_rows(shares: Sequence[Share]) -> tuple[int, list[list[StepRow]]]:
    """Return the stride, and the rows of each rank for the steps that all ranks have."""
    packed = [share.rows for share in shares if share.rows is not None]
    if len(packed) < len(shares):
        return 1, []
    rows = _aligned([one.rows() for one in packed])
    return max((one.stride for one in packed), default=1), rows


def _aligned(rows: Sequence[Sequence[StepRow]]) -> list[list[StepRow]]:
    common: set[int] = set.intersection(*({row.step for row in mine} for mine in rows)) if rows else set()
    return [[row for row in mine if row.step in common] for mine in rows]


def breakdown(shares: Sequence[Share]) -> dict[str, Any]:
    """Return the breakdown for a result; empty if no step was taken. Times are seconds of a mean step, without the steps
    of the warm-up, unless the run has only these.

    `parts` has the mean over ranks, and `ranks` each rank. `slowest` is the rank that all other ranks waited for in
    most steps. It is missing if ranks hardly waited, or if they waited equally for all ranks. `timeline` has a few
    consecutive steps.
    """
    taken = min((share.steps for share in shares), default=0)
    if taken == 0:
        return {}
    has_steady = all(share.steady.steps for share in shares)
    sums = [share.steady if has_steady else share.sums() for share in shares]
    steps = min(each.steps for each in sums)
    stride, rows = aligned_rows(shares)
    if len(rows[0] if rows else ()) > 1:  # in the first step, ranks wait for ranks that started later
        rows = [mine[1:] for mine in rows]
    least, last = shortest_communication(rows)
    ranks = []
    for rank, share in enumerate(sums):
        exposed_s = (share.comm_s + share.sync_s) / steps
        mine = rows[rank] if rows else []
        sampled_s = sum(row.comm_s for row in mine)
        own = min(1.0, sum(least) / sampled_s) if sampled_s > 0 else 1.0
        known = {
            "compute_s": share.compute_s / steps,
            "exposed_communication_s": exposed_s * own,
            "data_wait_s": share.wait_s / steps,
            "slowest_rank_wait_s": exposed_s * (1 - own),
            "host_to_device_s": share.h2d_s / steps,
        }
        step_s = share.train_s / steps
        # An emulated step ends early to compensate for the overshoot of earlier steps. The sum of its parts can then
        # exceed its wall time by microseconds.
        ranks.append({"rank": rank, "step_s": step_s, **known, "other_s": max(0.0, step_s - sum(known.values()))})
    found: dict[str, Any] = {
        "steps": steps,
        "excluded_steps": taken - steps,
        "stride": stride,
        "step_s": max(one["step_s"] for one in ranks),
        "parts": {name: fmean(one[name] for one in ranks) for name in PARTS},
        "ranks": ranks[:_MAX_RANKS],
        "timeline": _timeline(shares),
    }
    if last and found["parts"]["slowest_rank_wait_s"] > _NAMED_SHARE * found["step_s"]:
        rank, times = Counter(last).most_common(1)[0]
        chance = 1 / len(shares)
        deviation = math.sqrt(chance * (1 - chance) / len(last))
        if times / len(last) > chance + _NAMED_DEVIATIONS * deviation:
            found["slowest"] = {"rank": rank, "share_of_steps": times / len(last)}
    return found


def shortest_communication(rows: Sequence[Sequence[StepRow]]) -> tuple[list[float], list[int]]:
    """Return each step's shortest exposed communication over the ranks, and the rank with this shortest time."""
    if not rows:
        return [], []
    costs = [[mine[k].comm_s for mine in rows] for k in range(len(rows[0]))]
    least = [min(step) for step in costs]
    return least, [step.index(low) for step, low in zip(costs, least, strict=True)] if len(rows) > 1 else []


def parts_of(row: StepRow, communication_s: float) -> dict[str, float]:
    """Split one step into `PARTS`, given the step's communication without waiting. The parts fit into the step."""
    known = {
        "data_wait_s": row.wait_s,
        "host_to_device_s": row.h2d_s,
        "compute_s": row.compute_s,
        "slowest_rank_wait_s": max(0.0, row.comm_s - communication_s),
        "exposed_communication_s": min(row.comm_s, communication_s),
    }
    left, fitted = row.length_s, {}
    for name, seconds in known.items():
        fitted[name] = min(seconds, left)
        left -= fitted[name]
    return {**fitted, "other_s": left}


def _timeline(shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Return the latest consecutive steps of the first ranks. A pause between two steps, such as a turn on other data,
    begins a new timeline.
    """
    rows = _aligned([share.rows.latest() for share in shares if share.rows is not None])
    rows = rows[:_TIMELINE_RANKS]
    if not rows or not rows[0]:
        return []
    least, _ = shortest_communication(rows)
    first = 0
    for k in range(1, len(rows[0])):
        before, row = rows[0][k - 1], rows[0][k]
        if row.began_s - (before.began_s + before.length_s) > before.length_s:
            first = k
    zero_s = min(mine[first].began_s for mine in rows)
    return [
        {
            "rank": rank,
            "step": mine[k].step,
            "began_s": mine[k].began_s - zero_s,
            "length_s": mine[k].length_s,
            **parts_of(mine[k], least[k]),
        }
        for rank, mine in enumerate(rows)
        for k in range(first, len(mine))
    ]
