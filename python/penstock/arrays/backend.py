# SPDX-License-Identifier: Apache-2.0
"""Backends of an `Array`: one class for each kind of file, which reads boxes from the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock import _native
    from penstock.arrays.indexing import Box

__all__ = ["Backend", "ChunkedBackend"]


class Backend(Protocol):
    """Interface that reads boxes of one array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element, in this machine's byte order."""

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of a chunk: the smallest part that can be read alone."""

    def read(self, boxes: Sequence[Box], threads: int) -> list[np.ndarray[Any, Any]]:
        """Read the boxes in one batch, and return their contents."""

    def stats(self) -> dict[str, int]:
        """Read counters since the array was opened."""


class ChunkedBackend:
    """Zarr and HDF5 arrays, decoded by the core."""

    def __init__(self, array: _native.ChunkedArray) -> None:
        self._array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self.chunk_shape = tuple(array.chunk_shape)

    def read(self, boxes: Sequence[Box], threads: int) -> list[np.ndarray[Any, Any]]:
        shapes = [tuple(end - start for start, end in box) for box in boxes]
        counts = [int(np.prod(shape)) for shape in shapes]
        flat = np.empty(sum(counts), dtype=self.dtype)
        self._array.read_many(boxes, flat.view(np.uint8), threads=threads)
        parts = np.split(flat, np.cumsum(counts)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def stats(self) -> dict[str, int]:
        return self._array.stats()
