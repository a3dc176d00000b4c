# SPDX-License-Identifier: Apache-2.0
"""Input of image classification: settings, the fields of samples in each format, and labels that count from 0.

Imports no torch, so that emulated accelerators can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.protocols import InputField
from penstock.workloads._shared.recipe import BaseRecipe

if TYPE_CHECKING:
    from penstock.protocols import Batch

__all__ = ["ImageRecipe", "fields", "label_error", "sample_bytes", "zero_based_labels"]

_IMAGE_PARTS = ("image/encoded", "jpg", "jpeg", "png", "image", "image.bytes")
_LABEL_PARTS = ("cls", "label")
_NO_LABEL = -(1 << 40)  # differs from -1, which some datasets use for images without a class


class ImageRecipe(BaseRecipe, frozen=True, forbid_unknown_fields=True):
    """Settings of a training of image classification, in addition to the settings of `BaseRecipe`.

    Attributes:
        image_size: Side of a decoded image in pixels.
        classes: Number of classes. Labels count from 0. In ImageNet's TFRecords, labels count from 1.
        label_smoothing: Share of the target that is spread over all classes. Source: Szegedy et al. 2016.
        augment: Train on random crops (RandomResizedCrop), half of them mirrored. False trains on the centre.
        accelerator_scale: Factor on the published rate of an emulated accelerator: 4 emulates four accelerators that
            one rank feeds, and 0.2 emulates the same four with a tier at scale F = 0.05.
    """

    image_size: int = 224
    classes: int = 1000
    label_smoothing: float = 0.1
    augment: bool = True
    accelerator_scale: float = 1.0

    def check(self) -> None:
        super().check()
        if self.image_size < 1 or self.classes < 2:
            raise ConfigError(
                f"image_size must be at least 1 and classes at least 2 (got {self.image_size} and {self.classes})"
            )
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be in [0, 1) (got {self.label_smoothing})")
        if not 0 < self.accelerator_scale < float("inf"):
            raise ConfigError(f"accelerator_scale must be finite and above 0 (got {self.accelerator_scale:g})")

    def check_emulation(self, accelerator: str | None) -> None:
        """Raise ConfigError if the accelerator is to be scaled, but none is emulated."""
        if accelerator is None and self.accelerator_scale != 1:
            raise ConfigError(
                f"accelerator_scale={self.accelerator_scale:g} requires an emulated accelerator, but this run "
                "trains the model",
                hint="add --accelerator NAME, or omit accelerator_scale",
            )


def fields(recipe: ImageRecipe) -> dict[str, InputField]:
    """Fields of a sample: `image`, `label` (from 0), and `label_from_1`.

    ImageNet's TFRecords have only `label_from_1`. In other formats, both fields have the same value; `label` is used.
    `label_from_1` also names the parts of `label` because a field of class folders cannot have a default.
    """
    side, classes = recipe.image_size, recipe.classes
    return {
        "image": InputField("image", (side, side, 3), parts=_IMAGE_PARTS, augment=recipe.augment),
        "label": InputField("int64", (), parts=_LABEL_PARTS, default=_NO_LABEL, values=classes),
        "label_from_1": InputField(
            "int64", (), parts=("image/class/label", *_LABEL_PARTS), default=_NO_LABEL, values=classes
        ),
    }


def sample_bytes(recipe: ImageRecipe) -> int:
    """Size of a decoded sample in bytes, with its two labels."""
    return 3 * recipe.image_size**2 + 16


def zero_based_labels(batch: Batch) -> Any:
    """Return the labels of a batch, counted from 0 and not checked: int64 [n], of the same array type as the batch."""
    zero, one = batch["label"], batch["label_from_1"]
    return zero + (one - zero - 1) * (zero == _NO_LABEL)


def label_error(batch: Batch, labels: Any, classes: int, where: str) -> ConfigError:
    """Return the error for the first label of a batch that is missing, or not below `classes`. Its attribute `row` is
    the number of the label's row, from 0.

    Args:
        labels: Result of `zero_based_labels`.
        where: Text that names the batch, such as `step 12 on rank 0`.
    """
    row = next(i for i, value in enumerate(labels.tolist()) if not 0 <= value < classes)
    zero, one = int(batch["label"][row]), int(batch["label_from_1"][row])
    first = 1 if zero == _NO_LABEL else 0
    value = one if first else zero
    sample = f"{where}: sample {row + 1:,} of {len(labels):,}"
    if value == _NO_LABEL:
        return ConfigError(
            f"{sample} has no label (looked for image/class/label, {', '.join(_LABEL_PARTS)})",
            hint="store the class as a feature or member with one of these names",
            row=row,
        )
    return ConfigError(
        f"{sample} has the label {value}, but {classes} classes allow {first} to {classes - 1 + first}",
        hint="set the dataset's number of classes, such as --set classes=1000; "
        + ("image/class/label counts from 1" if first else "cls, label and class folders count from 0"),
        row=row,
    )
