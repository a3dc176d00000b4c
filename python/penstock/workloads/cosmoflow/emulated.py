# SPDX-License-Identifier: Apache-2.0
"""An accelerator that is not there: each step takes the published time of a real one, and the batch is really touched.

It needs no torch in a world of one. It learns nothing, so it has neither loss nor metrics nor state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.protocols import Batch, Demand, FieldSpec, StepCost, WorkloadSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.workloads.cosmoflow.recipe import Recipe

__all__ = ["ACCELERATORS", "EmulatedAccelerator", "Pacer"]

ACCELERATORS = {"v100": 0.00936, "a100": 0.00551, "h100": 0.00350, "v100x32@2021": 1 / (2.3 * 128)}
"""Seconds of one CosmoFlow training step at batch 1 and 128 voxels a side; of `v100x32@2021`, a sample's share of a step.

Source:
    mlcommons/storage v0.5-v2.0, workload/cosmoflow_{v100,a100,h100}.yaml, train.computation_time. A larger batch is taken
    as that many steps: those configurations know only batch 1."""

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

    def pace(self, started_s: float, length_s: float) -> float:
        """Returns once `length_s` since `started_s` is over, less what the last step overshot; gives the length charged."""
        end = started_s + length_s - self.overshoot_s
        while (left := end - self._clock()) > 0:
            if left > _SPIN_S:
                self._sleep(left - _SPIN_S)
        # A step that was late by more than its own length (a suspended process) forgives the rest.
        self.overshoot_s = min(self._clock() - end, length_s)
        return length_s


class EmulatedAccelerator:
    """One emulated step for each batch; ranks meet at a barrier after it, as a synchronous allreduce would make them."""

    def __init__(
        self, recipe: Recipe, pacer: Pacer | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._recipe = recipe
        self._pacer = pacer or Pacer(clock=clock)
        self._clock = clock
        self._sample_s = 0.0
        self._meets = False
        self.touched = 0

    def demand(self, spec: WorkloadSpec) -> Demand:
        if spec.accelerator not in ACCELERATORS:
            raise ConfigError(
                f"no published step time for accelerator `{spec.accelerator}`",
                hint=f"one of: {', '.join(ACCELERATORS)}",
            )
        v = self._recipe.voxels
        step_s = ACCELERATORS[spec.accelerator]
        return Demand(
            fields={"x": FieldSpec("int16", (v, v, v, 4)), "y": FieldSpec("float32", (4,))},
            arrays="numpy",
            sample_bytes=v**3 * 8 + 16,
            samples_per_s=1 / step_s,
            # The time is that of 128 voxels and is not scaled with the volume: whoever rehearses with smaller ones must
            # scale the store with them, and the result says what was read.
            facts={"emulated": spec.accelerator, "sample_step_s": step_s, "step_voxels": 128, "voxels": v},
        )

    def prepare(self, spec: WorkloadSpec) -> None:
        self._sample_s = 1 / (self.demand(spec).samples_per_s or 1.0)
        self._meets = spec.world > 1

    def begin_epoch(self, epoch: int) -> None:
        pass

    def _touch(self, batch: Batch) -> int:
        """Reads a byte of each page, so that a batch that was never really there shows; a copy to a device would too."""
        for array in batch.values():
            flat = array.reshape(-1).view("uint8") if array.size else array
            self.touched += int(flat[::_PAGE].sum(dtype="int64")) if array.size else 0
        return len(next(iter(batch.values())))

    def step(self, batch: Batch) -> StepCost:
        started = self._clock()
        samples = self._touch(batch)
        charged = self._pacer.pace(started, samples * self._sample_s)
        sync = 0.0
        if self._meets:
            from torch import distributed

            met = self._clock()
            distributed.barrier()
            sync = self._clock() - met
        return StepCost(samples, charged, sync)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Consumes the batches and tells nothing: no time of a validation step is published, and no model is there."""
        for batch in batches:
            self._touch(batch)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def cleanup(self) -> None:
        pass
