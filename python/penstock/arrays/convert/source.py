# SPDX-License-Identifier: Apache-2.0
"""Sources of a conversion: read the samples and trace headers in a box, and all other parts of a SEG-Y file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.arrays.opening import kind_of
from penstock.arrays.opening import open as open_array
from penstock.arrays.segy.geometry import candidates, grid, parse_map
from penstock.arrays.segy.reader import EXCEPTION, SegyFile, coordinates
from penstock.arrays.segy.scan import SCANNED
from penstock.errors import Corrupt, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.arrays.array import Array, Coordinate
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["SegyFacts", "Source", "open_source"]


@dataclass(frozen=True)
class SegyFacts:
    """All parts of a SEG-Y file except the samples and trace headers in its grid."""

    layout: Mapping[str, Any]
    file_header: np.ndarray[Any, Any]
    """All bytes before the first trace."""
    trailer: np.ndarray[Any, Any]
    """All bytes after the last trace."""
    trace_index: np.ndarray[Any, Any]
    """For each grid position, the number of its trace in file order; -1 if the trace is missing."""
    duplicate_index: np.ndarray[Any, Any]
    """Numbers, in file order, of the traces that have the same grid position as an earlier trace."""

    @property
    def header_bytes(self) -> int:
        """Size of a trace's headers in bytes."""
        return int(self.layout["header_bytes"])


class Source(Protocol):
    """A volume to convert."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""

    @property
    def coords(self) -> Mapping[str, Coordinate]:
        """Coordinates, as a mapping from their names."""

    @property
    def segy(self) -> SegyFacts | None:
        """Parts of a SEG-Y file except its samples; None if the volume has no trace headers."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the facts that identify this version of the volume. If these facts change, a conversion cannot be
        resumed.
        """

    @property
    def name(self) -> str:
        """Name of the variable."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the variable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the samples."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a sample."""

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Shape of a chunk, the smallest part that can be read alone; None if traces are read one by one."""

    def read(
        self, box: Box, headers: np.ndarray[Any, Any] | None, out: np.ndarray[Any, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read a box. Returns its samples, and the `EXCEPTION`s among them.

        Args:
            headers: If given, an array [..., header_bytes], which is filled with the trace headers.
            out: Memory that can be used for the samples.
        """

    def duplicates(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read the duplicate traces: their headers, their samples, and the `EXCEPTION`s among the samples."""


def fill_of(dtype: np.dtype[Any]) -> Any:
    """Return the value of the samples at a grid position without a trace."""
    return np.nan if dtype.kind == "f" else 0


@dataclass
class _SegySource:
    file: SegyFile
    dims: tuple[str, ...]
    coords: Mapping[str, Coordinate]
    segy: SegyFacts | None
    identity: Mapping[str, Any]
    name: str = "amplitude"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    chunks: tuple[int, ...] | None = None

    @property
    def facts(self) -> SegyFacts:
        """The value of `segy`, which is never None for a SEG-Y file."""
        assert self.segy is not None
        return self.segy

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.facts.trace_index.shape, self.file.samples)

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.file.dtype
        return found

    def read(
        self, box: Box, headers: np.ndarray[Any, Any] | None, out: np.ndarray[Any, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        first, end = box[-1]
        index = self.facts.trace_index[tuple(slice(*side) for side in box[:-1])]
        numbers = index.reshape(-1)
        there = numbers >= 0
        if out is None:
            out = np.empty((len(numbers), end - first), dtype=self.dtype)
        samples = out.reshape(len(numbers), end - first)
        if there.all():
            exceptions = self.file.read(numbers, first, end, headers=headers, samples=samples)
        else:
            # Read the existing traces into a dense array, then copy them to their grid positions.
            found = np.empty((int(there.sum()), end - first), dtype=self.dtype)
            found_headers = None if headers is None else np.empty((len(found), headers.shape[-1]), dtype=np.uint8)
            exceptions = self.file.read(numbers[there], first, end, headers=found_headers, samples=found)
            samples[there] = found
            samples[~there] = fill_of(self.dtype)
            if headers is not None and found_headers is not None:
                rows = headers.reshape(len(numbers), -1)
                rows[there] = found_headers
                rows[~there] = 0
        return samples.reshape(*index.shape, end - first), exceptions

    def duplicates(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        numbers = self.facts.duplicate_index
        headers = np.empty((len(numbers), self.facts.header_bytes), dtype=np.uint8)
        samples = np.empty((len(numbers), self.file.samples), dtype=self.dtype)
        exceptions = self.file.read(numbers, 0, self.file.samples, headers=headers, samples=samples)
        return headers, samples, exceptions


class _ArraySource:
    """A Zarr group or HDF5 file, with the arrays that a conversion from SEG-Y has added to the samples."""

    def __init__(self, location: Location, array: Array) -> None:
        self._array = array
        self.dims, self.coords, self.name, self.attrs = array.dims, array.coords, array.name, array.attrs
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks
        stated = array.attrs.get("penstock_segy")
        self._words = np.empty(0, dtype=EXCEPTION)
        self.segy: SegyFacts | None = None
        entry = location.entry()
        self.identity = {
            "url": location.url,
            "size": entry and entry.size,
            "version": entry and entry.version,
            "array": array.name,
        }
        if stated is None:
            return
        layout = json.loads(stated) if isinstance(stated, str) else stated

        def side(name: str) -> Array:
            return open_array(location.url, array=layout.get("folder", "") + name, timeout_s=location.timeout_s)

        present = set(layout["arrays"])
        empty = np.empty(0, dtype=np.uint8)
        self.segy = SegyFacts(
            layout=layout,
            file_header=side("segy_file_header")[...],
            trailer=side("segy_trailer")[...] if "segy_trailer" in present else empty,
            trace_index=side("trace_index")[...],
            duplicate_index=side("duplicate_index")[...]
            if "duplicate_index" in present
            else np.empty(0, dtype=np.int64),
        )
        self._side, self._present = side, present
        headers = layout.get("headers", "headers_raw")
        self._headers = open_array(location.url, array=headers, timeout_s=location.timeout_s)
        if "ibm_words" in present:
            words = side("ibm_words")[...]
            self._words = np.empty(len(words), dtype=EXCEPTION)
            for column, name in enumerate(EXCEPTION.names or ()):
                self._words[name] = words[:, column]

    def read(
        self,
        box: Box,
        headers: np.ndarray[Any, Any] | None,
        out: np.ndarray[Any, Any] | None = None,  # noqa: ARG002 - one signature for all sources
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        samples = self._array[tuple(slice(*side) for side in box)]
        if headers is not None:
            found = self._headers[tuple(slice(*side) for side in box[:-1])]
            # In MDIO's raw headers, each trace header is one element.
            headers[...] = found.view(np.uint8).reshape(headers.shape)
        if self.segy is None or not len(self._words):
            return samples, self._words[:0]
        numbers = self.segy.trace_index[tuple(slice(*side) for side in box[:-1])].reshape(-1)
        words = self._words[(self._words["sample"] >= box[-1][0]) & (self._words["sample"] < box[-1][1])]
        return samples, words[np.isin(words["trace"], numbers[numbers >= 0].astype(np.uint64))]

    def duplicates(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        if self.segy is None or not len(self.segy.duplicate_index):
            return np.empty((0, 240), np.uint8), np.empty((0, self.shape[-1]), self.dtype), self._words[:0]
        index = self.segy.duplicate_index
        words = self._words[np.isin(self._words["trace"], index.astype(np.uint64))]
        return self._side("duplicate_headers")[...], self._side("duplicate_samples")[...], words


def open_source(
    location: Location,
    *,
    array: str | None = None,
    map: str | None = None,  # noqa: A002 - as on the command line
    vertical: str = "time",
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    **overrides: Any,
) -> Source:
    """Open a volume to convert: a SEG-Y file, or an array of Zarr or HDF5. All trace headers of a SEG-Y file are
    scanned.
    """
    kind = kind_of(location)
    if kind != "segy":
        return _ArraySource(location, open_array(location.url, array=array, timeout_s=location.timeout_s))
    if array is not None:
        raise Unsupported("array: not supported for SEG-Y files, which contain only one array")
    file = SegyFile(location, **overrides)
    if not file.traces:
        raise Corrupt(f"{location.url} contains no traces", where=location.url)
    keys = None if map is None else parse_map(map)
    extra = [(key.byte, key.kind) for key in keys or () if key.column not in SCANNED]
    headers = file.scan(extra, threads=threads, progress=progress)
    geometry = grid(headers, candidates(headers)[0].keys if keys is None else keys)
    segy = SegyFacts(
        layout={**file.layout, "map": ",".join(str(key) for key in geometry.keys)},
        file_header=np.frombuffer(file.file_header(), dtype=np.uint8),
        trailer=np.frombuffer(file.trailer(), dtype=np.uint8),
        trace_index=geometry.trace_index,
        duplicate_index=geometry.duplicates,
    )
    identity = {
        "url": location.url, "version": file.core.version, "layout": segy.layout,
    }  # fmt: skip
    return _SegySource(file, (*geometry.dims, vertical), coordinates(file, headers, geometry, vertical), segy, identity)
