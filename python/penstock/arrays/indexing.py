# SPDX-License-Identifier: Apache-2.0
"""Converts indexes to boxes to read. An index can contain integers, slices with steps, `...`, and one list or mask, as
in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Box", "Selection", "select"]

Box = tuple[tuple[int, int], ...]
"""A box: start and end along each axis."""


@dataclass(frozen=True)
class _Axis:
    runs: list[tuple[int, int]]
    """Ranges to read along this axis, ascending and not adjacent."""
    picks: Any
    """Index (an integer, a slice or positions) that selects the wanted elements from the concatenated ranges."""


@dataclass(frozen=True)
class Selection:
    """Boxes that an index needs, in C order. Also assembles the result from the contents of the boxes."""

    boxes: list[Box]
    _axes: list[_Axis]
    _moves: int | None = None
    """Axis that NumPy moves to the front of the result. This is the axis of the list if a slice is between the list and
    an integer.
    """

    def assemble(self, parts: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Assemble the result of the index from the contents of the boxes."""
        if len(parts) == 1:
            whole = parts[0]
        else:
            sides = [sum(end - start for start, end in axis.runs) for axis in self._axes]
            whole = np.empty(sides, dtype=parts[0].dtype)
            starts = [np.cumsum([0, *[end - start for start, end in axis.runs]]) for axis in self._axes]
            for at, part in zip(product(*[range(len(axis.runs)) for axis in self._axes]), parts, strict=True):
                place = tuple(
                    slice(int(begins[number]), int(begins[number + 1]))
                    for begins, number in zip(starts, at, strict=True)
                )
                whole[place] = part
        # Apply slices and lists first, one axis at a time, and then integers, because integers remove their axes.
        for number, axis in enumerate(self._axes):
            if not isinstance(axis.picks, int):
                whole = whole[(*[slice(None)] * number, axis.picks)]
        whole = whole[tuple(axis.picks if isinstance(axis.picks, int) else slice(None) for axis in self._axes)]
        return whole if self._moves is None else np.moveaxis(whole, self._moves, 0)


def select(key: Any, shape: Sequence[int], chunk_shape: Sequence[int]) -> Selection:
    """Convert an index of an array of `shape` to boxes. Gaps that are shorter than a chunk are read, too.

    Raises:
        IndexError: An index is out of bounds, or of a kind that is not supported.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    if sum(each is Ellipsis for each in keys) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if Ellipsis not in [each for each in keys if not isinstance(each, np.ndarray)]:
        keys.append(Ellipsis)
    at = next(number for number, each in enumerate(keys) if each is Ellipsis)
    missing = len(shape) - (len(keys) - 1)
    if missing < 0:
        raise IndexError(f"too many indices: {len(keys) - 1} for {len(shape)} dimensions")
    keys[at : at + 1] = [slice(None)] * missing
    if sum(not isinstance(each, slice) and np.ndim(each) > 0 for each in keys) > 1:
        raise IndexError("only one axis may have a list or a mask; index the result again for the others")
    axes = [
        _axis(each, side, chunk, number)
        for number, (each, side, chunk) in enumerate(zip(keys, shape, chunk_shape, strict=True))
    ]
    lists = [number for number, each in enumerate(keys) if not isinstance(each, slice) and np.ndim(each) > 0]
    moves = None
    if lists:
        whole = [number for number, each in enumerate(keys) if isinstance(each, slice)]
        integers = [number for number in range(len(keys)) if number not in (*whole, *lists)]
        first, last = min([*integers, *lists]), max([*integers, *lists])
        if any(first < number < last for number in whole) or (integers and first < at < last and missing == 0):
            moves = sum(number < lists[0] for number in whole) or None
    return Selection([tuple(box) for box in product(*[axis.runs for axis in axes])], axes, moves)


def _axis(key: Any, side: int, chunk: int, number: int) -> _Axis:
    if isinstance(key, slice):
        indices = range(*key.indices(side))
        if not indices:
            return _Axis([(0, 0)], slice(0, 0))
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        if abs(indices.step) <= chunk:
            step = indices.step
            return _Axis([(low, high + 1)], slice(None, None, step))
        return _positions(np.asarray(indices), chunk)
    value = np.asarray(key)
    if value.ndim == 0 and value.dtype.kind in "iu":
        index = int(value)
        if not -side <= index < side:
            raise IndexError(f"index {index} is out of bounds for axis {number} with size {side}")
        return _Axis([(index % side, index % side + 1)], 0)
    if value.ndim == 1 and value.dtype.kind == "b":
        if len(value) != side:
            raise IndexError(f"the mask has {len(value)} values, but axis {number} has size {side}")
        return _positions(np.flatnonzero(value), chunk)
    if value.ndim == 1 and (value.dtype.kind in "iu" or value.size == 0):
        value = value.astype(np.int64)
        if value.size and (value.min() < -side or value.max() >= side):
            wrong = value[(value < -side) | (value >= side)][0]
            raise IndexError(f"index {wrong} is out of bounds for axis {number} with size {side}")
        return _positions(value % side if side else value, chunk)
    raise IndexError(f"axis {number}: only integers, slices, `...` and one-dimensional lists or masks are supported")


def _positions(indices: np.ndarray[Any, Any], chunk: int) -> _Axis:
    if not indices.size:
        return _Axis([(0, 0)], np.empty(0, dtype=np.int64))
    ordered = np.unique(indices)
    cuts = np.flatnonzero(np.diff(ordered) > chunk) + 1
    starts, ends = ordered[np.r_[0, cuts]], ordered[np.r_[cuts - 1, -1]] + 1
    before = np.concatenate([[0], np.cumsum(ends - starts)[:-1]])
    run = np.searchsorted(starts, indices, side="right") - 1
    return _Axis([(int(a), int(b)) for a, b in zip(starts, ends, strict=True)], indices - starts[run] + before[run])
