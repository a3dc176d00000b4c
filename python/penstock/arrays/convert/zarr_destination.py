# SPDX-License-Identifier: Apache-2.0
"""Zarr destination of a conversion. Each object has one writer. When an object is finished, a marker for it is created,
which cannot be overwritten.

The metadata of the arrays is written first, and the metadata of the group last, so that an incomplete group cannot be
opened. The folder `.penstock/`, which Zarr's readers ignore, contains the state: the plan, the markers of finished
objects, and IBM words that float32 cannot represent.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.convert.source import fill_of
from penstock.arrays.convert.zarr_metadata import array_document, group_document, parse_codec
from penstock.arrays.convert.zfp import LOSSY, ErrorSum, ZfpWriter, lossy_of, parse_zfp
from penstock.arrays.segy.reader import EXCEPTION
from penstock.errors import ConfigError, Mismatch, PreconditionFailed

if TYPE_CHECKING:
    from penstock.arrays.convert.chunking import Chunking
    from penstock.arrays.convert.source import SegyFacts, Source
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["STATE", "ZarrDestination", "byte_box"]

STATE = ".penstock"
"""Name of the folder that contains the state."""

_SIDE_BYTES = 4 << 20
"""Target size, in bytes, of a chunk of the arrays other than the samples."""


class ZarrDestination:
    """Zarr destination of a conversion; see the module."""

    state = STATE
    """Folder of the state, relative to the group."""

    def __init__(self, location: Location, source: Source, chunking: Chunking, codec: str) -> None:
        self.location, self._source, self._chunking = location, source, chunking
        settings = parse_zfp(codec, source.dtype, len(source.shape))
        self._zfp = None if settings is None else ZfpWriter(location / source.name, source, chunking, settings)
        self._documents = self._array_documents(codec)
        self._writers: dict[str, _native.ZarrWriter] = {}

    def check(self) -> None:
        """Before anything is written, check that the destination does not exist, or belongs to a conversion.

        Raises:
            Mismatch: The destination exists, but was not created by a conversion.
        """
        is_taken = self.location.entry() is not None or any(
            self.location.read(name) is not None for name in ("zarr.json", ".zgroup", ".zarray")
        )
        if is_taken and self.location.read(f"{self.state}/plan.json") is None:
            raise Mismatch(
                f"{self.location.url} already exists, and was not created by this conversion",
                where=self.location.url,
                hint="choose another destination, or delete it first",
            )

    def prepare(self, plan: str) -> bool:
        """Create the arrays, unless a conversion with the same plan has already created them. Return True if that
        conversion is complete.

        Raises:
            Mismatch: The destination has a different plan.
        """
        existing = self.location.read("zarr.json")
        found = self.location.read(f"{self.state}/plan.json")
        if found is None:
            try:
                self.location.write(f"{self.state}/plan.json", plan.encode(), create_only=True)
            except PreconditionFailed:
                found = self.location.read(f"{self.state}/plan.json")
        if found is not None and found.decode() != plan:
            differs = _difference(json.loads(found), json.loads(plan))
            raise Mismatch(
                f"{self.location.url} belongs to a conversion with a different {differs}",
                where=self.location.url, hint="repeat the settings of that conversion to resume it, or choose another destination",
            )  # fmt: skip
        if existing is not None:
            return True
        for name, document in self._documents.items():
            self.location.write(f"{name}/zarr.json", json.dumps(document).encode())
        for name, coordinate in self._source.coords.items():
            self._write_array(name, coordinate.values)
        if (segy := self._source.segy) is not None:
            self._write_array(self._side_name("trace_index"), segy.trace_index)
            self._write_array(self._side_name("segy_file_header"), segy.file_header)
            if len(segy.trailer):
                self._write_array(self._side_name("segy_trailer"), segy.trailer)
        return False

    def done(self) -> set[tuple[int, ...]]:
        """Return the finished objects."""
        names = [entry.name.rpartition("/")[2] for entry in self.location.list(f"{self.state}/done/")]
        return {tuple(int(part) for part in name.split(".")) for name in names}

    def write(
        self,
        cell: tuple[int, ...],
        box: Box,
        samples: np.ndarray[Any, Any],
        headers: np.ndarray[Any, Any] | None,
        exceptions: np.ndarray[Any, Any],
    ) -> int:
        """Write the samples and headers of an object, then its marker. Returns the number of stored bytes.

        Raises:
            PreconditionFailed: Another writer has finished this object.
        """
        facts: dict[str, Any] = {}
        if self._zfp is not None:
            stored, facts = self._zfp.write(cell, box, samples)
        else:
            stored = self._put(self._source.name, cell, samples)
        if headers is not None and cell[-1] == 0:
            stored += self._put_headers(cell, headers)
        name = ".".join(map(str, cell))
        if len(exceptions):
            self.location.write(f"{self.state}/ibm/{name}", exceptions.tobytes())
        facts |= {"stored_bytes": stored, "ibm_words": len(exceptions)}
        self.location.write(f"{self.state}/done/{name}", json.dumps(facts).encode(), create_only=True)
        return stored

    def finish(self) -> None:
        """Write the duplicate traces and the IBM words as arrays, then the group's metadata."""
        words = [
            np.frombuffer(self.location.read(entry.name) or b"", dtype=EXCEPTION)
            for entry in self.location.list(f"{self.state}/ibm/")
        ]
        if self._source.segy is not None and len(self._source.segy.duplicate_index):
            headers, samples, exceptions = self._source.duplicates()
            words.append(exceptions)
            self._add(self._side_name("duplicate_headers"), headers, ("duplicate", "header_byte"))
            self._add(self._side_name("duplicate_samples"), samples, ("duplicate", self._source.dims[-1]))
            self._add(self._side_name("duplicate_index"), self._source.segy.duplicate_index, ("duplicate",))
        if words:
            rows = np.sort(np.concatenate(words), order=["trace", "sample"])
            columns = np.stack([rows[name].astype(np.int64) for name in EXCEPTION.names or ()], axis=1)
            self._add(self._side_name("ibm_words"), columns, ("ibm_word", "trace_sample_word"))
        if self._zfp is not None:
            document = self._documents[self._source.name]
            document["attributes"][LOSSY] = self._zfp.describe(self._error())
            self.location.write(f"{self._source.name}/zarr.json", json.dumps(document).encode())
        self.location.write("zarr.json", json.dumps(self._group()).encode())

    def lossy(self) -> dict[str, Any] | None:
        """Return the compression error of a finished lossy array; None for a lossless array."""
        if self._zfp is None:
            return None
        return lossy_of(json.loads(self.location.read(f"{self._source.name}/zarr.json") or b"{}").get("attributes", {}))

    def _error(self) -> ErrorSum:
        """Return the compression error of all objects, computed from their markers."""
        whole = ErrorSum()
        for entry in self.location.list(f"{self.state}/done/"):
            whole.add(ErrorSum(**json.loads(self.location.read(entry.name) or b"{}")["error"]))
        return whole

    def _side_name(self, name: str) -> str:
        """Return the path, in the group, of an array that only the conversion back to SEG-Y needs."""
        return name

    def _header_documents(self, segy: SegyFacts) -> dict[str, dict[str, Any]]:
        """Return the metadata of the arrays that contain trace headers."""
        return {
            "headers_raw": array_document(
                (*self._source.shape[:-1], segy.header_bytes), np.dtype(np.uint8), (*self._source.dims[:-1], "header_byte"),
                chunks=(*self._chunking.objects[:-1], segy.header_bytes), codecs=parse_codec("zstd", 1),
            )
        }  # fmt: skip

    def _put_headers(self, cell: tuple[int, ...], headers: np.ndarray[Any, Any]) -> int:
        """Write the trace headers of an object, [..., header_bytes]. Returns the number of stored bytes."""
        return self._put("headers_raw", (*cell[:-1], 0), headers)

    def _encoded_as(self, name: str) -> dict[str, Any]:
        """Return the metadata that the core uses to encode an array."""
        return self._documents[name]

    def _group(self) -> dict[str, Any]:
        """Return the metadata of the group."""
        return group_document(self._documents, self._attributes())

    def _attributes(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {"Conventions": "CF-1.11", "defaultVariableName": self._source.name}
        if (segy := self._source.segy) is not None:
            kept = [name for name in self._documents if name not in self._source.coords and name != self._source.name]
            attrs["penstock_segy"] = {**segy.layout, "arrays": kept}
        return attrs

    def _array_documents(self, codec: str) -> dict[str, dict[str, Any]]:
        source = self._source
        extra = [name for name in source.coords if name not in source.dims]
        attrs = {key: value for key, value in source.attrs.items() if key not in ("penstock_segy", "kind")}
        if extra:
            attrs["coordinates"] = " ".join(extra)
        documents = {
            source.name: array_document(
                source.shape, source.dtype, source.dims, chunks=self._chunking.chunks, shards=self._chunking.shards,
                codecs=() if self._zfp is not None else parse_codec(codec, source.dtype.itemsize),
                serializer=None if self._zfp is None else self._zfp.settings.document(),
                fill=fill_of(source.dtype) if self._zfp is None else 0, attrs=attrs,
            )
        }  # fmt: skip
        if (segy := source.segy) is not None:
            documents |= self._header_documents(segy)
            documents[self._side_name("trace_index")] = _side(
                segy.trace_index,
                source.dims[:-1],
                {"long_name": "number of the trace in the SEG-Y file, -1 for none"},
                -1,
            )
            documents[self._side_name("segy_file_header")] = _side(segy.file_header, ("file_header_byte",))
            if len(segy.trailer):
                documents[self._side_name("segy_trailer")] = _side(segy.trailer, ("trailer_byte",))
        for name, coordinate in source.coords.items():
            if name in documents:
                raise ConfigError(f"coordinate {name}: an array with this name already exists", where=name)
            values = np.asarray(coordinate.values)
            documents[name] = _side(values, coordinate.dims, dict(coordinate.attrs), fill_of(values.dtype))
        return documents

    def _add(self, name: str, values: np.ndarray[Any, Any], dims: tuple[str, ...]) -> None:
        self._documents[name] = _side(values, dims)
        self.location.write(f"{name}/zarr.json", json.dumps(self._documents[name]).encode())
        self._write_array(name, values)

    def _write_array(self, name: str, values: np.ndarray[Any, Any]) -> None:
        document = self._documents[name]
        values = np.ascontiguousarray(values, dtype=np.dtype(document["data_type"]))
        chunk = document["chunk_grid"]["configuration"]["chunk_shape"]
        for cell in np.ndindex(*[-(-side // part) for side, part in zip(values.shape, chunk, strict=True)]):
            place = tuple(slice(at * size, (at + 1) * size) for at, size in zip(cell, chunk, strict=True))
            self._put(name, cell, values[place])

    def _put(self, name: str, cell: tuple[int, ...], values: np.ndarray[Any, Any]) -> int:
        if name not in self._writers:
            place = self.location / name
            self._writers[name] = _native.ZarrWriter(
                place.url, json.dumps(self._encoded_as(name)), place.variables, timeout_s=place.timeout_s
            )
        return self._writers[name].write(cell, byte_box(values))


def byte_box(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a box as bytes, for `_native.ZarrWriter`. The box is copied if its last axis is not contiguous."""
    if not values.ndim or values.strides[-1] != values.itemsize:
        values = np.ascontiguousarray(values)
    return values.view(np.uint8)


def _side(
    values: np.ndarray[Any, Any], dims: tuple[str, ...], attrs: dict[str, Any] | None = None, fill: Any = 0
) -> dict[str, Any]:
    # A chunk consists of whole rows, and has about 4 MiB.
    row = max(1, int(np.prod(values.shape[1:], dtype=np.int64)) * values.dtype.itemsize)
    first = [max(1, min(values.shape[0], _SIDE_BYTES // row))] if values.ndim else []
    chunks = [*first, *[max(1, side) for side in values.shape[1:]]]
    codecs = parse_codec("zstd", values.dtype.itemsize)
    return array_document(values.shape, values.dtype, dims, chunks=chunks, codecs=codecs, fill=fill, attrs=attrs)


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    return ", ".join(sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key)))
