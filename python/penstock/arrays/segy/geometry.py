# SPDX-License-Identifier: Apache-2.0
"""Place of each trace in the survey's grid, from its header: candidates with their evidence, and the grid."""

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
"""Least share of the grid that has traces: a grid of two unrelated numbers is mostly empty."""


@dataclass(frozen=True)
class KeyField:
    """A dimension, and the header field that numbers it."""

    dim: str
    byte: int
    kind: str

    @property
    def column(self) -> str:
        """Its column in a scan."""
        standard = [name for name in SCANNED if TRACE_FIELDS[name] == (self.byte, self.kind)]
        return standard[0] if standard else f"{self.byte}:{self.kind}"

    def __str__(self) -> str:
        return f"{self.dim}={self.byte}:{self.kind}"


def _keys(**fields: int) -> tuple[KeyField, ...]:
    return tuple(KeyField(dim, *parse_field(str(byte))) for dim, byte in fields.items())


_KNOWN = [
    # The standard's places since revision 1, then those of older writers.
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
    """A geometry, and what the headers say of it."""

    keys: tuple[KeyField, ...]
    shape: tuple[int, ...]
    filled: float
    """Share of the grid that has a trace."""
    duplicates: int
    """Traces at a place that another trace has."""
    score: float

    @property
    def text(self) -> str:
        """As `--map` takes it."""
        return ",".join(str(key) for key in self.keys)


@dataclass(frozen=True)
class Geometry:
    """The grid of a file."""

    keys: tuple[KeyField, ...]
    axes: tuple[np.ndarray[Any, Any], ...]
    """Numbers of each dimension, ascending."""
    trace_index: np.ndarray[Any, Any]
    """Trace in file order at each place; -1 where a trace is missing. int64."""
    duplicates: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Traces at a place that an earlier trace has."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(key.dim for key in self.keys) or ("trace",)


def parse_map(text: str) -> tuple[KeyField, ...]:
    """Parse `inline=189:i4,crossline=193:i4`; a field may be its byte, byte and type, or its name.

    Raises:
        ConfigError: The text is not of that form.
    """
    keys = []
    for part in text.split(","):
        dim, equals, place = part.strip().partition("=")
        if not equals or not dim.isidentifier():
            raise ConfigError(
                f"map: `{part.strip()}` is not DIMENSION=BYTE:TYPE",
                where="map",
                hint="for example inline=189:i4,crossline=193:i4",
            )
        try:
            keys.append(KeyField(dim, *parse_field(place.strip())))
        except ValueError as error:
            raise ConfigError(f"map: {dim}: {error}", where="map") from None
    if len({key.dim for key in keys}) < len(keys) or len(keys) > 4:
        raise ConfigError(f"map: `{text}` names a dimension twice, or more than 4", where="map")
    return tuple(keys)


def candidates(scan: HeaderScan) -> list[Candidate]:
    """Geometries that the headers allow, the best first. The last is always the file's own order.

    The score is the share of the grid that has traces times the share of traces that have a place of their own, less
    1/100 for each place down the list of known geometries.
    """
    found = []
    for rank, keys in enumerate(_KNOWN):
        columns = [key.column for key in keys]
        if any(name not in scan.columns or scan.is_constant(name) for name in columns) or scan.traces < 2:
            continue
        sides = [np.unique(scan[name]) for name in columns]
        cells = float(np.prod([float(len(side)) for side in sides]))
        if scan.traces < _SPARSEST * cells:
            continue
        duplicates = scan.traces - len(np.unique(_cells(scan, keys, sides)))
        filled = (scan.traces - duplicates) / cells
        score = filled * (1 - duplicates / scan.traces) ** 2 - rank / 100
        found.append(Candidate(keys, tuple(len(side) for side in sides), filled, duplicates, round(score, 4)))
    found.sort(key=lambda each: -each.score)
    # A grid in which most places have several traces lacks a dimension.
    found = [each for each in found if each.duplicates < scan.traces / 2]
    return [*found, Candidate((), (scan.traces,), 1.0, 0, 0.0)]


def _cells(scan: HeaderScan, keys: Sequence[KeyField], sides: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    at = np.zeros(scan.traces, dtype=np.int64)
    for key, side in zip(keys, sides, strict=True):
        at = at * len(side) + np.searchsorted(side, scan[key.column])
    return at


def grid(scan: HeaderScan, keys: Sequence[KeyField]) -> Geometry:
    """Place each trace. Of several traces at one place the first in the file has it; the others are `duplicates`.

    Raises:
        ConfigError: The grid would be mostly empty.
    """
    if not keys:
        numbers = np.arange(scan.traces, dtype=np.int64)
        return Geometry((), (numbers,), numbers)
    sides = [np.unique(scan[key.column]) for key in keys]
    cells = int(np.prod([float(len(side)) for side in sides]))
    if scan.traces < _SPARSEST * cells:
        shape = " × ".join(f"{len(side):,}" for side in sides)
        raise ConfigError(
            f"map: a grid of {shape} for {scan.traces:,} traces is more than {1 - _SPARSEST:.0%} empty",
            where="map",
            hint="penstock array info --scan FILE ranks the geometries that the headers allow",
        )
    places, first = np.unique(_cells(scan, keys, sides), return_index=True)
    index = np.full(cells, -1, dtype=np.int64)
    index[places] = first
    rest = np.ones(scan.traces, dtype=bool)
    rest[first] = False
    return Geometry(
        tuple(keys), tuple(sides), index.reshape([len(side) for side in sides]), np.flatnonzero(rest).astype(np.int64)
    )


def scaled(values: np.ndarray[Any, Any], scalar: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Coordinates or elevations with their scalar applied: a negative one divides, 0 is 1."""
    size = np.where(scalar == 0, 1, np.abs(scalar)).astype(np.float64)
    return np.where(scalar < 0, values / size, values * size)


def describe(candidate: Candidate) -> Mapping[str, Any]:
    """A candidate as JSON."""
    return {
        "map": candidate.text or None,
        "dims": [key.dim for key in candidate.keys] or ["trace"],
        "shape": list(candidate.shape),
        "filled": round(candidate.filled, 6),
        "duplicates": candidate.duplicates,
        "score": candidate.score,
    }
