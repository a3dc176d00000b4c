# SPDX-License-Identifier: Apache-2.0
"""Draws slices in the usual style of geophysics: time or depth downwards, seismic colours, axes with units."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, Unsupported
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.arrays.array import Array

__all__ = ["picture", "place_of"]

_CLIP = 99.0
"""Percentile of the absolute amplitudes at which the colour scale ends."""

_VERTICAL = ("time", "depth")


def place_of(array: Array, at: Mapping[str, float]) -> tuple[Any, ...]:
    """Return the index of a slice: for each named dimension, the position whose coordinate is nearest to the given
    number.

    Raises:
        ConfigError: A dimension does not exist, or a number is outside the range of its coordinate.
    """
    key: list[Any] = [slice(None)] * array.ndim
    for dim, wanted in at.items():
        if dim not in array.dims:
            raise ConfigError(f"at: `{dim}` is not one of {', '.join(array.dims)}", where="at")
        axis = array.dims.index(dim)
        found = array.coords.get(dim)
        numbers = np.arange(array.shape[axis]) if found is None else np.asarray(found.values, dtype=np.float64)
        if not len(numbers) or not min(numbers) <= wanted <= max(numbers):
            ends = f"{numbers[0]:g} to {numbers[-1]:g}" if len(numbers) else "empty"
            raise ConfigError(f"at: {dim}={wanted:g} is outside the range of the axis ({ends})", where="at")
        key[axis] = int(np.abs(numbers - wanted).argmin())
    return tuple(key)


def picture(array: Array, at: Mapping[str, float]) -> bytes:
    """Draw a slice as PNG. If samples have both signs, the colours are seismic colours around 0, otherwise a sequential
    colour scale.

    Args:
        at: Coordinate of each fixed dimension. Exactly two dimensions must not be fixed.

    Raises:
        ConfigError: The number of dimensions that are not fixed is not two.
        Unsupported: All samples of the slice are missing.
        MissingPackage: matplotlib is not installed.
    """
    require("pictures", "plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    left = [dim for dim in array.dims if dim not in at]
    key = place_of(array, at)
    if len(left) != 2:
        raise ConfigError(
            f"at: a picture requires exactly 2 free dimensions (got {len(left)}: {', '.join(left)})",
            where="at",
            hint="fix the other dimensions, for example --at inline=120",
        )
    values = np.asarray(array[key], dtype=np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise Unsupported("the slice contains no finite samples, so it cannot be drawn")
    across, down = left
    if down not in _VERTICAL and across in _VERTICAL:
        across, down, values = down, across, values.T
    end = float(np.percentile(np.abs(finite), _CLIP)) or 1.0
    is_signed = finite.min() < 0 < finite.max()
    colours: dict[str, Any] = {"cmap": "seismic", "vmin": -end, "vmax": end} if is_signed else {"cmap": "viridis"}
    figure = Figure(figsize=(9, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ends = [_ends(array, across), _ends(array, down)]
    image = axes.imshow(
        values.T, aspect="auto", extent=(*ends[0], ends[1][1], ends[1][0]), interpolation="nearest", **colours
    )
    axes.set_xlabel(_label(array, across))
    axes.set_ylabel(_label(array, down))
    axes.set_title(f"{array.name}, " + ", ".join(f"{dim} {value:g}" for dim, value in at.items()) if at else array.name)
    unit = array.attrs.get("units")
    figure.colorbar(image, ax=axes, label=f"{array.name} ({unit})" if unit else array.name)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _ends(array: Array, dim: str) -> tuple[float, float]:
    """Return the outer edges of the first and the last cell along a dimension."""
    found = array.coords.get(dim)
    numbers = (
        np.arange(array.shape[array.dims.index(dim)]) if found is None else np.asarray(found.values, dtype=np.float64)
    )
    half = (numbers[-1] - numbers[0]) / max(1, len(numbers) - 1) / 2 or 0.5
    return float(numbers[0] - half), float(numbers[-1] + half)


def _label(array: Array, dim: str) -> str:
    found = array.coords.get(dim)
    unit = None if found is None else found.attrs.get("units")
    return f"{dim} ({unit})" if unit and unit != "1" else dim
