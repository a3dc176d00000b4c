# SPDX-License-Identifier: Apache-2.0
"""Opens Zarr groups and arrays (versions 2 and 3) and MDIO groups as arrays. The core reads the chunks."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.array import Array, Coordinate
from penstock.arrays.backend import Backend, ChunkedBackend
from penstock.arrays.mdio_fields import standard_names, struct_dtype
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["ZarrNode", "find_node", "open_zarr"]

_MAX_COORDINATE = 64 << 20
"""Maximum size, in bytes, of a coordinate that is read when a group is opened."""


@dataclass(frozen=True)
class ZarrNode:
    """An array of a group, described by its metadata."""

    location: Location
    name: str
    metadata: bytes
    attrs: Mapping[str, Any]

    @cached_property
    def document(self) -> dict[str, Any]:
        """The metadata."""
        found: dict[str, Any] = json.loads(self.metadata)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.document["shape"])

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        named = self.document.get("dimension_names") or self.attrs.get("_ARRAY_DIMENSIONS") or []
        return tuple(
            (named[axis] if axis < len(named) else None) or f"dim_{axis}" for axis in range(len(self.document["shape"]))
        )

    @property
    def kind(self) -> str:
        """Name of the element type in the metadata; empty if the type is not a plain name."""
        stated = self.document.get("data_type", self.document.get("dtype"))
        return stated if isinstance(stated, str) else ""

    @property
    def structure(self) -> np.dtype[Any] | None:
        """Element type if it is a structure or raw bytes, otherwise None."""
        return struct_dtype(self.document.get("data_type", self.document.get("dtype")))

    def open(self) -> Backend:
        """Open the array with the core's reader or, if the core does not support a codec of the array, with
        zarr-python.
        """
        if self.shape and (structure := self.structure) is not None:
            return _Structures(self, structure)
        try:
            return ChunkedBackend(
                _native.ChunkedArray.zarr(
                    self.location.url, self.metadata, self.location.variables, timeout_s=self.location.timeout_s
                )
            )
        except Unsupported as refused:
            return _ZarrPython(self, refused)


class _Structures:
    """An array of structures. The core reads it as an array of uint8, whose last dimension is multiplied by the size of
    a structure.
    """

    def __init__(self, node: ZarrNode, structure: np.dtype[Any]) -> None:
        document = json.loads(node.metadata)
        size = structure.itemsize
        is_third = document["zarr_format"] == 3
        chunks = document["chunk_grid"]["configuration"]["chunk_shape"] if is_third else document["chunks"]
        for sides in (document["shape"], chunks):
            sides[-1] *= size
        document["fill_value"] = 0
        document["data_type" if is_third else "dtype"] = "uint8" if is_third else "|u1"
        self._bytes = ZarrNode(node.location, node.name, json.dumps(document).encode(), {}).open()
        self.shape, self.dtype = node.shape, structure
        self.chunk_shape = (*self._bytes.chunk_shape[:-1], self._bytes.chunk_shape[-1] // size)

    def read(self, boxes: Sequence[Box], threads: int) -> list[np.ndarray[Any, Any]]:
        size = self.dtype.itemsize
        wide = [(*box[:-1], (box[-1][0] * size, box[-1][1] * size)) for box in boxes]
        return [np.ascontiguousarray(part).view(self.dtype) for part in self._bytes.read(wide, threads)]

    def stats(self) -> dict[str, int]:
        return self._bytes.stats()


class _MissingAsNan:
    """Samples of a lossy array. Missing traces are stored as zeros and returned as NaN."""

    def __init__(self, samples: Backend, trace_index: ZarrNode) -> None:
        self._samples, self._node = samples, trace_index
        self.shape, self.dtype, self.chunk_shape = samples.shape, samples.dtype, samples.chunk_shape

    @cached_property
    def _is_missing(self) -> np.ndarray[Any, Any]:
        backend = self._node.open()
        found: np.ndarray[Any, Any] = backend.read([tuple((0, side) for side in backend.shape)], 1)[0] < 0
        return found

    def read(self, boxes: Sequence[Box], threads: int) -> list[np.ndarray[Any, Any]]:
        parts = self._samples.read(boxes, threads)
        for part, box in zip(parts, boxes, strict=True):
            part[self._is_missing[tuple(slice(*side) for side in box[:-1])]] = np.nan
        return parts

    def stats(self) -> dict[str, int]:
        return self._samples.stats()


class _ZarrPython:
    """An array that zarr-python decodes, reading through Penstock's stores."""

    def __init__(self, node: ZarrNode, refused: Unsupported) -> None:
        try:
            require("this Zarr codec", "zfp" if "numcodecs.zfpy" in node.metadata.decode() else "zarr")
        except Unsupported as missing:
            refused.add_note(f"install zarr-python, which may support this codec: {missing.hint}")
            raise refused from None
        import zarr

        from penstock.fs import FileSystem

        url = node.location.url if "://" in node.location.url else f"file://{node.location.url}"
        store = zarr.storage.FsspecStore(_asynchronous(FileSystem()), path=url, read_only=True)
        try:
            with warnings.catch_warnings():
                # Ignore zarr-python's warning that other Zarr implementations may not support the codec.
                warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3", UserWarning)
                self._array: Any = zarr.open_array(store, mode="r")
        except (ValueError, KeyError, TypeError) as error:
            refused.add_note(f"zarr-python cannot read the array either: {error}")
            raise refused from None
        self.shape = tuple(self._array.shape)
        self.dtype = np.dtype(self._array.dtype)
        self.chunk_shape = tuple(self._array.chunks)
        self._returned = 0

    def read(self, boxes: Sequence[Box], threads: int) -> list[np.ndarray[Any, Any]]:  # noqa: ARG002 - zarr-python has threads of its own
        parts = [np.asarray(self._array[tuple(slice(*side) for side in box)]) for box in boxes]
        self._returned += sum(part.nbytes for part in parts)
        return parts

    def stats(self) -> dict[str, int]:
        return {"bytes_returned": self._returned}


def _asynchronous(files: Any) -> Any:
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    return AsyncFileSystemWrapper(files, asynchronous=True)


def find_node(location: Location) -> str | None:
    """Return `group` or `array` if the folder contains Zarr metadata, otherwise None."""
    for name in ("zarr.json", ".zgroup", ".zarray"):
        if (found := location.read(name)) is not None:
            if name == "zarr.json":
                return str(_parsed(found, location, name).get("node_type", "group"))
            return "group" if name == ".zgroup" else "array"
    return None


def open_zarr(location: Location, *, array: str | None = None) -> Array:
    """Open an array, or an array of a group. In a group, this is `array` if given, otherwise the group's default array
    if it has one, otherwise the largest array.

    Raises:
        ConfigError: The group has no such array.
        Corrupt: The metadata is not valid JSON.
    """
    nodes, group_attrs = _nodes(location)
    numeric = [node for node in nodes.values() if node.kind and node.shape]
    default = group_attrs.get("attributes", group_attrs).get(
        "defaultVariableName", group_attrs.get("defaultVariableName")
    )
    if array is not None and array.strip("/") not in nodes:
        known = "`, `".join(list(nodes)[:12])
        raise ConfigError(f"array: {location.url} contains no array `{array}`, only `{known}`", where="array")
    if array is None and not numeric:
        raise ConfigError(f"array: {location.url} contains no numeric array", where="array")
    if array is not None:
        chosen = nodes[array.strip("/")]
    elif default in nodes:
        chosen = nodes[str(default)]
    else:
        chosen = max(
            numeric,
            key=lambda node: (
                len(node.shape) > 1,
                node.name != "headers_raw",
                int(np.prod(node.shape, dtype=np.int64)),
            ),
        )
    coords = _coordinates(chosen, nodes)
    attrs = {key: value for key, value in chosen.attrs.items() if key not in ("_ARRAY_DIMENSIONS", "coordinates")}
    if "penstock_segy" in group_attrs:
        attrs["penstock_segy"] = group_attrs["penstock_segy"]
    name = chosen.name.rpartition("/")[2] or location.url.rpartition("/")[2]
    headers = _headers(nodes, group_attrs, chosen)
    backend = chosen.open()
    facts = group_attrs.get("penstock_segy", {})
    index = nodes.get(facts.get("folder", "") + "trace_index")
    if "penstock_lossy" in chosen.attrs and index is not None:
        backend = _MissingAsNan(backend, index)
    return Array(backend, name=name, dims=chosen.dims, coords=coords, attrs=attrs, headers=headers)


def _nodes(location: Location) -> tuple[dict[str, ZarrNode], dict[str, Any]]:
    """Return the arrays below a location, as a mapping from their names, and the attributes of the group."""
    if (root := location.read("zarr.json")) is not None:
        document = _parsed(root, location, "zarr.json")
        attrs = document.get("attributes", {})
        if document.get("node_type") == "array":
            return {"": ZarrNode(location, "", root, attrs)}, {}
        consolidated = (document.get("consolidated_metadata") or {}).get("metadata")
        if consolidated is None:
            found = _children(location, "zarr.json")
            consolidated = {name: _parsed(text, location, f"{name}/zarr.json") for name, text in found.items()}
        arrays = {name: each for name, each in consolidated.items() if each.get("node_type") == "array"}
        return {
            name: ZarrNode(location / name, name, json.dumps(each).encode(), each.get("attributes", {}))
            for name, each in arrays.items()
        }, attrs
    if (alone := location.read(".zarray")) is not None:
        return {"": ZarrNode(location, "", alone, _attributes(location, location.read(".zattrs"), ".zattrs"))}, {}
    attrs = _attributes(location, location.read(".zattrs"), ".zattrs")
    if (listed := location.read(".zmetadata")) is not None:
        documents = _parsed(listed, location, ".zmetadata").get("metadata", {})
        names = [name.removesuffix("/.zarray") for name in documents if name.endswith("/.zarray")]
        return {
            name: ZarrNode(
                location / name,
                name,
                json.dumps(documents[f"{name}/.zarray"]).encode(),
                documents.get(f"{name}/.zattrs", {}),
            )
            for name in names
        }, attrs
    found = _children(location, ".zarray")
    return {
        name: ZarrNode(
            location / name, name, text, _attributes(location, location.read(f"{name}/.zattrs"), f"{name}/.zattrs")
        )
        for name, text in found.items()
    }, attrs


def _children(location: Location, suffix: str) -> dict[str, bytes]:
    """List the arrays of a group without consolidated metadata, and read the metadata of each array."""
    names = [entry.name for entry in location.list() if entry.name.endswith(f"/{suffix}")]
    return {name.removesuffix(f"/{suffix}"): location.read(name) or b"" for name in names}


def _attributes(location: Location, text: bytes | None, name: str) -> dict[str, Any]:
    return {} if text is None else _parsed(text, location, name)


def _parsed(text: bytes, location: Location, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Corrupt(f"{location.url}/{name} is not valid JSON: {error}", where=f"{location.url}/{name}") from None
    if not isinstance(found, dict):
        raise Corrupt(f"{location.url}/{name} is not a JSON object", where=f"{location.url}/{name}")
    return found


def _coordinates(chosen: ZarrNode, nodes: Mapping[str, ZarrNode]) -> dict[str, Coordinate]:
    folder = chosen.name.rpartition("/")[0]
    stated = chosen.attrs.get("coordinates")
    others = stated.split() if isinstance(stated, str) else list(stated or []) if isinstance(stated, list) else []
    coords = {}
    for name in dict.fromkeys([*chosen.dims, *[str(each) for each in others]]):
        node = nodes.get(f"{folder}/{name}".strip("/"))
        if node is None or node is chosen or not node.kind or not set(node.dims) <= set(chosen.dims):
            continue
        backend = node.open()
        if int(np.prod(backend.shape, dtype=np.int64)) * backend.dtype.itemsize > _MAX_COORDINATE:
            continue
        values = backend.read([tuple((0, side) for side in backend.shape)], 1)[0]
        attrs = {key: value for key, value in node.attrs.items() if key != "_ARRAY_DIMENSIONS"}
        coords[name] = Coordinate(node.dims, values, attrs)
    return coords


def _headers(nodes: Mapping[str, ZarrNode], group_attrs: Mapping[str, Any], chosen: ZarrNode) -> Any:
    """Return a function that returns the trace headers at an index, with the standard's field names; None if the group
    has no trace headers.
    """
    if "penstock_segy" in group_attrs:
        from penstock.arrays.segy.header_fields import trace_dtype

        facts = group_attrs["penstock_segy"]
        node = nodes.get(facts.get("headers", "headers_raw"))
        if node is None:
            return None
        raw = Array(node.open(), name=node.name, dims=node.dims, coords={}, attrs={})
        if node.structure is not None:  # MDIO: one element per trace
            kind = trace_dtype(facts["byte_order"], node.structure.itemsize)
            return lambda key: raw[key].view(kind)
        kind = trace_dtype(facts["byte_order"], node.shape[-1])
        return lambda key: np.ascontiguousarray(raw[key]).view(kind)[..., 0]
    node = nodes.get("headers")
    if node is None or node.structure is None or not node.structure.names or node.shape != chosen.shape[:-1]:
        return None
    packed = Array(node.open(), name="headers", dims=node.dims, coords={}, attrs={})
    names = list(standard_names(node.structure.names).values())
    formats = [node.structure[number] for number in range(len(names))]
    named = np.dtype(list(zip(names, formats, strict=True)))
    return lambda key: packed[key].view(named)
