# SPDX-License-Identifier: Apache-2.0
"""Compares two volumes block by block."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.arrays.array import Array

__all__ = ["Difference", "compare"]

_BLOCK_BYTES = 64 << 20


@dataclass
class Difference:
    """Differences between two volumes.

    Attributes:
        problems: Descriptions of differences in shape, type, dimensions and coordinates.
        samples: Number of samples that differ by more than the tolerance, or are missing in only one volume.
        largest: Largest absolute difference.
        first: Index of the first sample that differs.
    """

    problems: list[str]
    samples: int = 0
    largest: float = 0.0
    first: tuple[int, ...] | None = None

    @property
    def is_same(self) -> bool:
        """True if nothing differs."""
        return not self.problems and not self.samples

    def to_json(self) -> str:
        """Return the result as one line of JSON."""
        return json.dumps({"schema_version": 1, **asdict(self), "is_same": self.is_same})


def compare(
    a: Array, b: Array, *, tolerance: float = 0.0, progress: Callable[[int, int], None] | None = None
) -> Difference:
    """Compare two volumes block by block. A block has 64 MiB, to limit memory.

    Args:
        tolerance: Largest absolute difference of two samples that counts as equal.
        progress: Function that is called with the number of compared blocks and the total number.
    """
    found = Difference([])
    if a.shape != b.shape:
        found.problems.append(f"shape: {list(a.shape)} and {list(b.shape)}")
    if a.dtype != b.dtype:
        found.problems.append(f"type: {a.dtype} and {b.dtype}")
    if a.dims != b.dims:
        found.problems.append(f"dimensions: {', '.join(a.dims)} and {', '.join(b.dims)}")
    for name in sorted({*a.coords, *b.coords}):
        if name not in a.coords or name not in b.coords:
            found.problems.append(f"coordinate {name}: only in {'the first' if name in a.coords else 'the second'}")
        elif not np.array_equal(a.coords[name].values, b.coords[name].values, equal_nan=True):
            found.problems.append(f"coordinate {name}: the values differ")
    if a.shape != b.shape:
        return found
    # A block consists of whole chunks of the first volume, so that few objects are read more than once.
    sides = list(a.chunks)
    for axis in reversed(range(a.ndim)):
        while sides[axis] < a.shape[axis] and 2 * int(np.prod(sides)) * a.dtype.itemsize <= _BLOCK_BYTES:
            sides[axis] *= 2
    blocks = list(product(*[range(0, side, part) for side, part in zip(a.shape, sides, strict=True)]))
    for number, starts in enumerate(blocks):
        key = tuple(slice(at, at + side) for at, side in zip(starts, sides, strict=True))
        one, other = a[key], b[key]
        wide = np.result_type(one, other, np.float64) if "f" in (one.dtype.kind, other.dtype.kind) else np.int64
        with np.errstate(invalid="ignore"):
            gap = np.abs(one.astype(wide) - other.astype(wide))
            differs = ~((gap <= tolerance) | (one == other) | ((one != one) & (other != other)))
        if differs.any():
            found.samples += int(differs.sum())
            known = gap[differs & np.isfinite(gap.astype(np.float64))]
            found.largest = max(found.largest, float(known.max()) if known.size else 0.0)
            if found.first is None:
                found.first = tuple(int(at + inner) for at, inner in zip(starts, np.argwhere(differs)[0], strict=True))
        if progress is not None:
            progress(number + 1, len(blocks))
    return found
