# SPDX-License-Identifier: Apache-2.0
"""Image classification on an emulated accelerator: steps take the published time, and images are really decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.protocols import Demand, WorkloadSpec
from penstock.workloads._shared.accelerator import EmulatedAccelerator
from penstock.workloads._shared.image_input import ImageRecipe, fields, sample_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EmulatedImages"]


class EmulatedImages(EmulatedAccelerator):
    """Emulated training of an image classifier. The workload consumes the same batches as the real training.

    Args:
        image_s: Accelerator -> published seconds per image, at 224 pixels per side.
        au: Utilisation that a storage system must reach, 0 to 1.
    """

    def __init__(self, name: str, recipe: ImageRecipe, image_s: Mapping[str, float], au: float) -> None:
        super().__init__()
        self._name, self._recipe, self._published, self._au = name, recipe, image_s, au
        self._image_s = 0.0

    def demand(self, spec: WorkloadSpec) -> Demand:
        if spec.accelerator is None or spec.accelerator not in self._published:
            raise ConfigError(
                f"{self._name} has no published step time for accelerator `{spec.accelerator}`",
                hint=f"use one of: {', '.join(self._published)}" if self._published else "omit --accelerator",
            )
        self._image_s = self._published[spec.accelerator] / self._recipe.accelerator_scale
        return Demand(
            fields=fields(self._recipe),
            arrays="numpy",
            sample_bytes=sample_bytes(self._recipe),
            samples_per_s=1 / self._image_s,
            facts={
                "emulated": spec.accelerator,
                "model": self._name,
                "sample_step_s": self._image_s,
                "step_s": self._image_s,
                "au_required": self._au,
                "image_size": self._recipe.image_size,
                "accelerator_scale": self._recipe.accelerator_scale,
            },
        )

    def step_s(self, samples: int) -> float:
        return samples * self._image_s
