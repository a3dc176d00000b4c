# SPDX-License-Identifier: Apache-2.0
"""Settings of CosmoFlow, and its learning-rate schedule. Pure functions without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["POOLINGS", "RECIPES", "Recipe", "learning_rate", "parameter_count"]

POOLINGS = 5
MLPERF_FILTERS = 32
MLPERF_VOXELS = 128
MLPERF_PARAMETERS = 8_907_556


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a training; the defaults are those of MLPerf HPC's reference.

    Attributes:
        voxels: Side of a volume; a multiple of 32 (five poolings).
        filters: Number of filters of the first convolution; each following one has twice as many. 32 in MLPerf.
        dropout: Dropout rate after each hidden dense layer.
        base_learning_rate: Learning rate at `base_batch` samples per step; the peak grows linearly with the global
            batch.
        base_batch: Batch size to which `base_learning_rate` applies.
        warmup_epochs: Number of epochs in which the rate rises from base to peak.
        decay_epochs: Epochs after which the rate is reduced: it is peak x factor while epoch > entry. Epochs count from
            0; the comparison is strict, as in the reference.
        decay_factors: One factor for each entry of `decay_epochs`.
        momentum: Momentum of SGD; fixed by MLPerf's rules.
        weight_decay: L2 regularisation; applies only to the kernels of the two hidden dense layers.

    Source:
        sparticlesteve/cosmoflow-benchmark configs/cosmo.yaml: SGD 0.9, base rate 0.001 at 64, 4 warm-up epochs,
        x0.25 after 32, x0.125 after 64, dropout 0.5.
    """

    voxels: int = MLPERF_VOXELS
    filters: int = MLPERF_FILTERS
    dropout: float = 0.5
    base_learning_rate: float = 0.001
    base_batch: int = 64
    warmup_epochs: int = 4
    decay_epochs: tuple[int, ...] = (32, 64)
    decay_factors: tuple[float, ...] = (0.25, 0.125)
    momentum: float = 0.9
    weight_decay: float = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Recipe:
        """Build a recipe from settings. The setting `recipe` selects a base in RECIPES; other settings override it."""
        given = dict(settings)
        name = given.pop("recipe", "mlperf")
        if name not in RECIPES:
            raise ConfigError(f"unknown cosmoflow recipe `{name}`", hint=f"use one of: {', '.join(RECIPES)}")
        try:
            recipe = msgspec.convert({**RECIPES[name], **given}, cls)
        except msgspec.ValidationError as error:
            known = ", ".join(f.name for f in msgspec.structs.fields(cls))
            raise ConfigError(f"cosmoflow settings: {error}", hint=f"use the settings {known}") from None
        recipe.check()
        return recipe

    def check(self) -> None:
        """Raise ConfigError for an invalid setting."""
        step = 2**POOLINGS
        if self.voxels < step or self.voxels % step:
            raise ConfigError(f"voxels must be a multiple of {step} (got {self.voxels})")
        if self.filters < 1:
            raise ConfigError(f"filters must be at least 1 (got {self.filters})")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1) (got {self.dropout})")
        if self.base_learning_rate <= 0 or self.base_batch < 1:
            raise ConfigError(
                f"base_learning_rate must be above 0 and base_batch at least 1 (got {self.base_learning_rate} and "
                f"{self.base_batch})"
            )
        if len(self.decay_epochs) != len(self.decay_factors) or list(self.decay_epochs) != sorted(self.decay_epochs):
            raise ConfigError(
                f"decay_epochs {self.decay_epochs} must increase and have one decay factor each (got "
                f"{self.decay_factors})"
            )

    @property
    def is_mlperf_model(self) -> bool:
        """Whether this is the model of MLPerf HPC, not a smaller model for a rehearsal."""
        return self.voxels == MLPERF_VOXELS and self.filters == MLPERF_FILTERS


def learning_rate(recipe: Recipe, global_batch: int, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0: linear warm-up from base to peak, then reduced in steps.

    Source:
        cosmoflow-benchmark utils/optimizers.py, get_lr_schedule: peak = base x batch / base batch; warm-up
        base + (peak - base) x epoch / warmup_epochs; decays compare strictly.
    """
    peak = recipe.base_learning_rate * global_batch / recipe.base_batch
    if epoch < recipe.warmup_epochs:
        return recipe.base_learning_rate + (peak - recipe.base_learning_rate) * epoch / recipe.warmup_epochs
    factor = 1.0
    for after, value in zip(recipe.decay_epochs, recipe.decay_factors, strict=True):
        if epoch > after:
            factor = value
    return peak * factor


def parameter_count(recipe: Recipe) -> int:
    """Compute the number of weights and biases by formula, to check the model that was built."""
    total, channels = 0, 4
    for i in range(POOLINGS):
        out = recipe.filters * 2**i
        total += channels * out * 27 + out
        channels = out
    width = channels * (recipe.voxels // 2**POOLINGS) ** 3
    for out in (128, 64, 4):
        total += width * out + out
        width = out
    return total


RECIPES: dict[str, dict[str, Any]] = {
    "mlperf": {},
    "demo": {
        "voxels": 32,
        "filters": 8,
        "dropout": 0.0,
        "base_learning_rate": 0.003,
        "base_batch": 4,
        "warmup_epochs": 0,
        "decay_epochs": [],
        "decay_factors": [],
    },
}
"""Named recipes. `demo` learns in seconds on two cores, with a global batch of 4 and a few hundred samples. Its results
are marked as not being MLPerf's model. docs/decisions/0601-demo-recipe.md lists the experiments.
"""
