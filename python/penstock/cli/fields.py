# SPDX-License-Identifier: Apache-2.0
"""Parser of `--field NAME=KIND:SHAPE`."""

from __future__ import annotations

from typing import Any

import click

from penstock.errors import ConfigError

__all__ = ["field", "field_option"]

field_option = click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=KIND:SHAPE",
    help="Field to read (x=int16:32,32,4, jpg=image:224, text=raw); repeatable.  [default: the fields of the first record]",
)


def field(text: str, *, crop: str = "center") -> tuple[str, Any]:
    """Parse a field and its name: `x=int16:32,32,4`, `jpg=image:224`, `caption=raw`.

    Args:
        crop: Crop of image fields. With random crops, images are also flipped with probability 0.5, as in training.
    Raises:
        ConfigError: The text is not a field.
    """
    import penstock

    name, equals, rest = text.partition("=")
    kind, _, shape = rest.partition(":")
    try:
        sides = tuple(int(side) for side in shape.split(",") if side)
    except ValueError:
        sides = (-1,)
    if not (name and equals and kind) or min(sides, default=0) < 0:
        raise ConfigError(f"--field: `{text}` is not a valid field", hint="write it as --field x=int16:32,32,32,4")
    if kind == "raw" and not shape:
        return name, penstock.raw()
    if kind == "image":
        if len(sides) not in (1, 2):
            raise ConfigError(
                f"--field: `{text}` must have a height and a width", hint="write it as --field jpg=image:224,224"
            )
        return name, penstock.image(sides[0], sides[-1], crop=crop, flip=crop == "random")
    return name, penstock.tensor(kind, sides)
