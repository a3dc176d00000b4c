# SPDX-License-Identifier: Apache-2.0
"""The folder that a bench works in: ours from beginning to end, or refused.

Owns what is made and deleted there. A folder that holds anything of another's is left as it is, and so is a tree that an
earlier run left: the marker says whose a folder is, and only what lies beside it under our names is ever deleted.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.bench.results import as_fault
from penstock.errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.bench.storage.spec import Point

__all__ = ["Ground"]

_MARKER = ".penstock-bench.json"
_TREE = re.compile(r"tree-[0-9]+x[0-9]+x[0-9]+x[0-9]+")
# What a fresh file system holds.
_OF_THE_FILE_SYSTEM = {"lost+found"}


class Ground:
    """One run's hold on a folder. A context manager: a run that fails takes what it made with it; one that ends well has
    deleted its files in its delete phase, or leaves them to be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made_folder = False
        self._made: set[Path] = set()

    def __enter__(self) -> Ground:
        self._made_folder = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.path.iterdir()} - _OF_THE_FILE_SYSTEM
        except OSError as error:
            raise as_fault(error, str(self.path)) from None
        foreign = sorted(name for name in names if name != _MARKER and not _TREE.fullmatch(name))
        if foreign or (names and _MARKER not in names):
            shown = ", ".join((foreign or sorted(names))[:3])
            raise PreconditionFailed(
                f"{self.path} is not empty: it holds {len(foreign or names):,} entries of others ({shown}{', ...' if len(names) > 3 else ''})",
                where=str(self.path),
                hint=f"name an empty folder, or a new one in it: {self.path}/bench",
            )
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        if kind is not None:
            for tree in self._made:
                shutil.rmtree(tree, ignore_errors=True)
        if any(_TREE.fullmatch(entry.name) for entry in self.path.iterdir()):
            return
        with suppress(OSError):  # another run may stand here by now
            (self.path / _MARKER).unlink(missing_ok=True)
            if self._made_folder:
                self.path.rmdir()

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
                (self.path / _MARKER).write_text(json.dumps({"schema_version": 1, "made_by": "penstock bench storage"}))
                tree.mkdir()
            except OSError as error:
                raise as_fault(error, str(tree)) from None
            self._made.add(tree)
        elif not tree.is_dir():
            raise NotFound(
                f"{tree} does not exist: nobody wrote files of this number and size here",
                where=str(tree),
                hint="write them first with the same sizes: --phases mkdirs,write",
            )
        return tree

    def is_gone(self, tree: Path) -> None:
        """The delete phase has emptied it."""
        with suppress(OSError):
            tree.rmdir()
        self._made.discard(tree)
