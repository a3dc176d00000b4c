# SPDX-License-Identifier: Apache-2.0
"""MDIO v1 destination of a conversion: a Zarr group with structured `headers`, a `trace_mask`, and the names of MDIO.

The subgroup `penstock` stores data for which MDIO does not define an array. MDIO's readers ignore this subgroup. The
conversion back to SEG-Y restores the original bytes from this subgroup and `raw_headers`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.array import Coordinate
from penstock.arrays.convert.zarr_destination import STATE, ZarrDestination
from penstock.arrays.convert.zarr_metadata import array_document, group_document, parse_codec
from penstock.arrays.mdio_fields import API_VERSION, BINARY_FIELDS, COORDINATES, DIMENSIONS, HEADER_FIELDS, TEMPLATES
from penstock.arrays.segy.geometry import parse_map
from penstock.arrays.segy.text_header import decode_text_header
from penstock.errors import Bug, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.arrays.convert.chunking import Chunking
    from penstock.arrays.convert.source import SegyFacts, Source
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["MdioDestination", "MdioSource", "mdio_chunks"]

_FOLDER = "penstock/"
_TIMES = {"ms": "ms", "s": "s"}
_LENGTHS = ("m", "ft", "km")
_POSITIONS = ("cdp_x", "cdp_y", "source_x", "source_y")
_ALONG = {"cdp": ("inline", "crossline", "cdp"), "source": ("shot",)}
"""For each kind of position, the dimensions along which MDIO stores it."""


@dataclass
class MdioSource:
    """A source whose dimensions and coordinates have MDIO's names.

    Raises:
        Unsupported: The volume has no trace headers.
    """

    inner: Source

    def __post_init__(self) -> None:
        if self.inner.segy is None:
            raise Unsupported(
                "layout: `mdio` requires trace headers, but this volume has none",
                hint="convert from SEG-Y, or from a volume that was converted from SEG-Y",
            )
        self.segy: SegyFacts | None = self.inner.segy
        self.dims = tuple(DIMENSIONS.get(dim, dim) for dim in self.inner.dims)
        self.identity, self.name, self.attrs = self.inner.identity, self.inner.name, self.inner.attrs
        self.shape, self.dtype = self.inner.shape, self.inner.dtype
        self.coords = {
            DIMENSIONS.get(name, COORDINATES.get(name, name)): _coordinate(name, each)
            for name, each in self.inner.coords.items()
        }

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Chunk shape of the volume; see `Source`."""
        return self.inner.chunks

    def read(
        self, box: Box, headers: np.ndarray[Any, Any] | None, out: np.ndarray[Any, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read the samples of a box; see `Source`."""
        return self.inner.read(box, headers, out)

    def duplicates(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read the duplicate traces; see `Source`."""
        return self.inner.duplicates()


def mdio_chunks(source: MdioSource) -> tuple[int, ...] | None:
    """Return the chunk shape of MDIO's template for the source's dimensions; None if MDIO has no such template."""
    found = TEMPLATES.get(source.dims[:-1])
    return None if found is None else tuple(map(min, found[3], source.shape))


class MdioDestination(ZarrDestination):
    """MDIO v1 destination of a conversion; see the module."""

    # The state is stored in the subgroup, because zarr-python would warn about a folder in the group that is not a Zarr
    # node.
    state = f"{_FOLDER}{STATE}"

    def __init__(self, location: Location, source: MdioSource, chunking: Chunking, codec: str) -> None:
        assert source.segy is not None  # checked by MdioSource
        self._facts = source.segy
        self._fields = _header_fields(self._facts)
        self._header_kind = np.dtype([(name, "<" + kind) for name, (_, kind) in self._fields.items()])
        super().__init__(location, source, chunking, codec)
        self._order = _byte_order(self._fields, self._facts.layout["byte_order"])

    def prepare(self, plan: str) -> bool:
        """Create the arrays; see `ZarrDestination`."""
        if super().prepare(plan):
            return True
        self.location.write(f"{_FOLDER}zarr.json", json.dumps(_folder_document()).encode())
        self._write_array("trace_mask", self._facts.trace_index >= 0)
        return False

    def _side_name(self, name: str) -> str:
        return _FOLDER + name

    def _put_headers(self, cell: tuple[int, ...], headers: np.ndarray[Any, Any]) -> int:
        stored = 0
        for name, values in (("raw_headers", headers), ("headers", headers[..., self._order])):
            stored += self._put(name, cell[:-1], values.reshape(*values.shape[:-2], -1))
        return stored

    def _header_documents(self, segy: SegyFacts) -> dict[str, dict[str, Any]]:
        spatial, extra = self._source.dims[:-1], [name for name in self._source.coords if name not in self._source.dims]
        attrs = {"coordinates": " ".join(extra)} if extra else {}
        shape, chunks = self._source.shape[:-1], self._chunking.objects[:-1]
        documents = {}
        # Do not use the newer name `struct` of this type, because zarr-python before 3.2 cannot open it.
        fields = [[name, _ZARR_TYPES[kind]] for name, (_, kind) in self._fields.items()]
        structure = {"name": "structured", "configuration": {"fields": fields}}
        raw = {"name": "raw_bytes", "configuration": {"length_bytes": segy.header_bytes}}
        for name, kind, size in (
            ("headers", structure, self._header_kind.itemsize),
            ("raw_headers", raw, segy.header_bytes),
        ):
            found = array_document(
                shape, np.dtype(np.uint8), spatial, chunks=chunks, codecs=_header_codecs(size),
                fill=base64.b64encode(bytes(size)).decode(), attrs=attrs,
            )  # fmt: skip
            documents[name] = {**found, "data_type": kind}
        documents["headers"]["codecs"][0] = {"name": "bytes", "configuration": {"endian": "little"}}
        documents["trace_mask"] = array_document(
            shape, np.dtype(np.bool_), spatial, chunks=[max(1, side) for side in shape], codecs=parse_codec("zstd", 1),
            fill=False, attrs=attrs,
        )  # fmt: skip
        # A scalar array, whose only element is the fill value. Only the attributes of the array are used.
        documents["segy_file_header"] = {
            **array_document((), np.dtype(np.uint8), (), chunks=(), attrs=_file_header_attributes(segy)),
            "data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4}}, "fill_value": "",
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }  # fmt: skip
        return documents

    def _encoded_as(self, name: str) -> dict[str, Any]:
        document = self._documents[name]
        if name not in ("headers", "raw_headers"):
            return document
        # The core writes the same bytes as an array of uint8, whose last dimension is multiplied by the element size.
        size = self._header_kind.itemsize if name == "headers" else self._facts.header_bytes
        chunks = [*self._chunking.objects[:-2], self._chunking.objects[-2] * size]
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        shape = [*document["shape"][:-1], document["shape"][-1] * size]
        codecs = [{"name": "bytes"}, *document["codecs"][1:]]
        return {**document, "data_type": "uint8", "shape": shape, "chunk_grid": grid, "codecs": codecs, "fill_value": 0}

    def _attributes(self) -> dict[str, Any]:
        template = TEMPLATES.get(self._source.dims[:-1])
        inner: dict[str, Any] = {"defaultVariableName": self._source.name}
        if template is not None:
            inner = {"surveyType": template[1], "gatherType": template[2], **inner}
        vertical = self._source.dims[-1].capitalize()
        kept = [name.removeprefix(_FOLDER) for name in self._documents if name.startswith(_FOLDER)]
        return {
            "apiVersion": API_VERSION, "createdOn": datetime.now(UTC).isoformat(sep=" "),
            "name": f"{template[0] if template else 'Seismic'}{vertical}", "attributes": inner,
            "penstock_segy": {**self._facts.layout, "arrays": kept, "folder": _FOLDER, "headers": "raw_headers"},
        }  # fmt: skip

    def _group(self) -> dict[str, Any]:
        return group_document({**self._documents, _FOLDER.rstrip("/"): _folder_document()}, self._attributes())


_ZARR_TYPES = {"i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8"}


def _folder_document() -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}


def _header_codecs(size: int) -> list[dict[str, Any]]:
    """Return the codec of headers: Blosc, as in MDIO. The byte shuffle is over whole headers if Blosc supports this
    header size.
    """
    return parse_codec("blosc-zstd", size if size < 256 else 1)


def _header_fields(segy: SegyFacts) -> dict[str, tuple[int, str]]:
    """Return the fields of `headers`. As MDIO specifies, fields that number a dimension have the name of the dimension,
    and are the last fields.
    """
    stated = segy.layout.get("map", "")
    numbering = {
        key.byte: (DIMENSIONS.get(key.dim, key.dim), key.kind) for key in (parse_map(stated) if stated else ())
    }
    fields, named = {}, {}
    for name, (byte, kind) in HEADER_FIELDS.items():
        dim, wanted = numbering.get(byte, (name, kind))
        if dim in HEADER_FIELDS or wanted[1] != kind[1]:
            fields[name] = (byte, kind)
        else:
            named[dim] = (byte, kind)
    return {**fields, **named}


def _byte_order(fields: Mapping[str, tuple[int, str]], byte_order: str) -> np.ndarray[Any, Any]:
    """Return, for each byte of the little-endian structure, its position in the stored trace header."""
    order: list[int] = []
    for byte, kind in fields.values():
        places = range(byte - 1, byte - 1 + int(kind[1]))
        order += reversed(places) if byte_order == "big" else places
    return np.asarray(order)


def _file_header_attributes(segy: SegyFacts) -> dict[str, Any]:
    raw = segy.file_header.tobytes()
    if len(raw) < 3600:
        raise Bug(f"the SEG-Y file header has only {len(raw):,} of 3,600 bytes")
    text = decode_text_header(raw[:3200]).split("\n")
    sign = ">" if segy.layout["byte_order"] == "big" else "<"
    return {
        "textHeader": "\n".join(line[:80].ljust(80) for line in [*text, *[""] * 40][:40]),
        "binaryHeader": {
            name: int(np.frombuffer(raw, sign + kind, 1, byte - 1)[0]) for name, (byte, kind) in BINARY_FIELDS.items()
        },
        "rawBinaryHeader": base64.b64encode(raw[3200:3600]).decode(),
    }


def _coordinate(name: str, found: Coordinate) -> Coordinate:
    """Convert a coordinate to MDIO's form: whole numbers become int32, and positions lose redundant dimensions."""
    values, own = np.asarray(found.values), found.dims
    attrs = dict(found.attrs)
    unit = attrs.get("units")
    if unit in _TIMES:
        attrs["unitsV1"] = {"time": _TIMES[unit]}
    elif unit in _LENGTHS:
        attrs["unitsV1"] = {"length": unit}
    if own == (name,):
        is_whole = bool((values == np.rint(values)).all()) and bool((np.abs(values) < 2**31).all())
        values = values.astype(np.int32) if is_whole else values
    else:
        needed = _ALONG[name[: name.find("_")]] if name in _POSITIONS else own
        while own[-1] not in needed and len(own) > 1 and (smaller := _without_last(values)) is not None:
            values, own = smaller, own[:-1]
    return Coordinate(tuple(DIMENSIONS.get(dim, dim) for dim in own), values, attrs)


def _without_last(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """If the values do not change along the last dimension, return them without this dimension, otherwise None. Missing
    traces are ignored.
    """
    if not values.size:
        return None
    rows = values.reshape(-1, values.shape[-1])
    there = ~np.isnan(rows)
    first = rows[np.arange(len(rows)), there.argmax(axis=1)]
    is_same = ((rows == first[:, None]) | ~there).all()
    return first.reshape(values.shape[:-1]) if is_same else None
