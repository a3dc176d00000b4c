# SPDX-License-Identifier: Apache-2.0
"""Part of the grid that is computed for a shot (the aperture of the shot), with the receivers in this part."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.rtm.survey import Survey

__all__ = ["ShotGrid", "shot_grid"]


@dataclass(frozen=True)
class ShotGrid:
    """Survey of a part of the grid, with one shot of the whole survey.

    Attributes:
        survey: Survey of the part.
        shot: Number of the shot in `survey`.
        box: The part, as slices of the whole grid.
        receivers: Numbers, in the whole survey, of the receivers in the part.
    """

    survey: Survey
    shot: int
    box: tuple[slice, ...]
    receivers: NDArray[np.int64]

    def placed(self, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the values of the part in a whole grid that is otherwise zero."""
        if values.shape == shape:
            return values
        whole = np.zeros(shape, dtype=values.dtype)
        whole[self.box] = values
        return whole


def shot_grid(survey: Survey, shot: int, aperture_km: float | None) -> ShotGrid:
    """Return the part of the grid within a horizontal distance from a shot.

    Args:
        survey: The whole survey.
        shot: Number of the shot.
        aperture_km: Half width of the part along each horizontal axis, km; None means the whole grid.
    Raises:
        ConfigError: The shot does not exist, or its part of the grid is narrower than the stencil or contains no
            receiver.
    """
    survey.check_shot(shot)
    if aperture_km is None:
        whole = tuple(slice(0, side) for side in survey.shape)
        return ShotGrid(survey, shot, whole, np.arange(len(survey.receivers_km)))
    source, spacing = survey.sources_km[shot], survey.spacing_km
    sides = []
    for at, side in zip(source[:-1], survey.shape[:-1], strict=True):
        first = max(0, math.floor((at - aperture_km) / spacing + 1e-9))
        sides.append(slice(first, min(side, math.ceil((at + aperture_km) / spacing - 1e-9) + 1)))
    box = (*sides, slice(0, survey.shape[-1]))
    places = np.asarray(survey.receivers_km)
    origin = np.asarray([side.start * spacing for side in box])
    ends = np.asarray([(side.stop - 1) * spacing for side in box])
    inside = ((places >= origin - 1e-9) & (places <= ends + 1e-9)).all(axis=1)
    if not inside.any():
        raise ConfigError(f"aperture_km: no receiver is within {aperture_km:g} km of shot {shot}", where="aperture_km")
    part = replace(
        survey,
        shape=tuple(side.stop - side.start for side in box),
        sources_km=(tuple(np.asarray(source) - origin),),
        receivers_km=tuple(tuple(np.maximum(each, 0.0)) for each in places[inside] - origin),
    )
    return ShotGrid(part, 0, box, np.flatnonzero(inside))
