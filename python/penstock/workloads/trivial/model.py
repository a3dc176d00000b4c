# SPDX-License-Identifier: Apache-2.0
"""The trivial model of tf_cnn_benchmarks in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from penstock.workloads._shared.image_training import MEAN, STD, ImageTraining

if TYPE_CHECKING:
    from penstock.workloads.trivial import TrivialRecipe

__all__ = ["TrivialNet", "parameter_count", "training"]

_WIDTH = 4096


class TrivialNet(nn.Module):  # type: ignore[misc]  # torch is Any to mypy: pyproject skips it
    """Dense 1 - ReLU - dense 4096 - ReLU - classes. Weights have the deviation sqrt(2 / inputs), as in the source.

    The first layer contains the normalisation of its input: one row of weights is multiplied, not every image. Two
    passes over each image would add a third to the step, which should be short relative to the data path.
    """

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.dense1 = nn.Linear(3 * side * side, 1)
        self.dense2 = nn.Linear(1, _WIDTH)
        self.classes = nn.Linear(_WIDTH, classes)
        for layer, gain in ((self.dense1, 2.0), (self.dense2, 2.0), (self.classes, 1.0)):
            nn.init.trunc_normal_(layer.weight, std=(gain / layer.in_features) ** 0.5)
            nn.init.zeros_(layer.bias)
        scale = 1 / (255 * torch.tensor(STD))
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("offset", 255 * torch.tensor(MEAN) * scale, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [n, 3, side, side] from 0 to 255, channels last -> [n, classes]."""
        flat = x.permute(0, 2, 3, 1).flatten(1)  # no copy of a channels-last tensor
        weight = self.dense1.weight.view(-1, 3)
        bias = self.dense1.bias - (weight * self.offset).sum()
        first = nn.functional.linear(flat, (weight * self.scale).view(1, -1), bias)
        return self.classes(torch.relu(self.dense2(torch.relu(first))))


def parameter_count(side: int, classes: int) -> int:
    """Number of weights and biases of the model."""
    return 3 * side * side + 1 + 2 * _WIDTH + (_WIDTH + 1) * classes


def training(recipe: TrivialRecipe) -> ImageTraining:
    """Create the training of the model."""
    side, classes = recipe.image_size, recipe.classes
    return ImageTraining(
        "trivial",
        recipe,
        lambda: TrivialNet(side, classes),
        parameter_count(side, classes),
        is_published=side == 227 and classes == 1000,
        normalises=False,
    )
