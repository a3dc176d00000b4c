# SPDX-License-Identifier: Apache-2.0
"""HDF5 destination of a conversion: writes samples, coordinates (as dimension scales) and SEG-Y headers with h5py.

Only one process writes the file. A killed conversion cannot be resumed, because an incomplete HDF5 file can be
inconsistent. The file is written beside the destination (for an object store, in `TMPDIR`), and gets its final name
when it is complete.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.convert.sending import send
from penstock.arrays.convert.source import fill_of
from penstock.arrays.segy.reader import EXCEPTION
from penstock.atomic_file import PART_PREFIX
from penstock.errors import ConfigError, Mismatch, NoSpace, PreconditionFailed, SystemFault
from penstock.extras import require
from penstock.ownership import remove_file

if TYPE_CHECKING:
    from penstock.arrays.convert.chunking import Chunking
    from penstock.arrays.convert.source import Source
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["CODECS", "Hdf5Destination"]

CODECS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip", "compression_opts": 4, "shuffle": True},
}


class Hdf5Destination:
    """HDF5 destination of a conversion; see the module."""

    def __init__(self, location: Location, source: Source, chunking: Chunking | None, codec: str) -> None:
        require("HDF5 files", "hdf5")
        if codec not in CODECS:
            raise ConfigError(f"codec: HDF5 does not support `{codec}`, only {', '.join(CODECS)}", where="codec")
        self.location, self._source, self._chunking, self._codec = location, source, chunking, codec
        folder = location.path.parent if location.is_local else Path(tempfile.gettempdir())
        self._part = folder / f"{PART_PREFIX}{os.urandom(8).hex()}.h5"
        self._lock = threading.Lock()
        self._words: list[np.ndarray[Any, Any]] = []
        self._file: Any = None

    def prepare(self, plan: str) -> bool:  # noqa: ARG002 - nothing is resumed
        """Create the file and its datasets.

        Raises:
            Mismatch: The destination exists.
        """
        import h5py  # type: ignore[import-untyped]

        if self.location.entry() is not None:
            raise Mismatch(
                f"{self.location.url} already exists",
                where=self.location.url,
                hint="choose another destination, or delete it first",
            )
        source = self._source
        try:
            self._file = h5py.File(self._part, "x", libver="latest")
        except OSError as error:
            raise SystemFault(f"{self._part}: {error}", where=str(self._part)) from None
        options = dict(CODECS[self._codec])
        if self._chunking is not None:
            options["chunks"] = tuple(map(min, self._chunking.chunks, source.shape))
        data = self._file.create_dataset(
            source.name, source.shape, source.dtype, fillvalue=fill_of(source.dtype), **options
        )
        for key, value in source.attrs.items():
            if key not in ("penstock_segy", "kind", "coordinates"):
                data.attrs[key] = value if isinstance(value, str | int | float) else json.dumps(value)
        for name, coordinate in source.coords.items():
            made = self._file.create_dataset(name, data=coordinate.values)
            for key, value in coordinate.attrs.items():
                made.attrs[key] = value
            if coordinate.dims == (name,):
                made.make_scale(name)
        for dim in source.dims:
            if dim not in self._file:
                self._file.create_dataset(dim, data=np.arange(source.shape[source.dims.index(dim)])).make_scale(dim)
        extra = [name for name in source.coords if name not in source.dims]
        for name, dims in [(source.name, source.dims), *[(name, source.coords[name].dims) for name in extra]]:
            for axis, dim in enumerate(dims):
                self._file[name].dims[axis].label = dim
                self._file[name].dims[axis].attach_scale(self._file[dim])
        if extra:
            data.attrs["coordinates"] = " ".join(extra)
        if (segy := source.segy) is not None:
            shape = (*source.shape[:-1], segy.header_bytes)
            chunk = (*[min(64, side) for side in shape[:-1]], segy.header_bytes)
            self._file.create_dataset(
                "headers_raw", shape, np.uint8, chunks=chunk, compression="gzip", compression_opts=1
            )
            self._file["trace_index"] = segy.trace_index
            self._file["segy_file_header"] = segy.file_header
            if len(segy.trailer):
                self._file["segy_trailer"] = segy.trailer
        return False

    def done(self) -> set[tuple[int, ...]]:
        """Do nothing, because a conversion to HDF5 cannot be resumed."""
        return set()

    def write(
        self,
        cell: tuple[int, ...],
        box: Box,
        samples: np.ndarray[Any, Any],
        headers: np.ndarray[Any, Any] | None,
        exceptions: np.ndarray[Any, Any],
    ) -> int:
        """Write a block. HDF5 allows one thread at a time."""
        place = tuple(slice(*side) for side in box)
        with self._lock:
            try:
                self._file[self._source.name][place] = samples
                if headers is not None and cell[-1] == 0:
                    self._file["headers_raw"][place[:-1]] = headers
            except OSError as error:
                kind = NoSpace if "No space left" in str(error) else SystemFault
                raise kind(f"{self._part}: {error}", where=str(self._part)) from None
            if len(exceptions):
                self._words.append(exceptions)
        return samples.nbytes

    def mark(self, cell: tuple[int, ...]) -> None:
        """Do nothing, because a conversion to HDF5 cannot be resumed."""

    def finish(self) -> None:
        """Write the data that is not in blocks, close the file, and rename or upload it.

        Raises:
            Mismatch: Another process has created a file with this name during the conversion.
        """
        kept = [
            name for name in ("headers_raw", "trace_index", "segy_file_header", "segy_trailer") if name in self._file
        ]
        if self._source.segy is not None:
            if len(self._source.segy.duplicate_index):
                headers, samples, exceptions = self._source.duplicates()
                self._words.append(exceptions)
                self._file["duplicate_headers"], self._file["duplicate_samples"] = headers, samples
                self._file["duplicate_index"] = self._source.segy.duplicate_index
                kept += ["duplicate_headers", "duplicate_samples", "duplicate_index"]
            if self._words:
                rows = np.sort(np.concatenate(self._words), order=["trace", "sample"])
                self._file["ibm_words"] = np.stack(
                    [rows[name].astype(np.int64) for name in EXCEPTION.names or ()], axis=1
                )
                kept.append("ibm_words")
            self._file.attrs["penstock_segy"] = json.dumps({**self._source.segy.layout, "arrays": kept})
        self._file.attrs["Conventions"] = "CF-1.11"
        self._file.attrs["defaultVariableName"] = self._source.name
        self._file.close()
        self._file = None
        taken = Mismatch(
            f"{self.location.url} was created by another process during the conversion", where=self.location.url
        )
        try:
            if self.location.is_local:
                self.location.path.hardlink_to(self._part)
            else:
                send(self._part, self.location)
        except (FileExistsError, PreconditionFailed):
            raise taken from None
        except OSError as error:
            raise SystemFault(f"{self.location.url}: {error}", where=self.location.url) from None

    def close(self) -> None:
        """Close and remove the temporary file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        remove_file(self._part)
