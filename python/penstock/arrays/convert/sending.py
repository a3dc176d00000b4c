# SPDX-License-Identifier: Apache-2.0
"""Uploads a finished file to an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import _native

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.arrays.location import Location

__all__ = ["send"]

_PIECE_BYTES = 16 << 20


def send(path: Path, location: Location) -> None:
    """Upload a file to an object store in parts. The object must not exist.

    Raises:
        PreconditionFailed: The object exists.
    """
    size = path.stat().st_size
    writer = _native.ObjectWriter(
        location.folder, location.name, size, location.variables, create_only=True,
        timeout_s=max(location.timeout_s, size / 1e6),
    )  # fmt: skip
    try:
        with path.open("rb") as content:
            while data := content.read(_PIECE_BYTES):
                writer.write(data)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
