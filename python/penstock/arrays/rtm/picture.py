# SPDX-License-Identifier: Apache-2.0
"""Draws a stacked image in the usual style of geophysics: depth downwards, seismic colours, axes in km."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.rtm.survey import Survey

__all__ = ["picture"]

_CLIP = 99.0
"""Percentile of the absolute amplitudes at which the colour scale ends."""


def picture(image: NDArray[Any], survey: Survey, *, title: str = "") -> bytes | None:
    """Draw a section of an image as PNG; in 3-D, the middle section. Returns None if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    section = image if image.ndim == 2 else image[:, image.shape[1] // 2]
    width, depth = ((side - 1) * survey.spacing_km for side in section.shape)
    # Leave the top out of the colour range, because the sources cause strong amplitudes there.
    below = section[:, section.shape[1] // 10 :]
    clip = float(np.percentile(np.abs(below), _CLIP)) or float(np.abs(section).max()) or 1.0
    figure = Figure(figsize=(8, max(3.0, min(10.0, 8 * depth / width))), layout="constrained", dpi=120)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = axes.imshow(
        section.T, cmap="seismic", vmin=-clip, vmax=clip, extent=(0, width, depth, 0), aspect="equal",
        interpolation="bilinear",
    )  # fmt: skip
    axes.set(xlabel="x (km)", ylabel="Depth (km)", title=title)
    figure.colorbar(drawn, ax=axes, label="Amplitude")
    out = io.BytesIO()
    canvas.figure.savefig(out, format="png")
    return out.getvalue()
