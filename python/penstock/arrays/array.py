# SPDX-License-Identifier: Apache-2.0
"""Lazy arrays on any store, with indexing as in NumPy, named dimensions, coordinates and read counters."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.indexing import select
from penstock.errors import Unsupported
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.arrays.backend import Backend

__all__ = ["Array", "Coordinate"]


@dataclass(frozen=True)
class Coordinate:
    """Coordinate: values along one or several dimensions, with the unit in `attrs["units"]`."""

    dims: tuple[str, ...]
    values: np.ndarray[Any, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Array:
    """A lazy array. Indexing reads the needed parts from the store and returns NumPy arrays.

    Attributes:
        name: Name of the variable.
        dims: Names of the dimensions.
        coords: Coordinates, as a mapping from their names.
        attrs: Attributes from the file.
        reopens: Function that opens the same array again, for example in another process. `open` sets this function.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        dims: tuple[str, ...],
        coords: Mapping[str, Coordinate],
        attrs: Mapping[str, Any],
        headers: Callable[[Any], np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self._backend = backend
        self.name, self.dims = name, dims
        self.coords, self.attrs = dict(coords), dict(attrs)
        self._headers = headers
        self._threads = len(os.sched_getaffinity(0))
        self.reopens: Callable[[], Array] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return self._backend.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        return self._backend.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of all elements in memory, in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of a chunk: the smallest part that can be read alone."""
        return self._backend.chunk_shape

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        sides = ", ".join(f"{dim}: {side:,}" for dim, side in zip(self.dims, self.shape, strict=True))
        return f"<penstock.arrays.Array {self.name} ({sides}) {self.dtype}>"

    def __getitem__(self, key: Any) -> Any:
        return self.read_many([key])[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:  # noqa: FBT001 - NumPy's protocol
        if copy is False:
            raise ValueError("copy=False is not supported, because reading an array from a store always creates a copy")
        whole: np.ndarray[Any, Any] = self[...]
        return whole if dtype is None else whole.astype(dtype)

    def read_many(self, keys: Sequence[Any]) -> list[Any]:
        """Read several indexes in one batch, in which each chunk is read and decoded once.

        Raises:
            IndexError: An index is out of bounds, or of a kind that is not supported.
            Corrupt: A chunk is damaged or truncated.
            Changed: The file was replaced since it was opened.
        """
        selections = [select(key, self.shape, self.chunks) for key in keys]
        boxes = [box for selection in selections for box in selection.boxes]
        parts = iter(self._backend.read(boxes, self._threads))
        results = []
        for selection in selections:
            whole = selection.assemble([next(parts) for _ in selection.boxes])
            # Copy each result, because a view would keep the whole batch in memory, and share memory with other
            # results.
            results.append(whole if np.ndim(whole) == 0 or len(boxes) == 1 else np.ascontiguousarray(whole))
        return results

    @property
    def has_headers(self) -> bool:
        """True if the array has trace headers, which `headers` returns."""
        return self._headers is not None

    def headers(self, key: Any = ...) -> np.ndarray[Any, Any]:
        """Return the trace headers at an index of the survey's grid, as a structured array with the fields of the SEG-Y
        standard.

        Raises:
            Unsupported: The file has no trace headers.
        """
        if self._headers is None:
            raise Unsupported(f"{self.name}: the file contains no trace headers")
        return self._headers(key)

    def stats(self) -> dict[str, int]:
        """Read counters since the array was opened.

        The counters are `requests`, `bytes_read` (from the store), `bytes_needed` (by the decoder), `bytes_returned`,
        `in_flight` (current requests) and `max_in_flight`.
        """
        return self._backend.stats()

    def to_dask(self, chunks: Any = None) -> Any:
        """Convert to a dask array. By default, a task reads one chunk, or several small chunks with a total size of
        about 64 MiB.

        Raises:
            MissingPackage: dask is not installed.
        """
        require("to_dask", "dask")
        import dask.array

        from_array: Any = dask.array.from_array
        return from_array(
            self,
            chunks=chunks or self._task_chunks(),
            name=False,
            asarray=False,
            fancy=False,
            meta=np.empty((0,) * self.ndim, self.dtype),
        )

    def to_xarray(self, chunks: Any = None) -> Any:
        """Convert to a lazy `xarray.DataArray` with the coordinates and attributes. `chunks` makes it a dask array.

        Raises:
            MissingPackage: xarray is not installed.
        """
        require("to_xarray", "xarray")
        import xarray
        from xarray.core import indexing

        data = indexing.LazilyIndexedArray(_lazy(self))
        coords = {name: (each.dims, each.values, dict(each.attrs)) for name, each in self.coords.items()}
        found = xarray.DataArray(xarray.Variable(self.dims, data), coords=coords, name=self.name, attrs=self.attrs)
        if chunks is None:
            return found
        wanted = dict(zip(self.dims, self._task_chunks(), strict=True)) if chunks in ("auto", {}) else chunks
        return found.chunk(wanted)

    def _task_chunks(self) -> tuple[int, ...]:
        """Return the chunk shape of a dask task: the chunk shape of the file, doubled along the last dimensions up to
        about 64 MiB.
        """
        sides = [min(chunk, side) or 1 for chunk, side in zip(self.chunks, self.shape, strict=True)]
        for axis in reversed(range(self.ndim)):
            while sides[axis] < self.shape[axis] and 2 * int(np.prod(sides)) * self.dtype.itemsize <= 64 << 20:
                sides[axis] = min(2 * sides[axis], self.shape[axis])
        return tuple(sides)

    def __reduce__(self) -> Any:
        if self.reopens is None:
            raise Unsupported("only arrays that penstock.arrays.open returned can be pickled")
        return self.reopens, ()


def _lazy(array: Array) -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class Lazy(BackendArray):
        """Lazy data for xarray. An index is read only when xarray needs its values."""

        shape, dtype = array.shape, array.dtype

        def __getitem__(self, key: Any) -> Any:
            support = indexing.IndexingSupport.OUTER_1VECTOR
            return indexing.explicit_indexing_adapter(key, self.shape, support, array.__getitem__)

    return Lazy()
