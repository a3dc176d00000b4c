# SPDX-License-Identifier: Apache-2.0
"""Trivial workload, as in tf_cnn_benchmarks: two dense layers, so that a run measures the data path.

Imports torch only when the model is built.

Source:
    tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models/trivial_model.py: images of 227 x 227, batch 32, rate 0.005;
    dense 1 and dense 4096 with ReLU, then the classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.workloads._shared.emulated_images import EmulatedImages
from penstock.workloads._shared.image_input import ImageRecipe
from penstock.workloads._shared.lazy_workload import LazyWorkload, requires

if TYPE_CHECKING:
    from penstock.protocols import Workload, WorkloadSpec

__all__ = ["RECIPES", "Trivial", "TrivialRecipe", "workload"]


class TrivialRecipe(ImageRecipe, frozen=True, forbid_unknown_fields=True):
    """Settings of a training of the trivial model."""

    image_size: int = 227
    label_smoothing: float = 0.0


RECIPES: dict[str, dict[str, Any]] = {"tf_cnn_benchmarks": {"base_learning_rate": 0.005, "base_batch": 32}}


class Trivial(LazyWorkload):
    """Trivial workload. The model has no published step time, so it cannot be emulated."""

    def make(self, spec: WorkloadSpec) -> Workload:
        recipe = TrivialRecipe.parse("trivial", spec.settings, RECIPES, "tf_cnn_benchmarks")
        recipe.check_emulation(spec.accelerator)
        if spec.accelerator is not None:
            return EmulatedImages("trivial", recipe, {}, 0.0)
        with requires("trivial", "torch", "torch"):
            from penstock.workloads.trivial.model import training

        return training(recipe)


def workload() -> Trivial:
    """Entry point `penstock.workloads: trivial`."""
    return Trivial()
