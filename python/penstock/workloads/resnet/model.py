# SPDX-License-Identifier: Apache-2.0
"""torchvision's ResNet models, initialised without pretrained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.workloads._shared.image_training import ImageTraining

if TYPE_CHECKING:
    from torch import nn

    from penstock.workloads.resnet import ResNetRecipe

try:
    import torchvision
except (RuntimeError, AttributeError) as error:
    # A torchvision that was built for another torch fails while it registers its operators.
    raise ConfigError(
        f"torchvision does not match the installed torch: {str(error).splitlines()[0]}",
        hint="pip install --upgrade 'penstock[vision]'",
    ) from error

__all__ = ["parameter_count", "training"]

# Weights and biases without the last layer, and the number of inputs of the last layer. With a last layer of 1,000
# classes, the sums are the published 11,689,512, 25,557,032 and 60,192,808.
_BODY = {"resnet18": (11_176_512, 512), "resnet50": (23_508_032, 2048), "resnet152": (58_143_808, 2048)}
_MIN_SIDE = 32  # the five strides of the network leave one pixel


def parameter_count(name: str, classes: int) -> int:
    """Number of weights and biases of a model."""
    body, features = _BODY[name]
    return body + (features + 1) * classes


def _built(name: str, recipe: ResNetRecipe) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=recipe.classes, zero_init_residual=recipe.zero_init_residual
    )
    return model


def training(name: str, recipe: ResNetRecipe) -> ImageTraining:
    """Create the training of a model.

    Raises:
        ConfigError: The images are too small for the network.
    """
    if recipe.image_size < _MIN_SIDE:
        raise ConfigError(f"image_size must be at least {_MIN_SIDE} for {name} (got {recipe.image_size})")
    return ImageTraining(
        name,
        recipe,
        lambda: _built(name, recipe),
        parameter_count(name, recipe.classes),
        is_published=recipe.image_size == 224 and recipe.classes == 1000 and name != "resnet18",
    )
