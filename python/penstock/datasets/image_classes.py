# SPDX-License-Identifier: Apache-2.0
"""Classes of generated images. Each class is a colour, a shape and a texture, so that a model can learn it from pixels.

The attributes depend only on the number of the class, not on the seed. Therefore, a model that is trained with one seed
can be evaluated with another.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMBINATIONS", "HUES", "MAX_CLASSES", "SHAPES", "TEXTURES", "ImageClass"]

HUES = ("blue", "purple", "red", "orange", "yellow", "green", "teal", "azure")
"""Colours at multiples of 45 degrees in the plane of Cb and Cr."""
SHAPES = ("disc", "square", "triangle", "ring", "cross", "star", "crescent", "bar")
TEXTURES = tuple(f"{width} stripes at {22.5 * turn:g} degrees" for width in ("broad", "narrow") for turn in range(8))
COMBINATIONS = len(HUES) * len(SHAPES) * len(TEXTURES)
MAX_CLASSES = 1000
"""Maximum number of classes, as in ImageNet. It is below `COMBINATIONS`, because a label that is out of range on
purpose needs a class folder, too.
"""


@dataclass(frozen=True, slots=True)
class ImageClass:
    """A class, by its number from 0 to `COMBINATIONS` - 1. Any 8 consecutive classes differ in colour and shape."""

    number: int

    @property
    def hue(self) -> int:
        """Index of the colour in `HUES`."""
        return self.number % 8

    @property
    def shape(self) -> int:
        """Index of the shape in `SHAPES`."""
        return (self.number + self.number // 8) % 8

    @property
    def texture(self) -> int:
        """Index of the texture in `TEXTURES`."""
        return (5 * (self.number % 8) + 3 * (self.number // 8 % 8) + self.number // 64) % 16

    @property
    def synset(self) -> str:
        """Name of the class folder, in the form of ImageNet's synsets; for example, `n00000001` for class 0."""
        return f"n{self.number + 1:08d}"

    @property
    def text(self) -> str:
        """Description for people, such as `red ring, broad stripes at 45 degrees`."""
        return f"{HUES[self.hue]} {SHAPES[self.shape]}, {TEXTURES[self.texture]}"
