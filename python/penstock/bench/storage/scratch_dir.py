# SPDX-License-Identifier: Apache-2.0
"""Work folder of a benchmark. The folder must be new, empty, or left by an earlier benchmark; any other folder is
rejected.

Creates and deletes the files of this run. Never changes foreign entries or the trees of earlier runs. A marker file
records the run that owns the folder. Only entries in the same folder whose names match the benchmark's pattern are ever
deleted.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.bench.results import as_fault
from penstock.errors import NotFound, PreconditionFailed
from penstock.ownership import OwnedFolder, identity_of, remove_empty_folder, remove_file, remove_made

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.bench.storage.spec import Point

__all__ = ["HOST", "ScratchDir", "entries_of", "sweep"]

_MARKER = ".penstock-bench.json"
_TREE = re.compile(r"tree-[0-9]+x[0-9]+x[0-9]+x[0-9]+")
HOST = re.compile(r"host-[0-9]{4}")
"""Names of the hosts' folders of a benchmark. On a shared file system, these folders are in the same parent folder."""
# Entries that a newly created file system already contains.
_OF_THE_FILE_SYSTEM = {"lost+found"}


class ScratchDir:
    """The work folder of one run, as a context manager. If the run fails, its files are removed on exit. A successful
    run either deletes them in its delete phase, or leaves them for a later read.
    """

    def __init__(self, path: Path, session: str = "") -> None:
        """`session` identifies this run in the marker file; `sweep` uses it."""
        self.path = path
        self._session = session
        self._made_folder = False
        self._made: dict[Path, tuple[int, int] | None] = {}

    def __enter__(self) -> ScratchDir:
        self._made_folder = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise as_fault(error, str(self.path)) from None
        names = entries_of(self.path)
        foreign = {name for name in names if name != _MARKER and not _TREE.fullmatch(name)}
        _refuse(self.path, foreign or (names if _MARKER not in names else set()))
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        if kind is not None:
            for tree, identity in self._made.items():
                if identity is not None:
                    remove_made(tree, identity)
        if any(_TREE.fullmatch(entry.name) for entry in self.path.iterdir()):
            return
        with suppress(OSError):  # another run may already use the folder
            remove_file(self.path / _MARKER)
            if self._made_folder:
                remove_empty_folder(self.path)

    def tree(self, point: Point, *, is_made: bool) -> Path:
        """Return the folder of a point's files. If `is_made` is true, create the folder.

        Raises:
            PreconditionFailed: `is_made` is true, but the folder exists.
            NotFound: `is_made` is false, but the folder does not exist.
        """
        tree = self.path / point.folder
        if is_made:
            if tree.exists():
                raise PreconditionFailed(
                    f"{tree} is left from an earlier run",
                    where=str(tree),
                    hint="read it with --phases read,stat, or delete it with --phases delete and the same sizes",
                )
            try:
                # The marker records the tree before the tree is created. If this host is lost, another host reads the
                # marker to clean up.
                self._made[tree] = None
                self._mark()
                tree.mkdir()
                self._made[tree] = identity_of(tree)
            except OSError as error:
                self._made.pop(tree)
                with suppress(OSError):
                    self._mark()
                raise as_fault(error, str(tree)) from None
        elif not tree.is_dir():
            raise NotFound(
                f"{tree} does not exist: no earlier run wrote files of this number and size",
                where=str(tree),
                hint="write the files first with the same sizes: --phases mkdirs,write",
            )
        return tree

    def is_gone(self, tree: Path) -> None:
        """Remove the folder of a tree that the delete phase has emptied."""
        remove_empty_folder(tree)
        self._made.pop(tree, None)

    def discard(self, tree: Path) -> None:
        """Remove a tree that was not completely written and therefore cannot be measured."""
        identity = self._made.pop(tree, None)
        if identity is not None:
            remove_made(tree, identity)

    def _mark(self) -> None:
        """Write the marker file, with the owner of the folder and the trees of this run."""
        facts = {"schema_version": 1, "made_by": "penstock bench storage", "session": self._session}
        trees = sorted(tree.name for tree in self._made)
        (self.path / _MARKER).write_text(json.dumps({**facts, "trees": trees}))


def entries_of(path: Path, *, ours: re.Pattern[str] | None = None) -> set[str]:
    """Return the names in a folder, without the entries that every new file system contains.

    Args:
        ours: Pattern of the allowed names; any other name raises PreconditionFailed.
    Raises:
        PreconditionFailed: The folder contains other names.
        Denied, SystemFault: The folder cannot be listed.
    """
    try:
        names = {entry.name for entry in path.iterdir()} - _OF_THE_FILE_SYSTEM
    except OSError as error:
        raise as_fault(error, str(path)) from None
    if ours is not None:
        _refuse(path, {name for name in names if not ours.fullmatch(name)})
    return names


def _refuse(path: Path, foreign: set[str]) -> None:
    if foreign:
        shown = ", ".join(sorted(foreign)[:3])
        raise PreconditionFailed(
            f"{path} is not empty: {len(foreign):,} entries are not from this benchmark "
            f"({shown}{', ...' if len(foreign) > 3 else ''})",
            where=str(path),
            hint=f"choose an empty folder, or a new one in this folder: {path}/bench",
        )


def sweep(path: Path, session: str) -> bool:
    """Remove a session's trees in a folder, and then the folder if it is empty. Return whether the session had created
    any trees. Trees of earlier runs are kept.
    """
    try:
        with OwnedFolder(str(path), is_private=False) as folder:
            facts = json.loads(folder.read(_MARKER) or b"")
            trees = [name for name in facts["trees"] if _TREE.fullmatch(name)] if facts["session"] == session else []
            for name in trees:
                with suppress(FileNotFoundError), OwnedFolder(f"{folder.path}/{name}", is_private=False) as tree:
                    tree.remove()
            is_bare = not any(_TREE.fullmatch(name) for name in folder.names())
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if trees and is_bare:
        with suppress(OSError):
            remove_file(path / _MARKER)
            remove_empty_folder(path)
    return bool(trees)
