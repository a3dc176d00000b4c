# SPDX-License-Identifier: Apache-2.0
"""Settings of CosmoFlow: its models and named recipes. Pure functions without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.workloads._shared.recipe import BaseRecipe, learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["POOLINGS", "RECIPES", "SC18_LAYERS", "Recipe", "learning_rate", "parameter_count", "sc18_side"]

POOLINGS = 5
MLPERF_FILTERS = 32
MLPERF_VOXELS = 128
MLPERF_PARAMETERS = 8_907_556

MODELS = ("mlperf", "sc18")
SC18_FILTERS = 16
SC18_WIDTHS = (2048, 256)
SC18_LAYERS = (
    (3, 1, 1, True),
    (4, 1, 2, True),
    (4, 1, 4, True),
    (3, 2, 8, False),
    (3, 1, 16, False),
    (2, 1, 16, False),
    (2, 1, 16, False),
)
"""Convolutions of the model of 2018: kernel, stride, multiple of the first layer's filters, and whether an average
pooling of 2 follows. No padding.

Source:
    NERSC/CosmoFlow. Kernels, filters and dense layers: CosmoNet.py, whose logged 7,041,186 parameters (1 channel, 2
    targets) are those of this network. Strides: CosmoNet_128128.py. The strides of CosmoNet.py reduce 128 voxels per
    side to 8, too many for the first dense layer of 2,048 inputs. The strides in this table reduce them to 2.
"""


class Recipe(BaseRecipe, frozen=True, forbid_unknown_fields=True):
    """Settings of a training, in addition to `BaseRecipe`. The defaults are the values of MLPerf HPC's reference.

    Attributes:
        model: `mlperf` (5 convolutions), or `sc18` (the 7 convolutions of Mathuriya et al. 2018).
        voxels: Side of a volume; a multiple of 32 for `mlperf` (five poolings).
        filters: Number of filters of the first convolution; the following convolutions have multiples of this number.
            None means the model's own number: 32 in MLPerf, 16 in 2018.
        dropout: Dropout rate after each hidden dense layer; in `sc18` before each dense layer.
        weight_decay: L2 regularisation; applies only to the kernels of the two hidden dense layers.

    Source:
        sparticlesteve/cosmoflow-benchmark configs/cosmo.yaml: SGD 0.9 (fixed by MLPerf's rules), base rate 0.001 at 64,
        4 warm-up epochs, x0.25 after 32, x0.125 after 64, dropout 0.5.
    """

    model: str = "mlperf"
    voxels: int = MLPERF_VOXELS
    filters: int | None = None
    dropout: float = 0.5
    base_learning_rate: float = 0.001
    base_batch: int = 64
    warmup_epochs: int = 4
    decay_epochs: tuple[int, ...] = (32, 64)
    decay_factors: tuple[float, ...] = (0.25, 0.125)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Recipe:
        """Build a recipe from settings. The setting `recipe` selects a base in RECIPES; other settings override it."""
        return cls.parse("cosmoflow", settings, RECIPES, "mlperf")

    def check(self) -> None:
        """Raise ConfigError for an invalid setting."""
        super().check()
        if self.model not in MODELS:
            raise ConfigError(f"unknown cosmoflow model `{self.model}`", hint=f"use one of: {', '.join(MODELS)}")
        step = 2**POOLINGS
        if self.model == "mlperf" and (self.voxels < step or self.voxels % step):
            raise ConfigError(f"voxels must be a multiple of {step} (got {self.voxels})")
        if self.model == "sc18" and sc18_side(self.voxels) < 1:
            raise ConfigError(f"voxels must be at least 112 for the model sc18 (got {self.voxels})")
        if self.filters is not None and self.filters < 1:
            raise ConfigError(f"filters must be at least 1 (got {self.filters})")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1) (got {self.dropout})")

    def hyperparameters(self, global_batch: int) -> dict[str, Any]:
        return {**super().hyperparameters(global_batch), "dropout": self.dropout}

    @property
    def first_filters(self) -> int:
        """Number of filters of the first convolution."""
        return self.filters or (MLPERF_FILTERS if self.model == "mlperf" else SC18_FILTERS)

    @property
    def is_mlperf_model(self) -> bool:
        """Whether this is the model of MLPerf HPC, and neither another model nor a smaller model for a rehearsal."""
        return self.model == "mlperf" and self.voxels == MLPERF_VOXELS and self.first_filters == MLPERF_FILTERS


def sc18_side(voxels: int) -> int:
    """Side of the last convolution's output in the model of 2018; below 1 if the volume is too small."""
    side = voxels
    for kernel, stride, _, is_pooled in SC18_LAYERS:
        side = (side - kernel) // stride + 1
        if is_pooled:
            side //= 2
    return side


def parameter_count(recipe: Recipe) -> int:
    """Compute the number of weights and biases by formula, to check the model that was built."""
    total, channels, filters = 0, 4, recipe.first_filters
    if recipe.model == "sc18":
        for kernel, _, multiple, _ in SC18_LAYERS:
            total += (channels * kernel**3 + 1) * filters * multiple
            channels = filters * multiple
        width, widths = channels * sc18_side(recipe.voxels) ** 3, (*SC18_WIDTHS, 4)
    else:
        for i in range(POOLINGS):
            total += (channels * 27 + 1) * filters * 2**i
            channels = filters * 2**i
        width, widths = channels * (recipe.voxels // 2**POOLINGS) ** 3, (128, 64, 4)
    for out in widths:
        total += width * out + out
        width = out
    return total


RECIPES: dict[str, dict[str, Any]] = {
    "mlperf": {},
    "nvidia": {
        "dropout": 0.0,
        "weight_decay": 0.02,
        "base_learning_rate": 0.006,
        "base_batch": 128,
        "warmup_epochs": 6,
        "decay_epochs": [19, 21, 22, 23],
        "decay_factors": [0.5, 0.25, 0.125, 0.0625],
        "amp": True,
        "deterministic": False,
    },
    "nvidia-small": {
        "base_batch": 8,
        "warmup_epochs": 2,
        "decay_epochs": [3, 5],
        "decay_factors": [0.25, 0.0625],
        "amp": True,
        "deterministic": False,
    },
    "sc18": {"model": "sc18"},
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
"""Named recipes.

`nvidia` and `nvidia-small` are NVIDIA's submissions to MLPerf HPC v3.0 with 512 GPUs and with 32, one sample each
(mlcommons/hpc_results_v3.0, NVIDIA/benchmarks/cosmoflow/implementations/pytorch, configs/submission_dgxa100_64x8x1.yaml
and _4x8x1.yaml): rate 0.006 rising to 0.024 at a global batch of 512, and 0.001 to 0.004 at 32. In NVIDIA's code, rates
change at `epoch >= decay_steps` (optimizer.py). In this recipe, they change after an epoch, so the entries are lower by
1. Deviations: bfloat16 instead of float16 with a gradient scaler, and no CUDA graph unless `cuda_graphs` is set.

`sc18` is the network of 2018 with the reference's optimiser, loss and targets; the original used Adam, the absolute
error and 2 or 3 targets of its own data.

`demo` learns in seconds on two cores, with a global batch of 4 and a few hundred samples. Results of `demo` are marked,
because the model is not MLPerf's model. docs/decisions/0601-demo-recipe.md lists the experiments.
"""
