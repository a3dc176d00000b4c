# SPDX-License-Identifier: Apache-2.0
"""Transfers that share limits in simulated time: the fluid model of bandwidth, in SimPy.

Between two events, every transfer runs at its max-min fair rate. An event is the start or the end of a transfer, or a
change of a limit (burst credits are spent, a slow ramp rises). The number of events therefore depends on the number of
transfers, not on their bytes.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any

from simpy.events import Event

from penstock.plan.fair_share import OWN_CAP, TransferClass, fair_rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    import simpy

    from penstock.plan.simulation_input import SharedLimit

__all__ = ["LimitState", "Network"]

_RAMP_STEPS = 40  # a ramp's rate changes in this many steps, each of a few per cent
_DONE = 1e-9  # samples; a transfer with less left is complete
_EMPTY = 1e-6  # if this share of a burst's credits is left, the credits count as spent


class LimitState:
    """State of one server of a limit. The state outlives a restart of the job, because the store does not restart.

    Attributes:
        used, offered: Units that were served, and units that could have been served.
        refused: Requests that were refused.
    """

    def __init__(self, limit: SharedLimit) -> None:
        self.limit = limit
        self.credits = limit.burst_units
        self.used = self.offered = self.refused = 0.0
        self.rate = self.use = 0.0

    def settle(self, now: float, clients: float) -> None:
        """Set the rate that applies from now on."""
        self.rate = self.limit.rate_at(now, clients)
        if self.limit.burst_per_s is not None and self.credits > _EMPTY * self.limit.burst_units:
            self.rate = self.limit.burst_per_s

    def advance(self, seconds: float, *, is_full: bool) -> None:
        """Account for `seconds` at the current use."""
        units = self.use * seconds
        self.used += units
        self.offered += self.rate * seconds
        if is_full and self.limit.back_off is not None:
            self.refused += units * self.limit.refused_share
        if self.limit.burst_per_s is not None:
            earned = self.limit.per_s * seconds
            self.credits = min(self.limit.burst_units, max(0.0, self.credits + earned - units))

    def next_change_s(self, now: float) -> float:
        """Seconds until the rate of this limit changes, if no transfer starts or ends."""
        found = math.inf
        if self.limit.ramp_from_per_s is not None and now < self.limit.ramp_s:
            found = self.limit.ramp_s / _RAMP_STEPS
        if self.limit.burst_per_s is not None:
            spent_per_s = self.use - self.limit.per_s
            least = _EMPTY * self.limit.burst_units
            if spent_per_s > 0 and self.credits > least:
                found = min(found, (self.credits - least / 2) / spent_per_s)
        return found


class _Class(TransferClass):
    """Transfers of one class that are under way, in the order in which they will end."""

    __slots__ = ("bound", "rate", "served", "waiting")

    def __init__(self, cap: float, uses: tuple[tuple[int, float], ...], back_off: float) -> None:
        super().__init__(cap, uses, back_off)
        # `served`: samples that a transfer would have received if it had run since the class was created.
        self.served = self.rate = 0.0
        self.bound = OWN_CAP
        self.waiting: list[tuple[float, int, Event]] = []


class Network:
    """All transfers of a job, over the given limits.

    Args:
        clients_per_transfer: Concurrent requests of one transfer, for limits with `peak_clients`.
    Attributes:
        busy_s: Seconds of all transfers, by the index of the limit that was the bottleneck, or `OWN_CAP`.
        started: Samples of all transfers, those under way included.
    """

    def __init__(self, env: simpy.Environment, limits: Sequence[LimitState], clients_per_transfer: float = 1.0) -> None:
        self._env, self._limits, self._clients = env, limits, clients_per_transfer
        self._classes: dict[tuple[float, tuple[tuple[int, float], ...], float], _Class] = {}
        self._refusing = frozenset(i for i, one in enumerate(limits) if one.limit.back_off is not None)
        self._at = env.now
        self._is_dirty = False
        self._wake: Event | None = None
        self._order = count()
        self._full: set[int] = set()
        self.busy_s: defaultdict[int, float] = defaultdict(float)
        self.started = 0.0

    def transfer(self, samples: float, cap: float, uses: tuple[tuple[int, float], ...], back_off: float = 1.0) -> Event:
        """Start a transfer; return an event that occurs at the end of the transfer.

        Args:
            cap, uses, back_off: As in `TransferClass`.
        """
        self._advance()
        key = (cap, uses, back_off)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = _Class(cap, uses, back_off)
        done = Event(self._env)
        found.count += 1
        self.started += samples
        heapq.heappush(found.waiting, (found.served + samples, next(self._order), done))
        self._change()
        return done

    def finish(self) -> None:
        """Account for the time until now, before the results are read."""
        self._advance()

    def _change(self) -> None:
        """Schedule one computation of new rates, after all events that are due at this instant."""
        if not self._is_dirty:
            self._is_dirty = True
            later: Any = self._env.timeout(0)
            later.callbacks.append(self._settle)

    def _advance(self) -> None:
        seconds = self._env.now - self._at
        self._at = self._env.now
        if seconds <= 0:
            return
        for one in self._classes.values():
            one.served += one.rate * seconds
            self.busy_s[one.bound] += one.count * seconds
        for index, state in enumerate(self._limits):
            state.advance(seconds, is_full=index in self._full)

    def _settle(self, _event: Event) -> None:
        self._is_dirty = False
        self._advance()
        now = self._env.now
        classes = list(self._classes.values())
        clients = [0.0] * len(self._limits)
        for one in classes:
            for index, _ in one.uses:
                clients[index] += one.count * self._clients
        for state, number in zip(self._limits, clients, strict=True):
            state.settle(now, number)
            state.use = 0.0
        self._full.clear()
        soonest = math.inf
        rates = fair_rates(classes, [state.rate for state in self._limits], self._refusing)
        for one, (rate, bound) in zip(classes, rates, strict=True):
            one.rate, one.bound = rate, bound
            if bound != OWN_CAP:
                self._full.add(bound)
            for index, units in one.uses:
                self._limits[index].use += one.count * units * rate
            if rate > 0:
                soonest = min(soonest, (one.waiting[0][0] - one.served) / rate)
        if classes:
            soonest = min(soonest, *(state.next_change_s(now) for state in self._limits), math.inf)
        self._wake = None
        if math.isfinite(soonest):
            wake: Any = self._env.timeout(max(0.0, soonest))
            wake.callbacks.append(self._deliver)
            self._wake = wake

    def _deliver(self, event: Event) -> None:
        if event is not self._wake:
            return  # the rates have changed since this event was planned
        self._advance()
        for key, one in list(self._classes.items()):
            # The rounding error of a sum of rate x seconds grows with the sum.
            ended = one.served + _DONE + 1e-12 * one.served
            while one.waiting and one.waiting[0][0] <= ended:
                _, _, done = heapq.heappop(one.waiting)
                one.count -= 1
                done.succeed()
            if not one.count:
                del self._classes[key]
        self._change()
