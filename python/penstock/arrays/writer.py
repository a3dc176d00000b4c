# SPDX-License-Identifier: Apache-2.0
"""Lets many processes write one Zarr array at the same time. Each write covers whole objects, so writes of different
boxes never overwrite each other.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.convert.chunking import choose
from penstock.arrays.convert.zarr_destination import byte_box
from penstock.arrays.convert.zarr_metadata import array_document, parse_codec
from penstock.arrays.location import Location
from penstock.errors import ConfigError, Corrupt, Mismatch, NotFound, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.arrays.indexing import Box

__all__ = ["ArrayWriter", "create_array", "open_writer"]


class ArrayWriter:
    """A Zarr array, open for writing. `writer[inlines, crosslines] = values` writes whole objects (shards, or chunks).

    A box that covers only a part of an object is rejected, because two processes that write different parts of an
    object would overwrite each other. A writer can be pickled. `dask.array.store(x, writer, lock=False)` is safe,
    because it raises an error if dask's chunks are not whole objects.
    """

    def __init__(self, location: Location, document: Mapping[str, Any]) -> None:
        self._location, self._document = location, dict(document)
        self.shape: tuple[int, ...] = tuple(document["shape"])
        self.dtype = np.dtype(document["data_type"])
        self.objects: tuple[int, ...] = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
        self._core = _native.ZarrWriter(
            location.url, json.dumps(document), location.variables, timeout_s=location.timeout_s
        )

    def __reduce__(self) -> Any:
        return open_writer, (self._location.url, self._location.timeout_s)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def regions(self, rank: int = 0, world: int = 1) -> Iterator[tuple[slice, ...]]:
        """Return the boxes of whole objects that this rank of `world` should write. Together, the ranks cover the array
        once.
        """
        grid = [range(0, side, part) for side, part in zip(self.shape, self.objects, strict=True)]
        for number, starts in enumerate(product(*grid)):
            if number % world == rank:
                yield tuple(
                    slice(start, min(start + part, side))
                    for start, part, side in zip(starts, self.objects, self.shape, strict=True)
                )

    def __setitem__(self, key: Any, values: Any) -> None:
        box = self._box(key)
        sides = tuple(end - start for start, end in box)
        # Python numbers are converted to the array's type. Other values must have a type that converts to the array's
        # type without loss.
        values = np.asarray(values) if not isinstance(values, int | float) else np.asarray(self.dtype.type(values))
        values = np.broadcast_to(values, sides)
        if not np.can_cast(values.dtype, self.dtype, "safe"):
            raise ConfigError(
                f"values: {values.dtype} cannot be converted to {self.dtype} without loss", where="values"
            )
        cells = [range(start // part, -(-end // part)) for (start, end), part in zip(box, self.objects, strict=True)]
        threads = min(len(os.sched_getaffinity(0)), max(1, int(np.prod([len(each) for each in cells]))))
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(self._write, cell, box, values) for cell in product(*cells)]:
                done.result()

    def _write(self, cell: tuple[int, ...], box: Box, values: np.ndarray[Any, Any]) -> None:
        within = tuple(
            slice(at * part - start, min((at + 1) * part, end) - start)
            for at, part, (start, end) in zip(cell, self.objects, box, strict=True)
        )
        self._core.write(cell, byte_box(values[within].astype(self.dtype, copy=False)))

    def _box(self, key: Any) -> Box:
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys = (*keys[:at], *[slice(None)] * (self.ndim - len(keys) + 1), *keys[at + 1 :])
        keys = (*keys, *[slice(None)] * (self.ndim - len(keys)))
        if len(keys) != self.ndim or not all(isinstance(each, slice) for each in keys):
            raise IndexError(f"box: must be {self.ndim} slices (got {len(keys)} indices)")
        box = []
        for axis, (each, side, part) in enumerate(zip(keys, self.shape, self.objects, strict=True)):
            start, end, step = each.indices(side)
            if step != 1:
                raise IndexError(f"axis {axis}: the slice of a box cannot have a step (got {step})")
            end = max(start, end)
            if start % part or (end % part and end != side):
                raise ConfigError(
                    f"axis {axis}: {start}:{end} starts or ends inside an object of length {part}, so writes of other "
                    "processes could be lost",
                    where="box",
                    hint=f"write boxes that begin and end at multiples of {', '.join(map(str, self.objects))} (see "
                    "regions())",
                )
            box.append((start, end))
        return tuple(box)


def create_array(
    url: str | os.PathLike[str],
    shape: Sequence[int],
    dtype: Any,
    *,
    dims: Sequence[str] | None = None,
    chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    access: Sequence[str] = ("balanced",),
    codec: str = "lz4",
    fill: Any = 0,
    attrs: Mapping[str, Any] | None = None,
    timeout_s: float = 600.0,
) -> ArrayWriter:
    """Create a Zarr array (version 3, in shards of about 64 MiB) and open it for writes.

    Args:
        access: Access pattern for which chunks and shards are chosen if they are not given; see
            `penstock array convert`.

    Raises:
        Mismatch: The array exists.
        ConfigError: The chunks, shards or codec are invalid.
    """
    location, kind = Location(os.fspath(url), timeout_s), np.dtype(dtype)
    names = tuple(dims or [f"dim_{axis}" for axis in range(len(shape))])
    chosen = choose(names, shape, kind.itemsize, access, chunks=chunks, shards=shards)
    document = array_document(
        shape, kind, names, chunks=chosen.chunks, shards=chosen.shards, codecs=parse_codec(codec, kind.itemsize), fill=fill,
        attrs=attrs,
    )  # fmt: skip
    writer = ArrayWriter(location, document)
    try:
        location.write("zarr.json", json.dumps(document).encode(), create_only=True)
    except PreconditionFailed:
        raise Mismatch(
            f"{location.url} already exists", where=location.url, hint="open it with open_writer, or choose another URL"
        ) from None
    return writer


def open_writer(url: str | os.PathLike[str], timeout_s: float = 600.0) -> ArrayWriter:
    """Open a Zarr array of version 3 for writing.

    Raises:
        NotFound: The array does not exist.
        Corrupt: The metadata is damaged.
    """
    location = Location(os.fspath(url), timeout_s)
    found = location.read("zarr.json")
    if found is None:
        raise NotFound(f"{location.url} contains no zarr.json", where=location.url)
    try:
        return ArrayWriter(location, json.loads(found))
    except KeyError as error:
        raise Corrupt(f"{location.url}/zarr.json: the key {error} is missing", where=location.url) from None
    except (ValueError, TypeError) as error:
        raise Corrupt(f"{location.url}/zarr.json: {error}", where=location.url) from None
