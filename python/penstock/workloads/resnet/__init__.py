# SPDX-License-Identifier: Apache-2.0
"""ResNet workloads (He et al. 2015): torchvision's models, trained on ImageNet by the recipe of Goyal et al. 2017, and
emulated accelerators.

Imports torch and torchvision only when a model is built. Weights are never downloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.workloads._shared.catalogue import MODELS
from penstock.workloads._shared.emulated_images import EmulatedImages
from penstock.workloads._shared.image_input import ImageRecipe
from penstock.workloads._shared.lazy_workload import LazyWorkload, requires

if TYPE_CHECKING:
    from penstock.protocols import Workload, WorkloadSpec

__all__ = ["IMAGE_S", "RECIPES", "ResNet", "ResNetRecipe", "resnet18", "resnet50", "resnet152"]


class ResNetRecipe(ImageRecipe, frozen=True, forbid_unknown_fields=True):
    """Settings of a training of ResNet.

    Attributes:
        zero_init_residual: Initialise the last scale of each residual block to 0, so that blocks start as the identity.
    """

    zero_init_residual: bool = True


RECIPES: dict[str, dict[str, Any]] = {
    "imagenet": {
        "base_learning_rate": 0.1,
        "base_batch": 256,
        "warmup_epochs": 5,
        "decay_epochs": [29, 59, 79],
        "decay_factors": [0.1, 0.01, 0.001],
        "weight_decay": 1e-4,
    },
    "demo": {
        "image_size": 64,
        "classes": 10,
        "label_smoothing": 0.0,
        "base_learning_rate": 0.05,
        "base_batch": 32,
    },
}
"""Named recipes. `imagenet` is the recipe of Goyal et al. 2017 (arXiv:1706.02677, section 5.1): rate 0.1 at 256 images,
scaled linearly, 5 epochs of warm-up, x0.1 at epochs 30, 60 and 80 of 90, momentum 0.9, weight decay 1e-4 except on
batch normalisation, last scale of each block 0. Two deviations: the rate rises once per epoch of the warm-up, not with
each step, and labels are smoothed by 0.1 (Szegedy et al. 2016), as later recipes do. `demo` learns small images of few
classes on a CPU.
"""


_MLPERF = MODELS["resnet50"]
IMAGE_S: dict[str, dict[str, float]] = {
    "resnet18": {},
    "resnet50": {
        **{name: step_s / _MLPERF.batch for name, step_s in _MLPERF.step_s.items()},
        "k80@2017": 1 / 51.5,
        "p100@2017": 1 / 219,
        "v100-fp32": 1 / 412,
        "v100-amp": 1 / 1270,
        "a100-amp": 1 / 2375,
    },
    "resnet152": {"k80@2017": 1 / 19.7, "p100@2017": 1 / 91.8},
}
"""Model -> accelerator -> seconds per image of a training step on one accelerator.

Source:
    `a100`, `h100`: mlcommons/storage (see `MODELS`). K80 (one of its two dies) and P100: TensorFlow's published
    tf_cnn_benchmarks, 2017, batch 64, synthetic data. V100 (16 GB) and A100 with a precision: NVIDIA's tables for
    ResNet-50 v1.5.
"""


class ResNet(LazyWorkload):
    """ResNet workload: trains the model, or emulates an accelerator if the spec contains one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def make(self, spec: WorkloadSpec) -> Workload:
        recipe = ResNetRecipe.parse(self._name, spec.settings, RECIPES, "imagenet")
        recipe.check_emulation(spec.accelerator)
        if spec.accelerator is not None:
            return EmulatedImages(self._name, recipe, IMAGE_S[self._name], _MLPERF.au)
        with requires(self._name, "vision", "torch", "torchvision"):
            from penstock.workloads.resnet.model import training

        return training(self._name, recipe)


def resnet18() -> ResNet:
    """Entry point `penstock.workloads: resnet18`."""
    return ResNet("resnet18")


def resnet50() -> ResNet:
    """Entry point `penstock.workloads: resnet50`."""
    return ResNet("resnet50")


def resnet152() -> ResNet:
    """Entry point `penstock.workloads: resnet152`."""
    return ResNet("resnet152")
