# SPDX-License-Identifier: Apache-2.0
"""CosmoFlow workload as defined by MLPerf HPC: the model, its training recipe, and emulated accelerators.

Imports torch only when a model is built.

Source:
    github.com/sparticlesteve/cosmoflow-benchmark and mlcommons/hpc (model, schedule, metric),
    mlcommons/storage (emulated step times).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.workloads.cosmoflow.recipe import RECIPES, Recipe, learning_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.protocols import Batch, Demand, StepCost, Workload, WorkloadSpec

__all__ = ["RECIPES", "CosmoFlow", "Recipe", "learning_rate", "workload"]


class CosmoFlow:
    """CosmoFlow workload: trains the model, or emulates an accelerator if the spec contains one."""

    def __init__(self) -> None:
        self._inner: Workload | None = None

    def _made(self, spec: WorkloadSpec) -> Workload:
        if self._inner is None:
            recipe = Recipe.of(spec.settings)
            if spec.accelerator is not None:
                from penstock.workloads.cosmoflow.emulated import EmulatedCosmoFlow

                self._inner = EmulatedCosmoFlow(recipe)
            else:
                try:
                    from penstock.workloads.cosmoflow.training import Training
                except ModuleNotFoundError as error:
                    if error.name != "torch":
                        raise
                    raise ConfigError(
                        "training cosmoflow requires torch, which is not installed",
                        hint="pip install 'penstock[torch]'",
                    ) from None
                self._inner = Training(recipe)
        return self._inner

    def _prepared(self) -> Workload:
        assert self._inner is not None, "prepare() must come first"
        return self._inner

    def demand(self, spec: WorkloadSpec) -> Demand:
        return self._made(spec).demand(spec)

    def prepare(self, spec: WorkloadSpec) -> None:
        self._made(spec).prepare(spec)

    def begin_epoch(self, epoch: int) -> None:
        self._prepared().begin_epoch(epoch)

    def step(self, batch: Batch) -> StepCost:
        return self._prepared().step(batch)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        return self._prepared().evaluate(batches)

    def state_dict(self) -> dict[str, Any]:
        return self._prepared().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._prepared().load_state_dict(state)

    def cleanup(self) -> None:
        if self._inner is not None:
            self._inner.cleanup()


def workload() -> CosmoFlow:
    """Entry point `penstock.workloads: cosmoflow`."""
    return CosmoFlow()
