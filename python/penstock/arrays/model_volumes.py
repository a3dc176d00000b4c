# SPDX-License-Identifier: Apache-2.0
"""Generates model volumes for experiments: seismic amplitudes that resemble recorded data, velocity layers, or a
constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.array import Coordinate
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["KINDS", "model_volume"]

KINDS = ("seismic", "layered", "constant")

_FREQUENCY_HZ = 25.0
_NOISE = 0.2
"""Noise of `seismic`, as a share of its standard deviation. The compression ratio is then 1.1 to 1.2, as for recorded
data.
"""

_SPACING_M = 12.5


def model_volume(
    kind: str, shape: Sequence[int], *, interval_ms: float = 4.0, seed: int = 0
) -> tuple[np.ndarray[Any, Any], tuple[str, ...], Mapping[str, Coordinate], dict[str, Any]]:
    """Generate a float32 volume [inline, crossline, time] or [inline, crossline, depth] in memory.

    Args:
        kind: `seismic` (layers convolved with a 25 Hz Ricker wavelet, gently folded, with 20 % noise), `layered`
            (velocities of 1.5 to 3.5 km/s in five layers of depth) or `constant` (1.5 km/s).
        interval_ms: Sample interval in ms; for a volume in depth, in m.
        seed: Seed of the layers and the noise.
    Returns:
        Samples, dimensions, coordinates and attributes.
    Raises:
        ConfigError: The kind is unknown, or the shape is not three positive numbers.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: `{kind}` is not one of {', '.join(KINDS)}", where="kind")
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigError(f"shape: must be 3 whole numbers above 0 (got {list(shape)})", where="shape")
    inlines, crosslines, samples = shape
    vertical = "time" if kind == "seismic" else "depth"
    if kind == "seismic":
        values = _seismic(inlines, crosslines, samples, interval_ms / 1000, seed)
    else:
        column = (
            np.linspace(1.5, 3.5, 5)[np.arange(samples) * 5 // samples] if kind == "layered" else np.full(samples, 1.5)
        )
        values = np.ascontiguousarray(np.broadcast_to(column.astype(np.float32), shape))
    lines = np.arange(inlines, dtype=np.int32) + 1, np.arange(crosslines, dtype=np.int32) + 1
    x, y = np.meshgrid(lines[1] * _SPACING_M, lines[0] * _SPACING_M)
    coords = {
        "inline": Coordinate(("inline",), lines[0]),
        "crossline": Coordinate(("crossline",), lines[1]),
        vertical: Coordinate(
            (vertical,), np.arange(samples) * interval_ms, {"units": "ms" if kind == "seismic" else "m"}
        ),
        "cdp_x": Coordinate(("inline", "crossline"), x, {"units": "m"}),
        "cdp_y": Coordinate(("inline", "crossline"), y, {"units": "m"}),
    }
    attrs = {} if kind == "seismic" else {"units": "km/s"}
    return values, ("inline", "crossline", vertical), coords, attrs


def _seismic(inlines: int, crosslines: int, samples: int, interval_s: float, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    at = np.arange(-32, 33) * interval_s
    square = (np.pi * _FREQUENCY_HZ * at) ** 2
    wavelet = (1 - 2 * square) * np.exp(-square)
    reflectivity = rng.standard_normal(samples) * (rng.random(samples) < 0.1)
    trace = np.convolve(reflectivity, wavelet)[32 : 32 + samples].astype(np.float32)
    noise = _NOISE * float(trace.std() or 1)
    values = np.empty((inlines, crosslines, samples), dtype=np.float32)
    for row in range(inlines):
        shift = (5 * np.sin(np.arange(crosslines) / 60 + row / 80)).astype(np.int64)
        values[row] = trace[(np.arange(samples)[None] - shift[:, None]) % samples]
        values[row] += noise * rng.standard_normal((crosslines, samples), dtype=np.float32)
    return values
