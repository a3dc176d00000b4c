# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates of transfers that share limits, as TCP connections share links. A pure function.

The rates of all transfers rise together. The rate of a transfer stops rising at its own cap, or when a limit that it
uses is full. The rates of all others continue to rise. Equal transfers form one class, so the cost depends on the
number of classes, not of transfers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OWN_CAP", "TransferClass", "fair_rates"]

OWN_CAP = -1
"""Value in place of the index of a limit, if a class reaches its own cap."""


@dataclass(slots=True)
class TransferClass:
    """Transfers that have the same cap and use the same limits.

    Attributes:
        cap: Samples per second of one transfer if no shared limit is the bottleneck; finite.
        uses: Pairs of a limit's index and the units of this limit that one sample takes, above 0.
        back_off: Share of its fair rate that a transfer reaches at a limit that refuses requests; 1 elsewhere.
        count: Number of transfers under way.
    """

    cap: float
    uses: tuple[tuple[int, float], ...]
    back_off: float = 1.0
    count: int = 0


def fair_rates(
    classes: Sequence[TransferClass], capacities: Sequence[float], refusing: frozenset[int] = frozenset()
) -> list[tuple[float, int]]:
    """Return for each class the samples per second of one transfer, and the limit that binds it (or `OWN_CAP`).

    Args:
        capacities: Units per second of each limit.
        refusing: Indices of the limits that refuse requests. A transfer that such a limit binds gets its fair rate
            times its `back_off`. The remaining part of its share stays unused.
    Source:
        Progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    found: list[tuple[float, int]] = [(0.0, OWN_CAP)] * len(classes)
    left = list(capacities)
    rising = [index for index, one in enumerate(classes) if one.count]
    while rising:
        demand = [0.0] * len(left)
        for index in rising:
            one = classes[index]
            for limit, units in one.uses:
                demand[limit] += one.count * units
        level, full = math.inf, OWN_CAP
        for limit, units in enumerate(demand):
            if units > 0 and max(0.0, left[limit]) < level * units:
                level, full = max(0.0, left[limit]) / units, limit
        # Every class whose cap is below the level stops at its cap. The unused share of such a class can only raise the
        # level.
        stopped = {index: classes[index].cap for index in rising if classes[index].cap <= level}
        bound = OWN_CAP
        if not stopped:
            bound = full
            stopped = {
                index: level * (classes[index].back_off if full in refusing else 1.0)
                for index in rising
                if any(limit == full for limit, _ in classes[index].uses)
            }
        for index, rate in stopped.items():
            found[index] = (rate, bound)
            for limit, units in classes[index].uses:
                left[limit] -= classes[index].count * units * rate
        rising = [index for index in rising if index not in stopped]
    return found
