# SPDX-License-Identifier: Apache-2.0
"""CosmoFlow workload as defined by MLPerf HPC: the model, its training recipe, and emulated accelerators.

Imports torch only when a model is built.

Source:
    github.com/sparticlesteve/cosmoflow-benchmark and mlcommons/hpc (model, schedule, metric),
    mlcommons/storage (emulated step times).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.workloads._shared.lazy_workload import LazyWorkload, requires
from penstock.workloads.cosmoflow.recipe import RECIPES, Recipe, learning_rate

if TYPE_CHECKING:
    from penstock.protocols import Workload, WorkloadSpec

__all__ = ["RECIPES", "CosmoFlow", "Recipe", "learning_rate", "workload"]


class CosmoFlow(LazyWorkload):
    """CosmoFlow workload: trains the model, or emulates an accelerator if the spec contains one."""

    def make(self, spec: WorkloadSpec) -> Workload:
        recipe = Recipe.of(spec.settings)
        if spec.accelerator is not None:
            from penstock.workloads.cosmoflow.emulated import EmulatedCosmoFlow

            return EmulatedCosmoFlow(recipe)
        with requires("cosmoflow", "torch", "torch"):
            from penstock.workloads.cosmoflow.training import Training

        return Training(recipe)


def workload() -> CosmoFlow:
    """Entry point `penstock.workloads: cosmoflow`."""
    return CosmoFlow()
