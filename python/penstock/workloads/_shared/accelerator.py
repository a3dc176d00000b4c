# SPDX-License-Identifier: Apache-2.0
"""Emulated accelerator: each step takes the published step time of a real accelerator.

Paces steps, reads each batch, and synchronises the ranks after each step. The workload that uses the emulated
accelerator defines the batch size and the step time. No model is trained, so there are no losses, metrics or states. A
single rank does not need torch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.protocols import StepCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.protocols import Batch, Demand, WorkloadSpec

__all__ = ["EmulatedAccelerator", "Pacer"]

_SPIN_S = 0.0002  # busy-wait at the end of a step, because a sleep overshoots by 50-60 us at the default timer slack
# Steps shorter than this time only busy-wait. After a sleep, the CPU caches are cold, and the loop costs 2 us, not 0.6
# us.
_SHORT_S = 0.001
_MAX_DEBT_S = 0.05  # a few time slices of a busy kernel; a longer delay means that the process was suspended
_PAGE = 4096


class Pacer:
    """Paces steps of a given length with sleep and busy-wait. If a step overshoots, the next steps are shorter.

    Therefore, steps end on the schedule of the accelerator. A late wake-up, or another process on the core, does not
    look like slow storage: an overshoot of 50 us would be 1.5 % of a step of 3.5 ms.

    Attributes:
        overshoot_s: Overshoot that is not yet compensated, in seconds.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self.overshoot_s = 0.0

    def pace(self, started_s: float, length_s: float) -> None:
        """Wait until `length_s` after `started_s`, minus the overshoot of earlier steps.

        At most 50 ms or one step length of overshoot is compensated, whichever is larger. Overshoot above this limit
        stays in the wall time.
        """
        clock, spun_s = self._clock, _SPIN_S if length_s >= _SHORT_S else _SHORT_S
        end = started_s + length_s - self.overshoot_s
        while (left := end - clock()) > 0:
            if left > spun_s:
                self._sleep(left - spun_s)
        # `left` comes from the clock value that ended the loop. Time after that value is overhead of the harness.
        self.overshoot_s = -left if left > -_MAX_DEBT_S else min(-left, max(length_s, _MAX_DEBT_S))

    def forget(self) -> None:
        """Discard the overshoot, because the overshoot of an unmeasured step must not shorten a measured step."""
        self.overshoot_s = 0.0


def _touch(field: Any) -> int:
    """Read a byte of each page, so that the batch's memory is really read, as in a copy to a device; return the sum."""
    import numpy as np

    if isinstance(field, list):
        return sum(int(np.frombuffer(one, np.uint8)[::_PAGE].sum(dtype="int64")) for one in field)
    return int(field.reshape(-1).view(np.uint8)[::_PAGE].sum(dtype="int64")) if field.size else 0


class EmulatedAccelerator:
    """Base class of workloads that emulate one step per batch.

    A barrier between the ranks after each step emulates a synchronous allreduce. The class implements
    `protocols.Workload`, except `demand` and `step_s`, which a subclass defines.
    """

    def __init__(self, pacer: Pacer | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._pacer = pacer or Pacer(clock=clock)
        self._clock = clock
        self._meets = False
        self._is_first = True
        self.touched = 0

    def demand(self, spec: WorkloadSpec) -> Demand:
        """Return the input that the workload needs, as in `protocols.Workload`. A subclass defines this method."""
        raise NotImplementedError

    def step_s(self, samples: int) -> float:
        """Duration of a step with `samples` samples on this rank. Called after `demand`. A subclass defines this
        method.
        """
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
        cost = StepCost(samples, length)  # created during the step, because time after the step would count as overhead
        self._pacer.pace(started, length)
        if self._is_first:
            # The utilisation excludes the first step of an epoch, so its overshoot must not shorten the next step.
            self._pacer.forget()
            self._is_first = False
        if not self._meets:
            return cost
        from torch import distributed

        met = self._clock()
        distributed.barrier()
        return StepCost(samples, length, self._clock() - met)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Read the batches, and return no metrics: there is neither a model nor a published validation time."""
        for batch in batches:
            self._eat(batch)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def cleanup(self) -> None:
        pass
