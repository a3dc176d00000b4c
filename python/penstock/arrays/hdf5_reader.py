# SPDX-License-Identifier: Apache-2.0
"""Opens HDF5 and NetCDF-4 files as arrays. h5py reads the metadata with ranged requests; the core reads the chunks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.array import Array, Coordinate
from penstock.arrays.backend import ChunkedBackend
from penstock.errors import ConfigError, NotFound
from penstock.extras import require
from penstock.feed.hdf5_chunks import chunk_table, with_file

if TYPE_CHECKING:
    from penstock.arrays.location import Location

__all__ = ["open_hdf5"]

_MAX_COORDINATE = 64 << 20
"""Maximum size, in bytes, of a coordinate that is read when the file is opened."""


def open_hdf5(location: Location, *, array: str | None = None) -> Array:
    """Open a dataset of a file: the dataset `array` or, by default, the largest numeric dataset.

    Raises:
        ConfigError: The dataset does not exist.
        Unsupported: The layout or a filter of the dataset is not supported.
    """
    require("HDF5 files", "hdf5")
    entry = location.entry()
    if entry is None:
        raise NotFound(f"{location.url} does not exist", where=location.url)
    found = {"key": entry.name, "size": entry.size, "version": entry.version}
    files = _native.Files(location.folder, location.variables, timeout_s=location.timeout_s)
    facts = with_file(files, found, location.url, lambda file: _describe(file, array, location.url))
    core = _native.ChunkedArray.hdf5(
        location.folder, location.name, entry.size, entry.version, json.dumps(facts["table"]), location.variables,
        timeout_s=location.timeout_s,
    )  # fmt: skip
    return Array(
        ChunkedBackend(core), name=facts["name"], dims=facts["dims"], coords=facts["coords"], attrs=facts["attrs"],
        headers=facts["headers"],
    )  # fmt: skip


def _describe(file: Any, wanted: str | None, place: str) -> dict[str, Any]:
    import h5py  # type: ignore[import-untyped]

    datasets: dict[str, Any] = {}
    file.visititems(lambda path, node: datasets.update({path: node}) if isinstance(node, h5py.Dataset) else None)
    numeric = {path: node for path, node in datasets.items() if node.dtype.kind in "iuf" and node.shape}
    if wanted is None and not numeric:
        raise ConfigError(f"array: {place} contains no numeric dataset", where="array")
    scales = {path for path, node in numeric.items() if node.is_scale}
    largest = max(
        numeric, key=lambda path: (path not in scales, numeric[path].ndim > 1, numeric[path].size), default=""
    )
    default = file.attrs.get("defaultVariableName")
    name = (wanted or (default if default in numeric else largest)).strip("/")
    table = chunk_table(file, name, place)
    data = file[name]
    dims, coords = _coordinates(data)
    folder = name.rpartition("/")[0]
    for other in _words(data.attrs.get("coordinates")):
        path = f"{folder}/{other}".strip("/")
        if path in numeric and numeric[path].nbytes <= _MAX_COORDINATE:
            sides, _ = _coordinates(numeric[path])
            if set(sides) <= set(dims):
                coords[other] = Coordinate(sides, numeric[path][()], _attributes(numeric[path]))
    attrs = _attributes(data)
    if "penstock_segy" in file.attrs:
        attrs["penstock_segy"] = json.loads(file.attrs["penstock_segy"])
    return {
        "table": table, "name": name.rpartition("/")[2], "dims": dims, "coords": coords, "attrs": attrs,
        "headers": _headers(file, folder),
    }  # fmt: skip


def _coordinates(data: Any) -> tuple[tuple[str, ...], dict[str, Coordinate]]:
    """Return the names of the dimensions and their coordinates from HDF5's dimension scales, which NetCDF-4 also
    uses.
    """
    dims: list[str] = []
    coords: dict[str, Coordinate] = {}
    for axis in range(data.ndim):
        scale = data.dims[axis][0] if len(data.dims[axis]) else None
        label = scale.name.rpartition("/")[2] if scale is not None else data.dims[axis].label
        dim = label or f"dim_{axis}"
        dims.append(dim if dim not in dims else f"{dim}_{axis}")
        # For a dimension without a coordinate, NetCDF-4 stores a scale without values.
        title = b"" if scale is None else np.bytes_(scale.attrs.get("NAME", b""))
        is_bare = title.startswith(b"This is a netCDF dimension but not a netCDF variable")
        if scale is not None and scale.dtype.kind in "iuf" and not is_bare and scale.shape == (data.shape[axis],):
            coords[dims[-1]] = Coordinate((dims[-1],), scale[()], _attributes(scale))
    return tuple(dims), coords


def _headers(file: Any, folder: str) -> Any:
    found = file.get(f"{folder}/headers_raw".strip("/"))
    order = file.attrs.get("penstock_segy")
    if found is None or order is None:
        return None
    from penstock.arrays.segy.header_fields import trace_dtype

    kind = trace_dtype(json.loads(order)["byte_order"], found.shape[-1])
    raw = found[()]
    return lambda key: np.ascontiguousarray(raw[key]).view(kind)[..., 0]


def _words(value: Any) -> list[str]:
    text = value.decode() if isinstance(value, bytes) else value
    return text.split() if isinstance(text, str) else []


def _attributes(node: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in node.attrs.items():
        if key in (
            "DIMENSION_LIST",
            "REFERENCE_LIST",
            "CLASS",
            "NAME",
            "DIMENSION_LABELS",
            "coordinates",
        ) or key.startswith("_Netcdf4"):
            continue
        if isinstance(value, bytes):
            kept[key] = value.decode(errors="replace")
        elif isinstance(value, np.ndarray | np.generic):
            kept[key] = value.tolist()
        elif isinstance(value, str | int | float):
            kept[key] = value
    return kept
