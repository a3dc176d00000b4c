# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file appears under its name only when it is complete."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from penstock.ownership import remove_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PART_PREFIX", "atomic_file"]

PART_PREFIX = ".penstock-part-"
"""Prefix of temporary names. Listings skip names with this prefix, because a killed process can leave such files."""


@contextmanager
def atomic_file(path: Path, *, durable: bool = True, replaces: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that appears as `path` at the end of the block, but only if the block does not raise.

    Args:
        durable: Sync the file to disk before it appears.
        replaces: Whether to replace an existing file; otherwise, an existing file raises FileExistsError.

    Raises:
        FileExistsError: The file exists, and `replaces` is false.
        OSError: The file cannot be written.
    """
    part = path.with_name(f"{PART_PREFIX}{os.urandom(8).hex()}")
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            if durable:
                os.fsync(out.fileno())
        if replaces:
            part.replace(path)
        else:
            path.hardlink_to(part)
    finally:
        remove_file(part)
