# SPDX-License-Identifier: Apache-2.0
"""Emulated accelerator: each step takes the time that was published for a real one.

Paces steps, touches each batch and synchronises the ranks after a step; the emulating workload gives the batch size and the
step time. With one rank no torch is needed. Trains nothing: no loss, no metrics, no state.
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
# A step so short is spun whole: who sleeps wakes to caches full of others' work, and the loop costs 2 us then instead of 0.6.
_SHORT_S = 0.001
_LONGEST_DEBT_S = 0.05  # some slices of a busy kernel; who was away for longer was suspended, which is no pacing
_PAGE = 4096


class Pacer:
    """Makes steps of a wanted length out of sleep and spin; what one step overshoots, the next ones are shorter by.

    So steps end on the schedule that an accelerator would have kept, and neither a sleep that ends late nor a kernel that runs
    something else meanwhile reads as a store that is too slow: at 3.5 ms, 50 us would be 1.5 %.

    Attributes:
        overshoot_s: Still to be paid back.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self.overshoot_s = 0.0

    def pace(self, started_s: float, length_s: float) -> None:
        """Returns once `length_s` since `started_s` is over, less what the last steps overshot.

        A debt beyond 50 ms and the step itself is not paid back: it stays in the wall.
        """
        clock, spun_s = self._clock, _SPIN_S if length_s >= _SHORT_S else _SHORT_S
        end = started_s + length_s - self.overshoot_s
        while (left := end - clock()) > 0:
            if left > spun_s:
                self._sleep(left - spun_s)
        # By the clock read that ended the loop: what follows is the harness's cost.
        self.overshoot_s = -left if left > -_LONGEST_DEBT_S else min(-left, max(length_s, _LONGEST_DEBT_S))

    def forget(self) -> None:
        """Owes nothing any more: what is overshot where nobody measures may not shorten a step that is measured."""
        self.overshoot_s = 0.0


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
        self._is_first = True
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

    def begin_epoch(self, epoch: int) -> None:  # noqa: ARG002 - every epoch is like the others
        self._is_first = True

    def _eat(self, batch: Batch) -> int:
        self.touched += sum(map(_touch, batch.values()))
        return len(next(iter(batch.values())))

    def step(self, batch: Batch) -> StepCost:
        started = self._clock()
        if self._is_first:
            self._pacer.forget()
        samples = self._eat(batch)
        length = self.step_s(samples)
        cost = StepCost(samples, length)  # made while the step lasts: what comes after it is the harness's cost
        self._pacer.pace(started, length)
        if self._is_first:
            # Utilisation leaves the first step of an epoch out, and so what it overshot.
            self._pacer.forget()
            self._is_first = False
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
