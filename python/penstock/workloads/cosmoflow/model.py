# SPDX-License-Identifier: Apache-2.0
"""The MLPerf HPC CosmoFlow network in PyTorch, and the conversion of a batch from int16 counts to its input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import Bug
from penstock.workloads.cosmoflow.recipe import MLPERF_PARAMETERS, POOLINGS, Recipe, parameter_count

__all__ = ["CosmoFlowNet", "as_input"]

_SLOPE = 0.3  # Keras' default for LeakyReLU, as in the reference


def as_input(counts: Tensor, device: torch.device) -> Tensor:
    """counts: int16 [n, D, H, W, 4] -> float32 [n, 4, D, H, W] = log(1 + counts), cast and transposed on the device.

    The batch is transferred as int16, half the size of float32. The result is a channels-last view, not a copy.
    """
    return counts.to(device, non_blocking=True).to(torch.float32).log1p_().permute(0, 4, 1, 2, 3)


class CosmoFlowNet(nn.Module):  # type: ignore[misc]  # torch is Any to mypy: pyproject skips it
    """Five blocks of Conv3D(3, same) - LeakyReLU - MaxPool(2), then dense 128 - 64 - 4, tanh x 1.2.

    Flattening is channels-last, so that dense weights have the same meaning as in the reference. The caller passes the
    dropout masks (`keep`). They are drawn for the global batch, and so do not depend on the number of ranks or on
    earlier steps.

    Source:
        sparticlesteve/cosmoflow-benchmark models/cosmoflow.py. Glorot uniform kernels and zero biases are the defaults
        of Keras.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        channels = 4
        for i in range(POOLINGS):
            self.convolutions.append(nn.Conv3d(channels, recipe.filters * 2**i, 3, padding="same"))
            channels = recipe.filters * 2**i
        width = channels * (recipe.voxels // 2**POOLINGS) ** 3
        self.dense1 = nn.Linear(width, 128)
        self.dense2 = nn.Linear(128, 64)
        self.dense3 = nn.Linear(64, 4)
        for layer in self.modules():
            if isinstance(layer, nn.Conv3d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        self.to(memory_format=torch.channels_last_3d)
        count = sum(p.numel() for p in self.parameters())
        want = MLPERF_PARAMETERS if recipe.is_mlperf_model else parameter_count(recipe)
        if count != want:
            raise Bug(f"the cosmoflow model has {count:,} parameters, but {want:,} were expected")

    def forward(self, x: Tensor, keep: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """x: float32 [n, 4, V, V, V]; keep: masks [n, 128] and [n, 64], divided by the keep probability -> [n, 4]."""
        for convolution in self.convolutions:
            x = functional.max_pool3d(functional.leaky_relu(convolution(x), _SLOPE), 2)
        x = x.permute(0, 2, 3, 4, 1).flatten(1)
        for i, layer in enumerate((self.dense1, self.dense2)):
            x = functional.leaky_relu(layer(x), _SLOPE)
            if keep is not None:
                x = x * keep[i]
        return torch.tanh(self.dense3(x)) * 1.2
