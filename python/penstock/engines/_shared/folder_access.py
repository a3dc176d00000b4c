# SPDX-License-Identifier: Apache-2.0
"""Access to objects that are plain files below a folder. An object's name is its path relative to the folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.atomic_file import PART_PREFIX, atomic_file
from penstock.engines._shared.agent_client import AgentManagedEngine
from penstock.errors import KeyRefused, NoSpace, NotFound
from penstock.ownership import NotOwned, remove_below
from penstock.protocols import Located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Pool

__all__ = ["FolderAccess", "SharedFolderEngine", "validated_name"]


def validated_name(name: str) -> str:
    """Check the name of an object, and return it.

    Raises:
        KeyRefused: The name is empty, absolute, or leads out of the pool's folder.
    """
    if (
        not name
        or name.startswith("/")
        or name.endswith("/")
        or "\0" in name
        or any(p in ("", ".", "..") for p in name.split("/"))
    ):
        raise KeyRefused(f"{name!r} is not a valid object name in a pool", key=name)
    return name


class SharedFolderEngine(AgentManagedEngine):
    """Base class of engines whose objects are files below one path. This path is the pool's URL, and is the same on all
    nodes.
    """

    def access(self, pool: Pool, node: str) -> FolderAccess:
        """Return an object that reads and writes the pool's files."""
        return FolderAccess(Path(pool.url), node, is_own=False)


class FolderAccess:
    """Objects of one folder, as accessed from `node`. `is_own` is true if the folder is on the node's own disk."""

    def __init__(self, folder: Path, node: str, *, is_own: bool) -> None:
        self._folder = folder
        self._node = node
        self._is_own = is_own

    @property
    def reports_locations(self) -> bool:
        """True for the node's own disk. A mount does not report where its files are stored."""
        return self._is_own

    def _path(self, name: str) -> Path:
        return self._folder / validated_name(name)

    def names(self, prefix: str = "") -> list[str]:
        """Names of all objects: only files are objects, not folders."""
        found = (path for path in self._folder.rglob("*") if path.is_file() and PART_PREFIX not in path.name)
        return sorted(name for path in found if (name := path.relative_to(self._folder).as_posix()).startswith(prefix))

    def put(self, name: str, source: Path) -> None:
        """Write the object atomically and durably."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with source.open("rb") as read, atomic_file(path) as write:
                shutil.copyfileobj(read, write, 1 << 22)
        except OSError as error:
            if error.errno == 28:
                raise NoSpace(f"{path}: no space left for {source.stat().st_size:,} bytes", where=str(path)) from error
            raise

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read a range of the object with pread."""
        try:
            with self._path(name).open("rb") as file:
                return os.pread(file.fileno(), length, offset)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFound(f"{name} is not in the pool", where=name) from None

    def locate(self, names: Sequence[str]) -> dict[str, list[Located]]:
        """Return this node as the location if the folder is on its own disk; a mount does not report locations."""
        found = {}
        for name in names:
            path = self._path(name)
            nodes = (self._node,) if self._is_own and path.is_file() else ()
            found[name] = [Located(0, path.stat().st_size if path.is_file() else 0, nodes)]
        return found

    def fast_path(self, name: str) -> Path | None:
        """Path of the file if the file is on this node's own disk, else None."""
        path = self._path(name)
        return path if self._is_own and path.is_file() else None

    def mount_path(self, name: str) -> Path | None:
        """Path of the object's file."""
        return self._path(name)

    def delete(self, names: Sequence[str]) -> None:
        """Delete the files, but not the folders that contain them."""
        for name in names:
            try:
                remove_below(self._folder, validated_name(name))
            except NotOwned as error:
                raise KeyRefused(f"`{name}`: {error}", key=name) from error
