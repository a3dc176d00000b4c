# SPDX-License-Identifier: Apache-2.0
"""A seekable file over an object in a store, which reads byte ranges on demand. PyAV reads videos through it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock import _native

__all__ = ["RangedFile"]

_FIRST_READ = 64 << 10
"""Size of a read at a new position. Each sequential read after it is twice as large as the previous read, up to
`_LARGEST_READ`.
"""

_LARGEST_READ = 4 << 20

_MAX_KEPT = 32 << 20
"""Maximum number of bytes that are kept, in addition to the bytes that `prefetch` reads."""


class RangedFile:
    """Read-only file. Keeps the last 32 MiB that it has read, so that reading a header again needs no request."""

    def __init__(self, files: _native.Files, name: bytes, size: int, version: str | None) -> None:
        self._files, self._name, self._size, self._version = files, name, size, version
        self._at = 0
        self._next_read = _FIRST_READ
        self._kept: list[tuple[int, bytes]] = []
        """Pieces that were read, with their offsets: first the pieces of `prefetch`, then all other pieces from old to
        new.
        """
        self._prefetched = 0
        self._used: list[tuple[int, int]] = []

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges (start, end) together, and keep them."""
        pieces = self._pieces(ranges)
        self._kept[self._prefetched : self._prefetched] = pieces
        self._prefetched += len(pieces)

    def _pieces(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
        asked = _joined((start, min(end, self._size)) for start, end in ranges if start < min(end, self._size))
        if not asked:
            return []
        found = self._files.read(self._name, [(start, end - start) for start, end in asked], version=self._version)
        return [(start, data) for (start, _), data in zip(asked, found, strict=True)]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges that `read` has returned, joined and in ascending order."""
        return _joined(self._used)

    def read(self, count: int = -1) -> bytes:
        """Return `count` bytes, or fewer at the end of the object."""
        end = self._size if count < 0 else min(self._at + count, self._size)
        pieces, begin = [], self._at
        while self._at < end:
            found = self._find(self._at, end)
            if found is None:
                is_next = any(start + len(data) == self._at for start, data in self._kept)
                self._next_read = min(self._next_read * 2, _LARGEST_READ) if is_next else _FIRST_READ
                self._kept += self._pieces([(self._at, max(end, self._at + self._next_read))])
                while len(self._kept) > self._prefetched + 1 and sum(len(data) for _, data in self._kept) > _MAX_KEPT:
                    del self._kept[self._prefetched]
                found = self._find(self._at, end)
            if not found:
                break
            pieces.append(found)
            self._at += len(found)
        if self._used and self._used[-1][1] == begin:
            begin = self._used.pop()[0]
        self._used.append((begin, self._at))
        return b"".join(pieces)

    def _find(self, at: int, end: int) -> bytes | None:
        for start, data in reversed(self._kept):
            if start <= at < start + len(data):
                return data[at - start : end - start]
        return None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, as in `io.IOBase`."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seekable(self) -> bool:
        """Return True."""
        return True


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges (start, end) in ascending order. Ranges that touch or overlap are joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
