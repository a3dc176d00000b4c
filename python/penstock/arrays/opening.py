# SPDX-License-Identifier: Apache-2.0
"""Opens a volume of any kind: detects the kind of a file from its content, and returns an array."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.arrays import zarr_reader
from penstock.arrays.hdf5_reader import open_hdf5
from penstock.arrays.location import Location
from penstock.arrays.segy.reader import open_segy
from penstock.errors import ConfigError, NotFound, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.arrays.array import Array

__all__ = ["kind_of", "open"]

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SEGY_OPTIONS = ("map", "vertical", "format", "byte_order", "samples", "allow_trailing", "progress")


def open(  # noqa: A001 - the field's word
    url: str | os.PathLike[str],
    *,
    array: str | None = None,
    map: str | None = None,  # noqa: A002 - as on the command line
    vertical: str = "time",
    format: int | None = None,  # noqa: A002 - the standard's word
    byte_order: str | None = None,
    samples: int | None = None,
    allow_trailing: bool = False,
    progress: Callable[[int, int], None] | None = None,
    timeout_s: float = 600.0,
) -> Array:
    """Open a SEG-Y, HDF5, NetCDF-4, Zarr or MDIO volume on any store as a lazy array, which reads samples only when it
    is indexed.

    Args:
        url: A file, or the folder of a Zarr group or array. The kind is detected from the content.
        array: Name of the array in an HDF5 file or a Zarr group; by default the main or the largest array.
        map: SEG-Y: header fields that number the dimensions, such as `inline=189:i4,crossline=193:i4`; by default the
            geometry that fits the headers best.
        vertical: SEG-Y: name of the last dimension, `time` or `depth`.
        format, byte_order, samples: SEG-Y: values that replace wrong values of the binary header.
        allow_trailing: SEG-Y: accept bytes after the last whole trace.
        progress: SEG-Y: function that is called with the number of scanned traces and the total number.
        timeout_s: Time limit of each request, in seconds.

    Raises:
        NotFound: Nothing exists at the URL.
        Unsupported: The file is of another kind.
        Corrupt: The file is damaged, or its headers contradict each other. The message names the arguments with which
            it can be read.
    """
    location = Location(os.fspath(url), timeout_s)
    options = {
        "map": map, "vertical": vertical, "format": format, "byte_order": byte_order, "samples": samples,
        "allow_trailing": allow_trailing, "progress": progress,
    }  # fmt: skip
    kind = kind_of(location)
    if kind == "segy":
        if array is not None:
            raise ConfigError("array: not supported for SEG-Y files, which contain only one array", where="array")
        found = open_segy(location, **{**options, "vertical": vertical})  # type: ignore[arg-type]
    else:
        given = [name for name in _SEGY_OPTIONS if options[name] not in (None, False, "time")]
        if given and given != ["progress"]:
            raise ConfigError(f"{given[0]}: supported only for SEG-Y, but {location.url} is {kind}", where=given[0])
        found = (open_hdf5 if kind == "hdf5" else zarr_reader.open_zarr)(location, array=array)
    kept = {key: value for key, value in options.items() if key != "progress" and value is not None}
    again: dict[str, Any] = {**(kept if kind == "segy" else {}), "array": array, "timeout_s": timeout_s}
    found.reopens = partial(open, location.url, **again)
    found.attrs.setdefault("kind", kind)
    return found


def kind_of(location: Location) -> str:
    """Detect the kind of a volume: `segy`, `hdf5` or `zarr`.

    Raises:
        NotFound: Nothing exists at the URL.
        Unsupported: The file is of another kind.
    """
    entry = location.entry()
    if entry is None:
        if zarr_reader.find_node(location) is not None:
            return "zarr"
        if location.files.described(b"", most=1):
            raise Unsupported(f"{location.url}: the folder contains no Zarr metadata (zarr.json, .zgroup or .zarray)")
        raise NotFound(f"{location.url} does not exist", where=location.url)
    first = location.head(min(entry.size, 3600))
    if first.startswith(_HDF5):
        return "hdf5"
    if first.startswith(b"CDF"):
        raise Unsupported(
            f"{location.url}: NetCDF-3 is not supported",
            where=location.url,
            hint="convert it to NetCDF-4: nccopy -k nc4 OLD.nc NEW.nc",
        )
    if first.startswith(b"PK\x03\x04"):
        raise Unsupported(
            f"{location.url}: Zarr in a zip file is not supported",
            where=location.url,
            hint="unzip the file into a folder",
        )
    # SEG-Y has no signature. The SEG-Y reader checks the headers, and its errors explain which values are wrong.
    return "segy"
