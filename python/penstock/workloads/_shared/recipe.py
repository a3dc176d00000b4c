# SPDX-License-Identifier: Apache-2.0
"""Settings that all trained workloads share, and their learning-rate schedule. Pure functions without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BaseRecipe", "learning_rate"]


class BaseRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the optimiser, and of the way in which a step is executed.

    Attributes:
        base_learning_rate: Learning rate at `base_batch` samples per step; the peak grows linearly with the global
            batch.
        base_batch: Batch size to which `base_learning_rate` applies.
        warmup_epochs: Number of epochs in which the rate rises from base to peak.
        decay_epochs: Epochs after which the rate is reduced: the rate is peak x factor while epoch > entry. Epochs
            count from 0; the comparison is strict.
        decay_factors: One factor for each entry of `decay_epochs`.
        momentum: Momentum of SGD.
        weight_decay: L2 regularisation of the weights that the workload names.
        amp: Compute in bfloat16 where autocast allows it; weights stay in float32. No gradient scaling is needed.
        channels_last: Store activations with the channels as the fastest dimension.
        compile: Compile the model with `torch.compile`. With this setting, the first step takes up to minutes.
        cuda_graphs: Replay the forward and the backward pass as CUDA graphs. Needs a GPU.
        deterministic: Use only deterministic kernels where they exist. False lets cuDNN choose the fastest kernels.
    """

    base_learning_rate: float = 0.1
    base_batch: int = 256
    warmup_epochs: int = 0
    decay_epochs: tuple[int, ...] = ()
    decay_factors: tuple[float, ...] = ()
    momentum: float = 0.9
    weight_decay: float = 0.0
    amp: bool = False
    channels_last: bool = True
    compile: bool = False
    cuda_graphs: bool = False
    deterministic: bool = True

    @classmethod
    def parse(
        cls, workload: str, settings: Mapping[str, Any], recipes: Mapping[str, Mapping[str, Any]], default: str
    ) -> Self:
        """Build a recipe from settings. The setting `recipe` selects a base in `recipes`; other settings override it.

        Raises:
            ConfigError: The recipe or a setting is unknown, or a value is invalid.
        """
        given = dict(settings)
        name = given.pop("recipe", default)
        if name not in recipes:
            raise ConfigError(f"unknown {workload} recipe `{name}`", hint=f"use one of: {', '.join(recipes)}")
        try:
            recipe = msgspec.convert({**recipes[name], **given}, cls)
        except msgspec.ValidationError as error:
            known = ", ".join(f.name for f in msgspec.structs.fields(cls))
            raise ConfigError(f"{workload} settings: {error}", hint=f"use the settings {known}") from None
        recipe.check()
        return recipe

    def hyperparameters(self, global_batch: int) -> dict[str, Any]:
        """Return the settings of the optimiser under the names that MLPerf's reference implementations log.

        Source:
            mlcommons/hpc, cosmoflow/utils/optimizers.py: the base rate is the peak, and the warm-up factor is the batch
            divided by the base batch.
        """
        scale = global_batch / self.base_batch
        return {
            "opt_name": "sgd",
            "opt_base_learning_rate": self.base_learning_rate * scale,
            "opt_learning_rate_warmup_epochs": self.warmup_epochs,
            "opt_learning_rate_warmup_factor": scale,
            "opt_learning_rate_decay_boundary_epochs": list(self.decay_epochs),
            "opt_learning_rate_decay_factor": list(self.decay_factors),
            "opt_momentum": self.momentum,
            "opt_weight_decay": self.weight_decay,
        }

    def check(self) -> None:
        """Raise ConfigError for an invalid setting."""
        if self.base_learning_rate <= 0 or self.base_batch < 1:
            raise ConfigError(
                f"base_learning_rate must be above 0 and base_batch at least 1 (got {self.base_learning_rate} and "
                f"{self.base_batch})"
            )
        if len(self.decay_epochs) != len(self.decay_factors) or list(self.decay_epochs) != sorted(self.decay_epochs):
            raise ConfigError(
                "decay_epochs must be in ascending order, and decay_factors must have the same length (got "
                f"{self.decay_epochs} and {self.decay_factors})"
            )
        if not 0 <= self.momentum < 1 or self.weight_decay < 0 or self.warmup_epochs < 0:
            raise ConfigError(
                f"momentum must be in [0, 1), weight_decay and warmup_epochs at least 0 (got {self.momentum}, "
                f"{self.weight_decay} and {self.warmup_epochs})"
            )
        if self.compile and self.cuda_graphs:
            raise ConfigError("compile and cuda_graphs cannot be combined", hint="set only one of them to true")


def learning_rate(recipe: BaseRecipe, global_batch: int, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0: linear warm-up from base to peak, then reduced in steps.

    Source:
        cosmoflow-benchmark utils/optimizers.py, get_lr_schedule: peak = base x batch / base batch; warm-up
        base + (peak - base) x epoch / warmup_epochs; decays compare strictly. Goyal et al. 2017 use the same rules for
        ResNet-50, but increase the rate at each step of the warm-up.
    """
    peak = recipe.base_learning_rate * global_batch / recipe.base_batch
    if epoch < recipe.warmup_epochs:
        return recipe.base_learning_rate + (peak - recipe.base_learning_rate) * epoch / recipe.warmup_epochs
    factor = 1.0
    for after, value in zip(recipe.decay_epochs, recipe.decay_factors, strict=True):
        if epoch > after:
            factor = value
    return peak * factor
