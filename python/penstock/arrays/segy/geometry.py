# SPDX-License-Identifier: Apache-2.0
"""Survey geometry: finds which header fields number the dimensions, and assigns each trace a position in the grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.segy.header_fields import TRACE_FIELDS, parse_field
from penstock.arrays.segy.scan import SCANNED
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.arrays.segy.scan import HeaderScan

__all__ = ["Candidate", "Geometry", "KeyField", "candidates", "describe", "grid", "parse_map", "scaled"]

_SPARSEST = 0.02
"""Minimum share of grid positions with a trace. If two header fields are unrelated, their grid is mostly empty."""


@dataclass(frozen=True)
class KeyField:
    """A dimension, and the header field that numbers it."""

    dim: str
    byte: int
    kind: str

    @property
    def column(self) -> str:
        """Name of this field's column in a header scan."""
        standard = [name for name in SCANNED if TRACE_FIELDS[name] == (self.byte, self.kind)]
        return standard[0] if standard else f"{self.byte}:{self.kind}"

    def __str__(self) -> str:
        return f"{self.dim}={self.byte}:{self.kind}"


def _keys(**fields: int) -> tuple[KeyField, ...]:
    return tuple(KeyField(dim, *parse_field(str(byte))) for dim, byte in fields.items())


_KNOWN = [
    # First the fields that the standard defines since revision 1, then fields that older writers use.
    _keys(inline=189, crossline=193),
    _keys(inline=189, crossline=193, offset=37),
    _keys(inline=9, crossline=21),
    _keys(inline=221, crossline=225),
    _keys(inline=17, crossline=21),
    _keys(cdp=21, offset=37),
    _keys(cdp=21, trace_in_cdp=25),
    _keys(shot=9, channel=13),
    _keys(shot=17, channel=13),
    _keys(crossline=193),
    _keys(cdp=21),
    _keys(shot=9),
]


@dataclass(frozen=True)
class Candidate:
    """A possible geometry, and how well it fits the headers."""

    keys: tuple[KeyField, ...]
    shape: tuple[int, ...]
    filled: float
    """Share of grid positions with a trace."""
    duplicates: int
    """Number of traces with the same grid position as an earlier trace."""
    score: float

    @property
    def text(self) -> str:
        """The geometry as a value of `--map`."""
        return ",".join(str(key) for key in self.keys)


@dataclass(frozen=True)
class Geometry:
    """The grid of a file."""

    keys: tuple[KeyField, ...]
    axes: tuple[np.ndarray[Any, Any], ...]
    """Grid numbers along each dimension, ascending."""
    trace_index: np.ndarray[Any, Any]
    """For each grid position, the number of its trace in file order; -1 if the trace is missing. int64."""
    duplicates: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Numbers of the traces with the same grid position as an earlier trace."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(key.dim for key in self.keys) or ("trace",)


def parse_map(text: str) -> tuple[KeyField, ...]:
    """Parse a geometry such as `inline=189:i4,crossline=193:i4`. A field is given as its first byte, as byte and type,
    or by name.

    Raises:
        ConfigError: The text does not have this form.
    """
    keys = []
    for part in text.split(","):
        dim, equals, place = part.strip().partition("=")
        if not equals or not dim.isidentifier():
            raise ConfigError(
                f"map: `{part.strip()}` is not of the form DIMENSION=BYTE:TYPE",
                where="map",
                hint="write it as inline=189:i4,crossline=193:i4",
            )
        try:
            keys.append(KeyField(dim, *parse_field(place.strip())))
        except ValueError as error:
            raise ConfigError(f"map: {dim}: {error}", where="map") from None
    if len({key.dim for key in keys}) < len(keys) or len(keys) > 4:
        raise ConfigError(f"map: must name at most 4 dimensions, each only once (got `{text}`)", where="map")
    return tuple(keys)


def candidates(scan: HeaderScan) -> list[Candidate]:
    """Return the geometries that the headers allow, the best geometry first. The last candidate is always the file
    order.

    The score is f u^2 - k / 100. f is the share of grid positions with a trace. u is the share of traces that are not
    duplicates. k is the index of the geometry in the list of known geometries.
    """
    found = []
    for rank, keys in enumerate(_KNOWN):
        columns = [key.column for key in keys]
        if any(name not in scan.columns or scan.is_constant(name) for name in columns) or scan.traces < 2:
            continue
        sides = [_distinct(scan[name]) for name in columns]
        cells = float(np.prod([float(len(side)) for side in sides]))
        if scan.traces < _SPARSEST * cells:
            continue
        occupied = np.zeros(int(cells), dtype=bool)
        occupied[_cells(scan, keys, sides)] = True
        duplicates = scan.traces - int(np.count_nonzero(occupied))
        filled = (scan.traces - duplicates) / cells
        score = filled * (1 - duplicates / scan.traces) ** 2 - rank / 100
        found.append(Candidate(keys, tuple(len(side) for side in sides), filled, duplicates, round(score, 4)))
    found.sort(key=lambda each: -each.score)
    # If most grid positions have several traces, the geometry lacks a dimension.
    found = [each for each in found if each.duplicates < scan.traces / 2]
    return [*found, Candidate((), (scan.traces,), 1.0, 0, 0.0)]


def _distinct(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the sorted distinct values, as `np.unique` does, but without sorting or hashing if integers have a small
    range.
    """
    if values.size and values.dtype.kind in "iu":
        low, high = int(values.min()), int(values.max())
        if high - low < 4 * values.size:
            occurs = np.zeros(high - low + 1, dtype=bool)
            occurs[values.astype(np.int64) - low] = True
            return (np.flatnonzero(occurs) + low).astype(values.dtype)
    return np.unique(values)


def _cells(scan: HeaderScan, keys: Sequence[KeyField], sides: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    at = np.zeros(scan.traces, dtype=np.int64)
    for key, side in zip(keys, sides, strict=True):
        at = at * len(side) + np.searchsorted(side, scan[key.column])
    return at


def grid(scan: HeaderScan, keys: Sequence[KeyField]) -> Geometry:
    """Assign each trace its grid position. If several traces have the same position, all but the first become
    `duplicates`.

    Raises:
        ConfigError: The grid would be mostly empty.
    """
    if not keys:
        numbers = np.arange(scan.traces, dtype=np.int64)
        return Geometry((), (numbers,), numbers)
    sides = [_distinct(scan[key.column]) for key in keys]
    cells = int(np.prod([float(len(side)) for side in sides]))
    if scan.traces < _SPARSEST * cells:
        shape = " × ".join(f"{len(side):,}" for side in sides)
        raise ConfigError(
            f"map: {scan.traces:,} traces would fill less than {_SPARSEST:.0%} of the resulting grid of {shape}",
            where="map",
            hint="run penstock array info --scan FILE to list the geometries that fit the headers",
        )
    index = np.full(cells, -1, dtype=np.int64)
    # If an index occurs several times, NumPy keeps the last value. Therefore, reverse the order, to keep the first
    # trace.
    index[_cells(scan, keys, sides)[::-1]] = np.arange(scan.traces - 1, -1, -1)
    rest = np.ones(scan.traces, dtype=bool)
    rest[index[index >= 0]] = False
    return Geometry(
        tuple(keys), tuple(sides), index.reshape([len(side) for side in sides]), np.flatnonzero(rest).astype(np.int64)
    )


def scaled(values: np.ndarray[Any, Any], scalar: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Apply the scalar to coordinates or elevations. A negative scalar is a divisor; 0 counts as 1."""
    size = np.where(scalar == 0, 1, np.abs(scalar)).astype(np.float64)
    return np.where(scalar < 0, values / size, values * size)


def describe(candidate: Candidate) -> Mapping[str, Any]:
    """Return a candidate as a JSON object."""
    return {
        "map": candidate.text or None,
        "dims": [key.dim for key in candidate.keys] or ["trace"],
        "shape": list(candidate.shape),
        "filled": round(candidate.filled, 6),
        "duplicates": candidate.duplicates,
        "score": candidate.score,
    }
