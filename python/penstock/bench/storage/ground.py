# SPDX-License-Identifier: Apache-2.0
"""The folder that a bench works in: ours from beginning to end, or refused.

Owns what is made and deleted there. A folder that holds anything of another's is left as it is, and so is a tree that an
earlier run left: the marker says whose a folder is, and only what lies beside it under our names is ever deleted.
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

__all__ = ["HOST", "Ground", "entries_of", "sweep"]

_MARKER = ".penstock-bench.json"
_TREE = re.compile(r"tree-[0-9]+x[0-9]+x[0-9]+x[0-9]+")
HOST = re.compile(r"host-[0-9]{4}")
"""Folders of the hosts of one bench, side by side where they share a file system."""
# What a fresh file system holds.
_OF_THE_FILE_SYSTEM = {"lost+found"}


class Ground:
    """One run's hold on a folder. A context manager: a run that fails takes what it made with it; one that ends well has
    deleted its files in its delete phase, or leaves them to be read.
    """

    def __init__(self, path: Path, session: str = "") -> None:
        """`session` names this run, for `sweep`."""
        self.path = path
        self._session = session
        self._made_folder = False
        self._made: dict[Path, tuple[int, int] | None] = {}

    def __enter__(self) -> Ground:
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
        with suppress(OSError):  # another run may stand here by now
            remove_file(self.path / _MARKER)
            if self._made_folder:
                remove_empty_folder(self.path)

    def tree(self, point: Point, *, is_made: bool) -> Path:
        """Where a point's files lie. `is_made`: its folders are to be made now.

        Raises:
            PreconditionFailed: They stand there already.
            NotFound: They are to be read, and nobody has made them.
        """
        tree = self.path / point.folder
        if is_made:
            if tree.exists():
                raise PreconditionFailed(
                    f"{tree} is left of an earlier run",
                    where=str(tree),
                    hint="read it with --phases read,stat, or delete it with --phases delete and the same sizes",
                )
            try:
                # Before the folder: whoever cleans up after a host that was lost looks here.
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
                f"{tree} does not exist: nobody wrote files of this number and size here",
                where=str(tree),
                hint="write them first with the same sizes: --phases mkdirs,write",
            )
        return tree

    def is_gone(self, tree: Path) -> None:
        """The delete phase has emptied it."""
        remove_empty_folder(tree)
        self._made.pop(tree, None)

    def discard(self, tree: Path) -> None:
        """Removes a tree whose files were not all written; nothing of it can be measured."""
        identity = self._made.pop(tree, None)
        if identity is not None:
            remove_made(tree, identity)

    def _mark(self) -> None:
        """Whose the folder is, and which of its trees are this run's."""
        told = {"schema_version": 1, "made_by": "penstock bench storage", "session": self._session}
        trees = sorted(tree.name for tree in self._made)
        (self.path / _MARKER).write_text(json.dumps({**told, "trees": trees}))


def entries_of(path: Path, *, ours: re.Pattern[str] | None = None) -> set[str]:
    """What a folder holds beside what every file system does.

    Args:
        ours: Names that may be there; any other is refused.
    Raises:
        PreconditionFailed: It holds what is not ours.
        Denied, SystemFault: It cannot be looked at.
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
            f"{path} is not empty: it holds {len(foreign):,} entries of others ({shown}{', ...' if len(foreign) > 3 else ''})",
            where=str(path),
            hint=f"name an empty folder, or a new one in it: {path}/bench",
        )


def sweep(path: Path, session: str) -> bool:
    """Removes what a run of that session made in a folder, and the folder where nothing else is left in it; whether it had
    made anything. Trees of earlier runs stay.
    """
    try:
        with OwnedFolder(str(path), is_private=False) as folder:
            told = json.loads(folder.read(_MARKER) or b"")
            trees = [name for name in told["trees"] if _TREE.fullmatch(name)] if told["session"] == session else []
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
