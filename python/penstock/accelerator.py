# SPDX-License-Identifier: Apache-2.0
"""An accelerator that is not there: each step takes the time that a real one was published to take.

Owns the pacing, the touching of each batch and the meeting of the ranks after a step; a workload that emulates says what
it eats and how long a step is. Needs no torch in a world of one. Learns nothing: no loss, no metrics, no state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.protocols import StepCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.protocols import Batch, Demand, WorkloadSpec

__all__ = ["EmulatedAccelerator", "Pacer"]

_SPIN_S = 0.0002  # a sleep overshoots by 50-60 us at the kernel's default timer slack; the rest is spun
_PAGE = 4096


class Pacer:
    """Makes steps of a wanted length out of sleep and spin, and counts what is overshot out of the next step.

    Without that, a 50 us overshoot of a 3.5 ms step would read as a store that is 1.5 % too slow.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self.overshoot_s = 0.0

    def pace(self, started_s: float, length_s: float) -> None:
        """Returns once `length_s` since `started_s` is over, less what the last step overshot."""
        end = started_s + length_s - self.overshoot_s
        while (left := end - self._clock()) > 0:
            if left > _SPIN_S:
                self._sleep(left - _SPIN_S)
        # A step that was late by more than its own length (a suspended process) forgives the rest.
        self.overshoot_s = min(self._clock() - end, length_s)


def _touch(field: Any) -> int:
    """Reads a byte of each page, so that a batch that was never really there shows; a copy to a device would too."""
    import numpy as np

    if isinstance(field, list):
        return sum(int(np.frombuffer(one, np.uint8)[::_PAGE].sum(dtype="int64")) for one in field)
    return int(field.reshape(-1).view(np.uint8)[::_PAGE].sum(dtype="int64")) if field.size else 0


class EmulatedAccelerator:
    """One emulated step for each batch; ranks meet at a barrier after it, as a synchronous allreduce would make them.

    Fulfils `protocols.Workload` for a workload that adds `demand` and `step_s`.
    """

    def __init__(self, pacer: Pacer | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pacer = pacer or Pacer(clock=clock)
        self._clock = clock
        self._meets = False
        self.touched = 0

    def demand(self, spec: WorkloadSpec) -> Demand:
        """As in `protocols.Workload`; the workload's own."""
        raise NotImplementedError

    def step_s(self, samples: int) -> float:
        """Seconds that a step over so many samples of this rank takes; called after `demand`. The workload's own."""
        raise NotImplementedError

    def prepare(self, spec: WorkloadSpec) -> None:
        self.demand(spec)
        self._meets = spec.world > 1

    def begin_epoch(self, epoch: int) -> None:
        pass

    def _eat(self, batch: Batch) -> int:
        self.touched += sum(map(_touch, batch.values()))
        return len(next(iter(batch.values())))

    def step(self, batch: Batch) -> StepCost:
        started = self._clock()
        samples = self._eat(batch)
        length = self.step_s(samples)
        cost = StepCost(samples, length)  # made while the step lasts: what comes after it is the harness's cost
        self._pacer.pace(started, length)
        if not self._meets:
            return cost
        from torch import distributed

        met = self._clock()
        distributed.barrier()
        return StepCost(samples, length, self._clock() - met)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Consumes the batches and tells nothing: no time of a validation step is published, and no model is there."""
        for batch in batches:
            self._eat(batch)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def cleanup(self) -> None:
        pass
