# SPDX-License-Identifier: Apache-2.0
"""Velocity models for tests and demonstrations: flat layers, smoothing, reflector depths and travel times.

A model is an array [x, z] or [x, y, z] of P-wave velocities in km/s. Depth is the last dimension. The spacing is the
same in every direction.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["MAX_VELOCITY", "check_velocities", "layered", "reflector_depths", "smooth", "two_way_time_s"]

MAX_VELOCITY = 20.0
"""Highest velocity that is accepted, in km/s. The fastest P waves in the Earth reach 13.7 km/s, so a larger value is
probably in m/s.
"""

MIN_CONTRAST = 0.05
"""Smallest relative jump of the velocity between two samples that counts as a reflector."""


def layered(
    shape: Sequence[int],
    spacing_km: float,
    interfaces_km: Sequence[float] | None = None,
    *,
    vmin: float = 1.5,
    vmax: float = 3.5,
) -> NDArray[np.float32]:
    """Create a model of flat layers. The velocity increases with depth in equal steps.

    Args:
        shape: Grid samples, [x, z] or [x, y, z].
        spacing_km: Grid spacing, km.
        interfaces_km: Depths of the interfaces, km, increasing. The sample nearest to an interface is the first sample
            of the lower layer. By default, four interfaces separate five layers of equal thickness.
        vmin: Velocity of the top layer, km/s.
        vmax: Velocity of the bottom layer, km/s.
    Returns:
        float32 [*shape], km/s.
    Raises:
        ConfigError: A shape, spacing, depth or velocity is invalid.
    """
    sizes = _checked_shape(shape)
    depth = sizes[-1]
    spacing = _positive("spacing_km", spacing_km)
    if interfaces_km is None:
        step = depth // 5
        samples = [step * i for i in range(1, 5)] if step else []
    else:
        samples = [round(_positive("interfaces_km", each) / spacing) for each in interfaces_km]
    if any(b <= a for a, b in zip([0, *samples], [*samples, depth], strict=True)):
        raise ConfigError(
            f"interfaces at samples {samples} do not divide a depth of {depth} samples into layers",
            hint=f"give increasing depths from {spacing:g} to {spacing * (depth - 1):g} km, one or more samples apart",
            where="interfaces_km",
        )
    slow, fast = _positive("vmin", vmin), _positive("vmax", vmax)
    layer = np.searchsorted(samples, np.arange(depth), side="right") if samples else np.zeros(depth, dtype=np.int64)
    column = np.linspace(slow, fast, len(samples) + 1)[layer].astype(np.float32)
    model = np.broadcast_to(column, sizes).copy()
    check_velocities(model)
    return model


def smooth(model: NDArray[Any], points: float) -> NDArray[np.float32]:
    """Smooth the squared slowness with a Gaussian, which keeps travel times and removes reflections.

    Args:
        model: Velocities [x, z] or [x, y, z], km/s.
        points: Standard deviation of the Gaussian, in samples; 0 returns a copy. The values at the edges are continued
            outwards.
    Returns:
        Velocities, km/s, as float32 with the shape of the model.
    Raises:
        ConfigError: A velocity or the number of points is invalid.
    """
    check_velocities(model)
    if not math.isfinite(points) or points < 0:
        raise ConfigError(
            f"points: must be finite and at least 0 (got {points:g})", hint="give the width of the Gaussian in samples"
        )
    if points == 0:
        return np.array(model, dtype=np.float32)
    squared_slowness = np.asarray(model, dtype=np.float64) ** -2
    for axis in range(squared_slowness.ndim):
        weights = _gaussian_weights(squared_slowness.shape[axis], points)
        squared_slowness = np.moveaxis(np.tensordot(weights, squared_slowness, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(squared_slowness**-0.5, dtype=np.float32)


def reflector_depths(model: NDArray[Any]) -> list[int]:
    """Return the samples at which a layer begins, in the column in the middle of the model.

    A layer begins where the relative jump of the velocity from one sample to the next has a local maximum of 5 % or
    more. A smoothed model has no such samples.

    Raises:
        ConfigError: A velocity is invalid.
    """
    check_velocities(model)
    column = np.asarray(model)[tuple(n // 2 for n in model.shape[:-1])]
    return [int(i) for i in np.flatnonzero(_jumps(column))]


def two_way_time_s(model: NDArray[Any], spacing_km: float, depth: int | None = None) -> float:
    """Return the vertical travel time to a depth and back, in s, in the column where it is longest.

    Args:
        model: Velocities [x, z] or [x, y, z], km/s.
        spacing_km: Grid spacing, km.
        depth: Depth in samples from the surface. By default, this is the depth of the deepest reflector in each column.
            Without reflectors, the time is 0.
    Raises:
        ConfigError: A velocity, the spacing or the depth is invalid.
    """
    check_velocities(model)
    spacing = _positive("spacing_km", spacing_km)
    samples = model.shape[-1]
    down = np.concatenate(
        [np.zeros((*model.shape[:-1], 1)), np.cumsum(spacing / np.asarray(model, dtype=np.float64), axis=-1)], axis=-1
    )
    if depth is not None:
        if not 0 <= depth <= samples:
            raise ConfigError(
                f"depth: sample {depth} is not within 0 to {samples}, the depth of the model", where="depth"
            )
        return float(2 * down[..., depth].max())
    jumps = _jumps(np.asarray(model))
    deepest = np.where(jumps.any(axis=-1), samples - 1 - np.argmax(jumps[..., ::-1], axis=-1), 0)
    return float(2 * np.take_along_axis(down, deepest[..., np.newaxis], axis=-1).max())


def check_velocities(model: NDArray[Any]) -> None:
    """Check that an array can be a velocity model, in km/s.

    Raises:
        ConfigError: The model is not an array of real numbers with two or three dimensions, or a velocity is not
            finite, not positive or above 20 km/s.
    """
    if not isinstance(model, np.ndarray) or model.ndim not in (2, 3) or model.dtype.kind not in "fiu" or not model.size:
        described = f"{model.dtype} {list(model.shape)}" if isinstance(model, np.ndarray) else type(model).__name__
        raise ConfigError(
            f"velocity model: must be an array of real numbers [x, z] or [x, y, z] (got {described})", where="model"
        )
    bad = ~np.isfinite(model)
    if bad.any():
        raise ConfigError(
            f"velocity model: {int(bad.sum()):,} of {model.size:,} velocities are not finite, first at {_first(bad)}",
            hint="fill the gaps of the model before you use it",
            where="model",
        )
    low, high = float(model.min()), float(model.max())
    if low <= 0:
        bad = model <= 0
        raise ConfigError(
            f"velocity model: {int(bad.sum()):,} of {model.size:,} velocities are not positive, first at {_first(bad)}"
            f" (lowest {low:g} km/s)",
            hint="give velocities above 0 in km/s; water has 1.5",
            where="model",
        )
    if high > MAX_VELOCITY:
        raise ConfigError(
            f"velocity model: {high:g} km/s is above {MAX_VELOCITY:g} km/s",
            hint="divide the model by 1000 if its velocities are in m/s",
            where="model",
        )


def _jumps(velocities: NDArray[Any]) -> NDArray[np.bool_]:
    """velocities: [..., z] -> bool [..., z], true at the first sample below each reflector."""
    values = np.asarray(velocities, dtype=np.float64)
    jump = np.zeros(values.shape)
    jump[..., 1:] = np.abs(np.diff(values, axis=-1)) / values[..., :-1]
    above = np.zeros(values.shape)
    above[..., 1:] = jump[..., :-1]
    below = np.zeros(values.shape)
    below[..., :-1] = jump[..., 1:]
    found: NDArray[np.bool_] = (jump >= MIN_CONTRAST) & (jump >= above) & (jump > below)
    return found


def _gaussian_weights(samples: int, points: float) -> NDArray[np.float64]:
    """Return the matrix [samples, samples] that smooths a vector. Weights outside of the vector are added to the
    weights of its edge samples.
    """
    radius = min(math.ceil(4 * points), 10 * samples)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / points) ** 2)
    kernel /= kernel.sum()
    rows = np.arange(samples)[:, np.newaxis]
    weights = np.zeros((samples, samples))
    np.add.at(weights, (rows, np.clip(rows + offsets, 0, samples - 1)), kernel)
    return weights


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(n) for n in shape)
    if len(sizes) not in (2, 3) or min(sizes) < 1:
        raise ConfigError(f"shape: must be [x, z] or [x, y, z], with each side at least 1 (got {list(sizes)})")
    return sizes


def _positive(name: str, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name}: must be finite and above 0 (got {value:g})", where=name)
    return float(value)


def _first(bad: NDArray[np.bool_]) -> list[int]:
    return [int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape)]
