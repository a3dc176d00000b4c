# SPDX-License-Identifier: Apache-2.0
"""SEG-Y destination of a conversion: writes each trace to its position in the file, and restores the original bytes.

Blocks are written in any order to a temporary file beside the destination, which gets its final name when it is
complete. A journal lists the finished blocks, so that a killed conversion can be resumed. For an object store, the file
is first written on this machine (in `TMPDIR`), and then uploaded in parts.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.convert.sending import send
from penstock.atomic_file import PART_PREFIX
from penstock.errors import Bug, Mismatch, PreconditionFailed, SystemFault
from penstock.ownership import remove_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.arrays.convert.source import SegyFacts, Source
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["SegyDestination", "encode_block"]


def encode_block(
    layout: Mapping[str, Any],
    numbers: np.ndarray[Any, Any],
    headers: np.ndarray[Any, Any],
    samples: np.ndarray[Any, Any],
    exceptions: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Encode traces for storage, as uint8 [traces, trace_bytes].

    Args:
        numbers: Number of each trace in file order, ascending.
        exceptions: IBM words that replace samples.
    """
    out = np.empty((len(numbers), layout["trace_bytes"]), dtype=np.uint8)
    _native.encode_traces(
        layout["format"], layout["byte_order"], np.ascontiguousarray(headers).reshape(-1),
        np.ascontiguousarray(samples).reshape(-1).view(np.uint8), out.reshape(-1), header_bytes=layout["header_bytes"],
    )  # fmt: skip
    if len(exceptions):
        rows = np.searchsorted(numbers, exceptions["trace"].astype(np.int64))
        words = out[:, layout["header_bytes"] :].view(">u4" if layout["byte_order"] == "big" else "<u4")
        words[rows, exceptions["sample"]] = exceptions["word"]
    return out


class SegyDestination:
    """SEG-Y destination of a conversion; see the module."""

    def __init__(self, location: Location, source: Source, facts: SegyFacts) -> None:
        self.location, self._source, self._facts = location, source, facts
        folder = location.path.parent if location.is_local else Path(tempfile.gettempdir())
        name = hashlib.sha256(location.url.encode(errors="surrogateescape")).hexdigest()[:16]
        self._part = folder / f"{PART_PREFIX}{name}.sgy"
        self._journal = self._part.with_suffix(".journal")
        self._file = -1
        self._log: Any = None

    def prepare(self, plan: str) -> bool:
        """Create the file with its full size, or resume an existing file of the same plan.

        Raises:
            Mismatch: The destination exists.
            SystemFault: The file cannot be created.
        """
        if self.location.entry() is not None:
            raise Mismatch(
                f"{self.location.url} already exists",
                where=self.location.url,
                hint="choose another destination, or delete it first",
            )
        layout = self._facts.layout
        try:
            lines = self._journal.read_text().splitlines() if self._journal.exists() and self._part.exists() else []
            is_ours = bool(lines) and lines[0] == _line(plan)
            self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | (0 if is_ours else os.O_TRUNC), 0o666)
            os.truncate(self._file, layout["size"])
            self._log = self._journal.open("a" if is_ours else "w", encoding="ascii")
            self._known = {tuple(int(part) for part in line.split(".")) for line in lines[1:]} if is_ours else set()
            if not is_ours:
                self._log.write(_line(plan) + "\n")
                self._log.flush()
        except OSError as error:
            raise SystemFault(f"{self._part}: {error.strerror}", where=str(self._part)) from None
        except ValueError:
            raise SystemFault(
                f"{self._journal} is damaged", where=str(self._journal), hint=f"delete this file: rm {self._journal}"
            ) from None
        return False

    def done(self) -> set[tuple[int, ...]]:
        """Return the finished blocks."""
        return set(self._known)

    def write(
        self,
        cell: tuple[int, ...],  # noqa: ARG002 - one signature for all destinations
        box: Box,
        samples: np.ndarray[Any, Any],
        headers: np.ndarray[Any, Any] | None,
        exceptions: np.ndarray[Any, Any],
    ) -> int:
        """Write the traces of a block. Returns the number of bytes that were written."""
        if headers is None:
            raise Bug("no trace headers were given for a SEG-Y file")
        numbers = self._facts.trace_index[tuple(slice(*side) for side in box[:-1])].reshape(-1)
        there = np.flatnonzero(numbers >= 0)
        order = there[np.argsort(numbers[there], kind="stable")]
        header_rows, rows = headers.reshape(len(numbers), -1), samples.reshape(len(numbers), -1)
        if len(order) < len(numbers) or (np.diff(order) != 1).any():
            numbers, header_rows, rows = numbers[order], header_rows[order], rows[order]
        layout = self._facts.layout
        if len(exceptions):
            self._put(numbers, encode_block(layout, numbers, header_rows, rows, exceptions))
        else:
            _native.write_traces(
                self._file, str(self._part), layout["format"], layout["byte_order"],
                np.ascontiguousarray(header_rows).reshape(-1), np.ascontiguousarray(rows).reshape(-1).view(np.uint8),
                np.ascontiguousarray(numbers, dtype=np.int64), first_trace=layout["first_trace"],
                header_bytes=layout["header_bytes"],
            )  # fmt: skip
        return len(numbers) * int(layout["trace_bytes"])

    def mark(self, cell: tuple[int, ...]) -> None:
        """Record a finished block in the journal, after the bytes of the block are synced to disk."""
        os.fdatasync(self._file)
        self._log.write(".".join(map(str, cell)) + "\n")
        self._log.flush()

    def _put(self, numbers: np.ndarray[Any, Any], block: np.ndarray[Any, Any]) -> None:
        layout = self._facts.layout
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        for rows in np.split(np.arange(len(numbers)), cuts):
            if not len(rows):
                continue
            data = memoryview(block[rows[0] : rows[-1] + 1].reshape(-1).data)
            at = layout["first_trace"] + int(numbers[rows[0]]) * layout["trace_bytes"]
            self._write_at(data, at)

    def _write_at(self, data: memoryview, at: int) -> None:
        try:
            while data:
                count = os.pwrite(self._file, data, at)
                data, at = data[count:], at + count
        except OSError as error:
            raise SystemFault(f"{self._part}: {error.strerror}", where=str(self._part)) from None

    def finish(self) -> None:
        """Write the data that is not in blocks, and rename or upload the file.

        Raises:
            Mismatch: Another process has created a file with this name during the conversion.
        """
        facts = self._facts
        self._write_at(memoryview(facts.file_header.tobytes()), 0)
        if len(facts.trailer):
            self._write_at(memoryview(facts.trailer.tobytes()), facts.layout["size"] - len(facts.trailer))
        if len(facts.duplicate_index):
            headers, samples, exceptions = self._source.duplicates()
            self._put(
                facts.duplicate_index, encode_block(facts.layout, facts.duplicate_index, headers, samples, exceptions)
            )
        os.fsync(self._file)
        taken = Mismatch(
            f"{self.location.url} was created by another process during the conversion", where=self.location.url
        )
        if self.location.is_local:
            try:
                self.location.path.hardlink_to(self._part)
            except FileExistsError:
                raise taken from None
            except OSError as error:
                raise SystemFault(f"{self.location.url}: {error.strerror}", where=self.location.url) from None
        else:
            try:
                send(self._part, self.location)
            except PreconditionFailed:
                raise taken from None
        remove_file(self._part)
        remove_file(self._journal)

    def close(self) -> None:
        """Close the files without deleting them, so that the conversion can be resumed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._log is not None:
            self._log.close()


def _line(plan: str) -> str:
    return hashlib.sha256(plan.encode()).hexdigest()
