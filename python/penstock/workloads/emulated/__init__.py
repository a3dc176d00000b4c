# SPDX-License-Identifier: Apache-2.0
"""Emulates published storage workloads: reads their samples, and waits for their step times, without a model.

The samples have DLIO's formats (argonne-lcf/dlio_benchmark), so that both programs can read each other's datasets:
TFRecords of `image` (bytes) and `size`, npz of `x` and `y`, or images.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.protocols import Demand, InputField, WorkloadSpec
from penstock.workloads._shared.accelerator import EmulatedAccelerator
from penstock.workloads._shared.catalogue import MODELS, Model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["MODELS", "Emulated", "Model", "model_of", "workload"]


class Emulated(EmulatedAccelerator):
    """Emulated workload. The settings are either `model` (a name in `MODELS`) or the attributes of a `Model`."""

    def __init__(self) -> None:
        super().__init__()
        self._model: Model | None = None
        self._length_s = self._deviation_s = 0.0
        self._draw = random.Random(0)

    def demand(self, spec: WorkloadSpec) -> Demand:
        self._model = model = model_of(spec.settings)
        if spec.accelerator is None or spec.accelerator not in model.step_s:
            raise ConfigError(
                f"{model.name} has no step time for accelerator `{spec.accelerator}`",
                hint=f"use one of: {', '.join(model.step_s)}",
            )
        self._length_s, self._deviation_s = model.step_s[spec.accelerator], model.step_deviation_s
        self._draw = random.Random(spec.seed * 1_000_003 + spec.rank)
        return Demand(
            fields=_fields(model),
            arrays="numpy",
            sample_bytes=model.record_bytes,
            samples_per_s=model.batch / self._length_s,
            facts={
                "emulated": spec.accelerator,
                "model": model.name,
                "sample_step_s": self._length_s / model.batch,
                "step_s": self._length_s,
                "step_batch": model.batch,
                "au_required": model.au,
                # The settings contain the number of records, because counting records would read all files and warm the
                # caches.
                "records_per_object": spec.settings.get("records_per_file"),
            },
        )

    def step_s(self, samples: int) -> float:
        assert self._model is not None, "demand() must come first"
        length = self._length_s
        if self._deviation_s:
            length = max(0.0, self._draw.gauss(length, self._deviation_s))
        return length * samples / self._model.batch


def model_of(settings: Mapping[str, Any]) -> Model:
    """Return the model that the settings select by name, or describe by its attributes.

    Raises:
        ConfigError: The model is unknown, or a setting is invalid.
    """
    name = settings.get("model")
    if name is None:
        return Model.of(settings)
    if len(settings) > 1:
        raise ConfigError(
            "`model` cannot be combined with other settings", hint="omit either `model` or the other settings"
        )
    if name not in MODELS:
        raise ConfigError(f"model `{name}` is not in the catalogue", hint=f"use one of: {', '.join(MODELS)}")
    return MODELS[name]


def _fields(model: Model) -> dict[str, InputField]:
    if model.format in ("jpeg", "png"):
        return {"image": InputField("image", (model.side, model.side, 3))}
    name = "image" if model.format == "tfrecord" else "x"
    if model.record_deviation_bytes or model.format == "npz":
        return {name: InputField("bytes", ())}
    # DLIO's records are square images of bytes, so the size is rounded down to a square number.
    return {name: InputField("uint8", (math.isqrt(model.record_bytes) ** 2,))}


def workload() -> Emulated:
    """Entry point `penstock.workloads: emulated`."""
    return Emulated()
