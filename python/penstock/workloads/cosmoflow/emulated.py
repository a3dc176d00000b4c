# SPDX-License-Identifier: Apache-2.0
"""CosmoFlow on an emulated accelerator: steps take the published time, and volumes are read in their stored size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.protocols import Demand, InputField, WorkloadSpec
from penstock.workloads._shared.accelerator import EmulatedAccelerator, Pacer
from penstock.workloads._shared.catalogue import COSMOFLOW_SAMPLE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.workloads.cosmoflow.recipe import Recipe

__all__ = ["ACCELERATORS", "EmulatedCosmoFlow"]

ACCELERATORS = COSMOFLOW_SAMPLE_S

UTILISATION = 0.7
"""Accelerator utilisation that MLPerf Storage requires. Source: metric.au in the same files."""


class EmulatedCosmoFlow(EmulatedAccelerator):
    """Emulated CosmoFlow workload. The workload consumes the same batches as the real training."""

    def __init__(
        self, recipe: Recipe, pacer: Pacer | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(pacer, clock)
        self._recipe = recipe
        self._sample_s = 0.0

    def demand(self, spec: WorkloadSpec) -> Demand:
        if spec.accelerator not in ACCELERATORS:
            raise ConfigError(
                f"accelerator `{spec.accelerator}` has no published step time",
                hint=f"use one of: {', '.join(ACCELERATORS)}",
            )
        v = self._recipe.voxels
        self._sample_s = ACCELERATORS[spec.accelerator]
        return Demand(
            fields={"x": InputField("int16", (v, v, v, 4)), "y": InputField("float32", (4,))},
            arrays="numpy",
            sample_bytes=v**3 * 8 + 16,
            samples_per_s=1 / self._sample_s,
            # The step time is the time for 128³ voxels, and is not scaled with the volume. Therefore, a rehearsal with
            # smaller volumes must scale the store's rates. The result contains both sizes.
            facts={
                "emulated": spec.accelerator,
                "model": "cosmoflow",
                "sample_step_s": self._sample_s,
                "step_s": self._sample_s,
                "au_required": UTILISATION,
                "step_voxels": 128,
                "voxels": v,
            },
        )

    def step_s(self, samples: int) -> float:
        return samples * self._sample_s
