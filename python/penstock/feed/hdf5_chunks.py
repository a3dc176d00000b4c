# SPDX-License-Identifier: Apache-2.0
"""Reads the chunk tables of HDF5 datasets with h5py: shapes, filters and chunk offsets, but no samples."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import _native, env
from penstock.errors import ConfigError, Corrupt, PenstockError, Unsupported
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.feed.formats import Format

__all__ = ["chunk_table", "read", "with_file"]

T = TypeVar("T")

# Maximum number of chunks in all files. Each chunk takes about 100 bytes of memory while the dataset is open.
_MAX_CHUNKS = 1 << 22

# Read-ahead size in bytes. Chunk tables are mostly contiguous in the file, so a large read saves requests.
_READ_AHEAD = 256 << 10

# Exceptions that h5py raises for a damaged file. Different calls of h5py raise different classes.
_DAMAGE = (OSError, RuntimeError, KeyError, IndexError, TypeError, ValueError, ArithmeticError, MemoryError)


def read(source: _native.Source, declared: Format) -> Format:
    """Return the format with the chunk tables of all files of `source`.

    Raises:
        MissingPackage: h5py is not installed.
        ConfigError: A dataset is missing.
        Corrupt: A file is not HDF5, or the part that h5py reads is damaged; the message quotes h5py's message.
        Unsupported: The dataset does not contain plain numbers, or its layout is neither chunked nor contiguous.
    """
    require("format hdf5", "hdf5")
    objects = _native.Files(source.url, dict(env.read()))
    files = []
    left = _MAX_CHUNKS
    for entry in json.loads(source.manifest())["objects"]:
        if "key" not in entry:
            raise Unsupported("HDF5 files with names that are not UTF-8 are not supported", where=source.url)
        place = source.url + entry["key"]
        names = declared.facts["datasets"]
        arrays = with_file(objects, entry, place, partial(_tables, names, place))
        left -= sum(len(array["chunks"]) for array in arrays)
        if left < 0:
            raise Unsupported(f"{place}: more than {_MAX_CHUNKS:,} chunks are not supported", where=place)
        files.append({"key": entry["key"], "size": entry["size"], "arrays": arrays})
    return replace(declared, facts={**declared.facts, "files": files})


def _tables(names: list[str], place: str, file: Any) -> list[dict[str, Any]]:
    return [chunk_table(file, name, place) for name in names]


def with_file(files: _native.Files, entry: dict[str, Any], place: str, work: Callable[[Any], T]) -> T:
    """Open an object as an `h5py.File`, and return the result of `work` on it.

    Args:
        entry: Object of a listing: `key`, `size` and, if it has one, `version`.
        place: URL of the object, for error messages.

    Raises:
        Corrupt: The object is not HDF5, or the part that h5py reads is damaged; the message quotes h5py's message.
        Unsupported: The file has a user block.
    """
    import h5py  # type: ignore[import-untyped]

    content = _Object(files, entry)
    failed: PenstockError | None = None
    with io.BufferedReader(content, _READ_AHEAD) as stream:
        try:
            with h5py.File(stream, "r") as file:
                if file.userblock_size:
                    raise Unsupported(
                        f"{place}: a user block of {file.userblock_size:,} bytes before the HDF5 file (as MATLAB "
                        "writes it) is not supported",
                        where=place,
                        hint="remove the user block: h5unjam -i OLD -o NEW",
                    )
                return work(file)
        except PenstockError as error:
            failed = error
        except _DAMAGE as error:
            # If the store failed, h5py raises another error, so raise the store's error instead.
            failed = content.error or Corrupt(
                f"{place} cannot be read as HDF5: {type(error).__name__}: {error}",
                where=place,
                hint="download the object again, or compare it with its source",
            )
    # Raise here, so that the error has no context. An uncaught error keeps the frames of its context alive until exit.
    # The frames of h5py contain handles, which HDF5 would then free after Python has ended, and crash.
    failed.__context__ = None
    raise failed.with_traceback(None)


class _Object(io.RawIOBase):
    """A listed object at its pinned version, as a seekable file for h5py."""

    def __init__(self, files: _native.Files, entry: dict[str, Any]) -> None:
        self._files, self._entry, self._at = files, entry, 0
        self.error: PenstockError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry["size"]}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, into: Any) -> int:
        count: int = max(0, min(len(into), self._entry["size"] - self._at))
        if count:
            ranges = [(self._at, count)]
            try:
                (found,) = self._files.read(self._entry["key"].encode(), ranges, version=self._entry.get("version"))
            except PenstockError as error:
                self.error = error
                raise
            into[:count] = found
            self._at += count
        return count


def chunk_table(file: Any, name: str, place: str) -> dict[str, Any]:
    """Return the chunk table of the dataset `name` in an open `h5py.File`: chunk positions, filters, fill value and
    type.

    Raises:
        ConfigError: The dataset does not exist.
        Unsupported: The dataset does not contain plain numbers, or its layout is neither chunked nor contiguous.
    """
    import h5py

    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        known: list[str] = []
        file.visititems(lambda path, node: known.append(path) if isinstance(node, h5py.Dataset) else None)
        raise ConfigError(
            f"format: {place} contains no dataset `{name}`, only `{'`, `'.join(known[:12])}`",
            where="format",
            hint="name one of these: penstock.formats.hdf5(NAME)",
        )
    kind = found.dtype
    dtype = kind.newbyteorder("=").name
    if kind.kind not in "iufb" or kind.subdtype is not None or kind.itemsize > 8:
        raise Unsupported(
            f"{place}: `{name}` contains {kind}, not plain numbers",
            where=place,
            hint="name other datasets, or write the numbers as separate datasets",
        )
    plist, space = found.id.get_create_plist(), found.id
    array: dict[str, Any] = {
        "dtype": dtype,
        "big_endian": kind.newbyteorder("=") != kind and kind.itemsize > 1,
        "shape": list(found.shape or ()),
        "fill": _fill(h5py, plist, found),
        "chunks": [],
    }
    layout = plist.get_layout()
    is_external = layout == h5py.h5d.CONTIGUOUS and plist.get_external_count() > 0
    if layout == h5py.h5d.CONTIGUOUS and not is_external:
        return {**array, "offset": space.get_offset()}
    if layout != h5py.h5d.CHUNKED:
        names = {h5py.h5d.COMPACT: "compact", h5py.h5d.VIRTUAL: "virtual"}
        kind_of_layout = "external" if is_external else names.get(layout, "unknown")
        raise Unsupported(
            f"{place}: the {kind_of_layout} layout of `{name}` is not supported",
            where=place,
            hint="write the dataset again, contiguous or chunked: new.create_dataset(NAME, data=old[NAME][:])",
        )
    filters = [plist.get_filter(at) for at in range(plist.get_nfilters())]
    chunks = found.chunks
    grid = [-(-side // chunk) for side, chunk in zip(found.shape, chunks, strict=True)]
    table = []

    def note(info: Any) -> None:
        number = 0
        for start, chunk, side in zip(info.chunk_offset, chunks, grid, strict=True):
            number = number * side + start // chunk
        table.append([number, info.byte_offset, info.size, info.filter_mask])

    space.chunk_iter(note)
    return {
        **array,
        "chunk_shape": list(chunks),
        "filters": [[number, list(values)] for number, _, values, _ in filters],
        "chunks": sorted(table),
    }


def _fill(h5py: Any, plist: Any, found: Any) -> list[int]:
    """Return the fill value as little-endian bytes. The fill value is zero if the file does not define one; for
    example, in files of HDF5 1.4.
    """
    if plist.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        return [0] * found.dtype.itemsize
    return list(found.fillvalue.astype(found.dtype.newbyteorder("<")).tobytes())
