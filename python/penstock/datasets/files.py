# SPDX-License-Identifier: Apache-2.0
"""Writes the files of a generated dataset atomically, into a folder that contains nothing else."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.atomic_file import PART_PREFIX, atomic_file
from penstock.errors import ConfigError, Denied, NoSpace, PenstockError, SystemFault
from penstock.ownership import remove_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["prepare_folder", "write_atomically", "write_errors"]


def prepare_folder(out: Path, names: set[str]) -> None:
    """Create the folder, and remove partial files of a killed run.

    Raises:
        ConfigError: The folder contains files of other names.
        NoSpace, Denied, SystemFault: The folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = list(out.iterdir())
        strangers = sorted(p.name for p in found if p.name not in names and not _is_our_leftover(p.name))
        for leftover in found:
            # Remove nothing if the folder also contains files of other programs.
            if _is_our_leftover(leftover.name) and not strangers:
                remove_file(leftover)
    except OSError as error:
        raise _refused(error, out) from error
    if strangers:
        raise ConfigError(
            f"{out} contains {len(strangers)} other files ({strangers[0]}, ...)",
            hint="choose an empty folder, because a dataset's folder must contain only its samples",
        )


def _is_our_leftover(name: str) -> bool:
    return name.startswith(PART_PREFIX)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, so that a killed run leaves no partial sample. The file is not synced to disk, because
    the data can be generated again from the seed.

    Raises:
        NoSpace, Denied, SystemFault: The file cannot be written.
    """
    with write_errors(path), atomic_file(path, durable=False) as out:
        out.write(data)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the `with` block to NoSpace, Denied or SystemFault for `path`."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise _refused(error, path) from error


def _refused(error: OSError, path: Path) -> PenstockError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"{path} cannot be written: no space left on the disk",
            where=str(path),
            hint="free some space, or choose another folder",
        )
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Denied(
            f"{path} cannot be written: {error.strerror}",
            where=str(path),
            hint="check the owner and mode of the folder",
        )
    return SystemFault(f"{path}: {error.strerror}", where=str(path))
