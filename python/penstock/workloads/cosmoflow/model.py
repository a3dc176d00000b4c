# SPDX-License-Identifier: Apache-2.0
"""The CosmoFlow networks in PyTorch, and the conversion of int16 counts to their input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import Bug
from penstock.workloads.cosmoflow.recipe import (
    MLPERF_PARAMETERS,
    POOLINGS,
    SC18_LAYERS,
    SC18_WIDTHS,
    Recipe,
    parameter_count,
    sc18_side,
)

__all__ = ["CosmoFlowNet", "SC18Net", "as_input", "build"]

_SLOPE = 0.3  # Keras' default for LeakyReLU, as in the reference
_SC18_SLOPE = 0.01  # hyper_parameters_Cosmo.py, LEAK_PARAMETER
_SC18_BIAS = 0.1  # CosmoNet.py, bias_variable


def as_input(counts: Tensor, device: torch.device) -> Tensor:
    """counts: int16 [n, D, H, W, 4] -> float32 [n, 4, D, H, W] = log(1 + counts), cast and transposed on the device.

    The batch is transferred as int16, half the size of float32. The result is a channels-last view, not a copy.
    """
    return counts.to(device, non_blocking=True).to(torch.float32).log1p_().permute(0, 4, 1, 2, 3)


def _initialise(net: nn.Module, bias: float) -> None:
    """Glorot uniform kernels and constant biases."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv3d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.constant_(layer.bias, bias)


class CosmoFlowNet(nn.Module):  # type: ignore[misc]  # torch is Any to mypy: pyproject skips it
    """Five blocks of Conv3D(3, same) - LeakyReLU - MaxPool(2), then dense 128 - 64 - 4, tanh x 1.2.

    Flattening is channels-last, so that dense weights have the same meaning as in the reference. The caller passes the
    dropout masks (`keep`). The masks are drawn for the global batch, so they do not depend on the number of ranks or on
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
            self.convolutions.append(nn.Conv3d(channels, recipe.first_filters * 2**i, 3, padding="same"))
            channels = recipe.first_filters * 2**i
        width = channels * (recipe.voxels // 2**POOLINGS) ** 3
        self.dense1 = nn.Linear(width, 128)
        self.dense2 = nn.Linear(128, 64)
        self.dense3 = nn.Linear(64, 4)
        self.dropout_widths = (128, 64)
        _initialise(self, 0.0)
        self.to(memory_format=torch.channels_last_3d if recipe.channels_last else torch.contiguous_format)
        count = sum(p.numel() for p in self.parameters())
        want = MLPERF_PARAMETERS if recipe.is_mlperf_model else parameter_count(recipe)
        if count != want:
            raise Bug(f"the cosmoflow model has {count:,} parameters, but {want:,} were expected")

    def forward(self, x: Tensor, *keep: Tensor) -> Tensor:
        """x: float32 [n, 4, V, V, V]; keep: masks [n, 128] and [n, 64], divided by the keep probability -> [n, 4]."""
        for convolution in self.convolutions:
            x = functional.max_pool3d(functional.leaky_relu(convolution(x), _SLOPE), 2)
        x = x.permute(0, 2, 3, 4, 1).flatten(1)
        for i, layer in enumerate((self.dense1, self.dense2)):
            x = functional.leaky_relu(layer(x), _SLOPE)
            if keep:
                x = x * keep[i]
        return torch.tanh(self.dense3(x)) * 1.2


class SC18Net(nn.Module):  # type: ignore[misc]  # torch is Any to mypy: pyproject skips it
    """The network of Mathuriya et al., SC 2018: seven Conv3D without padding, average pooling after the first three,
    then dense 2048 - 256 - 4 with dropout before each. The output is linear.

    Source: `SC18_LAYERS`.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        channels = 4
        for kernel, stride, multiple, _ in SC18_LAYERS:
            self.convolutions.append(nn.Conv3d(channels, recipe.first_filters * multiple, kernel, stride))
            channels = recipe.first_filters * multiple
        width = channels * sc18_side(recipe.voxels) ** 3
        self.dense1 = nn.Linear(width, SC18_WIDTHS[0])
        self.dense2 = nn.Linear(SC18_WIDTHS[0], SC18_WIDTHS[1])
        self.dense3 = nn.Linear(SC18_WIDTHS[1], 4)
        self.dropout_widths = (width, *SC18_WIDTHS)
        _initialise(self, _SC18_BIAS)
        self.to(memory_format=torch.channels_last_3d if recipe.channels_last else torch.contiguous_format)

    def forward(self, x: Tensor, *keep: Tensor) -> Tensor:
        """x: float32 [n, 4, V, V, V]; keep: one mask per dense layer [n, its inputs] -> [n, 4]."""
        for convolution, (_, _, _, is_pooled) in zip(self.convolutions, SC18_LAYERS, strict=True):
            x = functional.leaky_relu(convolution(x), _SC18_SLOPE)
            if is_pooled:
                x = functional.avg_pool3d(x, 2)
        x = x.permute(0, 2, 3, 4, 1).flatten(1)
        for i, layer in enumerate((self.dense1, self.dense2, self.dense3)):
            x = layer(x * keep[i] if keep else x)
            if layer is not self.dense3:
                x = functional.leaky_relu(x, _SC18_SLOPE)
        return x


def build(recipe: Recipe) -> nn.Module:
    """Build the model that the recipe names."""
    return SC18Net(recipe) if recipe.model == "sc18" else CosmoFlowNet(recipe)
