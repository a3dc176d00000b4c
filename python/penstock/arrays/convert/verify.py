# SPDX-License-Identifier: Apache-2.0
"""Certifies a conversion from SEG-Y: converts the target back, and compares the result with the source."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.convert.segy_destination import encode_block
from penstock.arrays.convert.source import SegyFacts, Source, open_source
from penstock.arrays.convert.zarr_destination import STATE
from penstock.arrays.convert.zfp import ErrorSum, lossy_of
from penstock.arrays.location import Location
from penstock.arrays.opening import kind_of
from penstock.arrays.segy.reader import SegyFile
from penstock.errors import NotFound, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Certificate", "verify"]

_PIECE_BYTES = 16 << 20
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Certificate:
    """Result of `verify`. Digests are SHA-256, in hexadecimal."""

    source: str
    source_bytes: int
    source_sha256: str
    target: str
    target_objects: int
    target_bytes: int
    target_sha256: str
    """Digest of the lines `SHA-256  NAME` of the target's objects, sorted by name."""
    round_trip_sha256: str
    """Digest of the SEG-Y file that the reverse conversion produces."""
    is_identical: bool
    first_difference: int | None
    """Offset of the first byte at which the result of the reverse conversion differs from the source."""
    lossy: dict[str, Any] | None = None
    """Errors of a lossy volume, which is never certified; None for a lossless volume. Contains codec and setting, the
    measured `max_error` and `rms_error` against the source, the number of compared `samples`, and
    `headers_are_identical`.
    """

    def to_json(self) -> str:
        """Return the certificate as one line of JSON."""
        return json.dumps(asdict(self))


def verify(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    timeout_s: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> Certificate:
    """Convert `target` back to SEG-Y in memory, and compare the result with the SEG-Y file `source`, byte by byte.

    Reads every byte of both volumes, with memory for only a few blocks of 64 MiB.

    Args:
        progress: Function that is called with the number of compared bytes and the total number.

    Raises:
        NotFound: The source or the target does not exist.
        Unsupported: The source is not SEG-Y, or the target has no trace headers.
    """
    from_, to = Location(os.fspath(source), timeout_s), Location(os.fspath(target), timeout_s)
    if kind_of(from_) != "segy":
        raise Unsupported(f"{from_.url}: a certificate requires a SEG-Y source")
    volume = open_source(to)
    if volume.segy is None:
        raise Unsupported(f"{to.url}: a certificate requires trace headers, but the volume has none")
    entry = from_.entry()
    if entry is None:
        raise NotFound(f"{from_.url} does not exist", where=from_.url)
    content = _Pieces(from_, entry.size, entry.version)
    there, back = hashlib.sha256(), hashlib.sha256()
    at, differs = 0, None
    stated = lossy_of(volume.attrs)
    loss = None if stated is None else _Loss(from_, volume.segy)
    for piece in _round_trip(volume, volume.segy, loss):
        other = content.take(at, len(piece))
        back.update(piece)
        there.update(other)
        if differs is None and other != piece:
            common = min(len(other), len(piece))
            wrong = np.flatnonzero(
                np.frombuffer(other[:common], dtype=np.uint8) != np.frombuffer(piece[:common], dtype=np.uint8)
            )
            differs = at + (int(wrong[0]) if len(wrong) else common)
        at += len(piece)
        if progress is not None:
            progress(at, entry.size)
    while rest := content.take(at, _PIECE_BYTES):
        differs = at if differs is None else differs
        there.update(rest)
        at += len(rest)
    objects, size, digest = _target_digest(to)
    return Certificate(
        from_.url, entry.size, there.hexdigest(), to.url, objects, size, digest, back.hexdigest(),
        differs is None and there.digest() == back.digest() and stated is None, differs,
        None if stated is None or loss is None else stated | loss.describe(),
    )  # fmt: skip


class _Loss:
    """Measures the differences of a lossy volume from its source, trace by trace."""

    def __init__(self, source: Location, facts: SegyFacts) -> None:
        layout = facts.layout
        self._file = SegyFile(
            source,
            format=layout["format"],
            byte_order=layout["byte_order"],
            samples=layout["samples"],
            allow_trailing=True,
        )
        self._error, self._is_same = ErrorSum(), True

    def count(
        self, numbers: np.ndarray[Any, Any], headers: np.ndarray[Any, Any], samples: np.ndarray[Any, Any]
    ) -> None:
        """Compare traces with the same traces of the source. The arrays are headers, [n, header_bytes], and samples,
        [n, samples].
        """
        numbers = numbers[numbers < self._file.traces]
        there, its = np.empty_like(headers[: len(numbers)]), np.empty_like(samples[: len(numbers)])
        self._file.read(numbers, 0, self._file.samples, headers=there, samples=its)
        self._is_same = self._is_same and np.array_equal(there, headers[: len(numbers)])
        self._error.count(its, samples[: len(numbers)])

    def describe(self) -> dict[str, Any]:
        return {**self._error.describe(), "headers_are_identical": self._is_same}


class _Pieces:
    """Reads an object sequentially."""

    def __init__(self, location: Location, size: int, version: str | None) -> None:
        self._location, self._size, self._version = location, size, version

    def take(self, at: int, count: int) -> bytes:
        parts = []
        while count and at < self._size:
            part = self._location.read_range(at, min(count, _PIECE_BYTES), self._version)
            parts.append(part)
            at, count = at + len(part), count - len(part)
        return b"".join(parts)


def _round_trip(volume: Source, facts: SegyFacts, loss: _Loss | None) -> Iterator[bytes]:
    """Yield the SEG-Y file that the reverse conversion produces, in sequential pieces of about one block."""
    layout = facts.layout
    yield facts.file_header.tobytes()
    count, rows = layout["traces"], facts.trace_index.reshape(-1)
    place = np.full(count, -1, dtype=np.int64)
    there = np.flatnonzero(rows >= 0)
    place[rows[there]] = there
    extra = volume.duplicates() if len(facts.duplicate_index) else None
    per_block = max(1, _BLOCK_BYTES // layout["trace_bytes"])
    shape = facts.trace_index.shape
    chunk = max(1, prod(shape[1:]))
    start = 0
    while start < count:
        end = min(count, start + per_block)
        numbers = np.arange(start, end)
        places = place[start:end]
        gridded = places >= 0
        headers = np.empty((len(numbers), facts.header_bytes), dtype=np.uint8)
        samples = np.empty((len(numbers), volume.shape[-1]), dtype=volume.dtype)
        words = []
        if gridded.any():
            # Read boxes that contain these traces. A box consists of whole rows along the first dimension.
            firsts = np.unique(places[gridded] // chunk)
            for low, high in _runs(firsts, max(1, per_block // chunk)):
                box = ((int(low), int(high)), *[(0, side) for side in shape[1:]], (0, volume.shape[-1]))
                box_headers = np.empty((high - low, *shape[1:], facts.header_bytes), dtype=np.uint8)
                box_samples, found = volume.read(box, box_headers)
                mine = np.flatnonzero(gridded & (places // chunk >= low) & (places // chunk < high))
                at = places[mine] - low * chunk
                headers[mine] = box_headers.reshape(-1, facts.header_bytes)[at]
                samples[mine] = box_samples.reshape(-1, volume.shape[-1])[at]
                words.append(found[(found["trace"] >= start) & (found["trace"] < end)])
        if extra is not None and not gridded.all():
            mine = np.flatnonzero(~gridded)
            at = np.searchsorted(facts.duplicate_index, numbers[mine])
            headers[mine], samples[mine] = extra[0][at], extra[1][at]
            words.append(extra[2][(extra[2]["trace"] >= start) & (extra[2]["trace"] < end)])
        exceptions = np.concatenate(words) if words else extra[2][:0] if extra is not None else np.empty(0)
        if loss is not None:
            loss.count(numbers, headers, samples)
        yield encode_block(layout, numbers, headers, samples, exceptions).tobytes()
        start = end
    yield facts.trailer.tobytes()


def _runs(firsts: np.ndarray[Any, Any], most: int) -> Iterator[tuple[int, int]]:
    """Split ascending numbers into groups of at most `most` consecutive numbers."""
    for part in np.split(firsts, np.flatnonzero(np.diff(firsts) != 1) + 1):
        for low in range(int(part[0]), int(part[-1]) + 1, most):
            yield low, min(low + most, int(part[-1]) + 1)


def _target_digest(location: Location) -> tuple[int, int, str]:
    entry = location.entry()
    entries = [entry] if entry is not None else [each for each in location.list() if STATE not in each.name.split("/")]
    total, whole = 0, hashlib.sha256()
    for each in sorted(entries, key=lambda found: found.name):
        place = location if entry is not None else location / each.name
        digest = hashlib.sha256()
        for at in range(0, each.size, _PIECE_BYTES):
            digest.update(place.read_range(at, min(_PIECE_BYTES, each.size - at), each.version))
        total += each.size
        whole.update(f"{digest.hexdigest()}  {each.name}\n".encode(errors="surrogateescape"))
    return len(entries), total, whole.hexdigest()
