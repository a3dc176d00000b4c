# SPDX-License-Identifier: Apache-2.0
"""Patches of arrays as samples: checks the arguments of `Dataset.patches`, and adds them to the dataset's format."""

from __future__ import annotations

import json
import operator
from typing import TYPE_CHECKING, Literal, SupportsIndex

from penstock import _native
from penstock.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Edges", "cut"]

Edges = Literal["drop", "pad"]
"""What happens to patches that extend beyond the array."""


def cut(
    source: _native.Source,
    shape: Sequence[SupportsIndex],
    stride: SupportsIndex | Sequence[SupportsIndex] | None,
    edges: Edges,
) -> _native.Source:
    """Return the source whose samples are patches of its arrays.

    Raises:
        ConfigError: An argument is not valid, a patch is larger than the arrays, or the arrays have unequal shapes.
        Unsupported: The dataset does not consist of Zarr or HDF5 arrays.
    """
    declared = json.loads(source.format)
    if declared["name"] not in ("zarr", "hdf5"):
        raise Unsupported(
            f"{source.url}: patches are supported only for Zarr and HDF5 arrays, not for {declared['name']}",
            where=source.url,
            hint="convert SEG-Y first: penstock array convert SOURCE.sgy TARGET.zarr",
        )
    if edges not in ("drop", "pad"):
        raise ConfigError(f"edges: `{edges}` is neither drop nor pad", where="edges")
    sides = _sides(shape, "shape")
    steps = sides if stride is None else _sides(stride, "stride")
    if len(steps) == 1:
        steps *= len(sides)
    declared["patches"] = {"shape": sides, "stride": steps, "pads": edges == "pad"}
    return _native.Source.restore(source.manifest(), source.ignored, json.dumps(declared), None, source.routes)


def _sides(given: SupportsIndex | Sequence[SupportsIndex], what: str) -> list[int]:
    try:
        sides = (
            [operator.index(given)] if isinstance(given, SupportsIndex) else [operator.index(side) for side in given]
        )
    except TypeError:
        sides = []
    if not sides or any(not 1 <= side < 2**63 for side in sides):
        raise ConfigError(f"{what}: must be one integer of at least 1 per axis (got {given!r})", where=what)
    return sides
