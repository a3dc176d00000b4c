# SPDX-License-Identifier: Apache-2.0
"""Writes a slice of a volume as a SEG-Y file. Copies the trace headers of the volume, or creates new trace headers if
the volume has none.

Traces keep their file order. If several traces have the same grid position, the slice contains only the first of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.array import Coordinate
from penstock.arrays.convert.chunking import whole_traces
from penstock.arrays.convert.segy_destination import SegyDestination
from penstock.arrays.convert.source import SegyFacts
from penstock.arrays.create import create_segy
from penstock.errors import Mismatch, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.arrays.array import Array
    from penstock.arrays.convert.source import Source
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["write_segy_slice"]


def write_segy_slice(location: Location, volume: Source, array: Array, key: Sequence[Any]) -> int:
    """Write a slice of a volume as SEG-Y. Returns the number of traces.

    Args:
        volume: The volume as the source of a conversion, from which trace headers are read.
        array: The same volume as an array. If `volume` has no trace headers, samples and coordinates are read from the
            array.
        key: For each dimension, an index, or a slice over the whole dimension. At a fixed time or depth, each trace has
            one sample.
    Raises:
        Mismatch: The file exists.
        Unsupported: SEG-Y cannot represent the slice, or the slice contains no trace.
    """
    if location.entry() is not None:
        raise Mismatch(
            f"{location.url} already exists", where=location.url, hint="choose another name, or delete it first"
        )
    box = [
        (each, each + 1) if isinstance(each, int) else (0, side) for each, side in zip(key, array.shape, strict=True)
    ]
    if volume.segy is None:
        return _create(location, array, box)
    part = _Slice(volume, volume.segy, tuple(box))
    if not part.segy.layout["traces"]:
        raise Unsupported(
            f"{location.url}: the slice contains no traces, so it cannot be written as SEG-Y", where=location.url
        )
    chunking = whole_traces(part.dims, part.shape, part.dtype.itemsize)
    target = SegyDestination(location, part, part.segy)
    try:
        target.prepare(json.dumps([part.identity, box], default=str))
        for cell in np.ndindex(*chunking.grid):
            within = tuple(
                (at * size, min((at + 1) * size, side))
                for at, size, side in zip(cell, chunking.objects, part.shape, strict=True)
            )
            headers = np.empty((*[end - start for start, end in within[:-1]], part.segy.header_bytes), dtype=np.uint8)
            samples, exceptions = part.read(within, headers)
            target.write(cell, within, samples, headers, exceptions)
        target.finish()
    finally:
        target.close()
    return int(part.segy.layout["traces"])


def _create(location: Location, array: Array, box: Sequence[tuple[int, int]]) -> int:
    """Write a slice of a volume without stored SEG-Y headers.

    Headers are created from the fields of MDIO's trace headers or, if the volume has none, from the coordinates. They
    also contain the grid numbers of the fixed dimensions.
    """
    values = array[tuple(slice(*side) for side in box)]
    kept = None
    if array.has_headers:
        kept = array.headers(tuple(slice(*side) for side in box[:-1]))
        values = np.where(np.isnan(values).all(axis=-1, keepdims=True), values.dtype.type(0), values)
    coords: dict[str, Coordinate] = {}
    for name, each in array.coords.items():
        place = tuple(slice(*box[array.dims.index(dim)]) for dim in each.dims)
        coords[name] = Coordinate(each.dims, each.values[place], each.attrs)
    create_segy(location, values, array.dims, coords, text=[f" slice of {array.name}"], kept=kept)
    return int(np.prod(values.shape[:-1]))


class _Slice:
    """A box of a volume with trace headers, as the source of a separate SEG-Y file."""

    def __init__(self, volume: Source, facts: SegyFacts, box: Box) -> None:
        self._volume, self._box = volume, box
        self.dims, self.coords, self.name, self.attrs = volume.dims, volume.coords, volume.name, volume.attrs
        self.identity: Mapping[str, Any] = volume.identity
        self.dtype, self.chunks = volume.dtype, None
        self.shape = tuple(end - start for start, end in box)
        index = facts.trace_index[tuple(slice(*side) for side in box[:-1])]
        self._numbers = np.sort(index[index >= 0])
        renumbered = np.where(index >= 0, np.searchsorted(self._numbers, index), -1)
        self._is_cut = self.shape[-1] != volume.shape[-1]
        self._order = ">" if facts.layout["byte_order"] == "big" else "<"
        self._start = self._first_sample() if self._is_cut else 0
        layout = dict(facts.layout)
        sample_bytes = (layout["trace_bytes"] - layout["header_bytes"]) // layout["samples"]
        layout |= {
            "samples": self.shape[-1], "trace_bytes": layout["header_bytes"] + self.shape[-1] * sample_bytes,
            "traces": len(self._numbers), "trailing_bytes": 0,
        }  # fmt: skip
        layout["size"] = layout["first_trace"] + layout["traces"] * layout["trace_bytes"]
        nothing = np.empty(0, dtype=np.uint8)
        self.segy = SegyFacts(
            layout, self._file_header(facts, layout), nothing, renumbered, np.empty(0, dtype=np.int64)
        )  # fmt: skip

    def read(
        self, box: Box, headers: np.ndarray[Any, Any] | None, out: np.ndarray[Any, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read a box; see `Source`. If traces are cut, their headers get the new length and start."""
        whole = tuple((start + a, start + b) for (start, _), (a, b) in zip(self._box, box, strict=True))
        samples, exceptions = self._volume.read(whole, headers, out)
        if headers is not None and self._is_cut:
            rows = headers.reshape(-1, headers.shape[-1])
            _put(rows, 115, self._order + "u2", self.shape[-1])
            _put(rows, 109, self._order + "i2", self._start)
        if len(exceptions):
            exceptions = exceptions.copy()
            exceptions["trace"] = np.searchsorted(self._numbers, exceptions["trace"].astype(np.int64))
            exceptions["sample"] -= self._box[-1][0]
        return samples, exceptions

    def duplicates(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return empty arrays, because a slice has no duplicate traces."""
        empty = np.empty((0, self.segy.header_bytes), np.uint8), np.empty((0, self.shape[-1]), self.dtype)
        return (*empty, self._volume.read(tuple((0, 0) for _ in self._box), None)[1])

    def _first_sample(self) -> int:
        """Time or depth at which the cut traces start, in ms or m."""
        value = float(self._volume.coords[self.dims[-1]].values[self._box[-1][0]])
        if value != int(value) or not -(2**15) <= value < 2**15:
            raise Unsupported(
                f"{self.dims[-1]}: SEG-Y traces cannot start at {value:g}, only at a whole number of ms or m below "
                "32,768",
                where=self.dims[-1],
            )  # fmt: skip
        return int(value)

    def _file_header(self, facts: SegyFacts, layout: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the file header of the volume, with the slice's numbers of traces and samples."""
        header = facts.file_header.copy().reshape(1, -1)
        if self._is_cut:
            _put(header, 3221, self._order + "u2", self.shape[-1])
        if layout["revision"][0] >= 2:
            # Revision 2 also has fields for the numbers of samples (optional), traces and trailer stanzas.
            if self._is_cut and header[0, 3268:3272].any():
                _put(header, 3269, self._order + "u4", self.shape[-1])
            _put(header, 3313, self._order + "u8", layout["traces"])
            _put(header, 3329, self._order + "i4", 0)
        return header.reshape(-1)


def _put(rows: np.ndarray[Any, Any], byte: int, kind: str, value: int) -> None:
    """Write a header field into each row of bytes. `byte` is the first byte of the field, counted from 1."""
    content = np.frombuffer(np.asarray(value, dtype=kind).tobytes(), np.uint8)
    rows[:, byte - 1 : byte - 1 + len(content)] = content
