# SPDX-License-Identifier: Apache-2.0
"""Lock for one scan of a dataset per node: a lock file beside the record indexes, which the other ranks wait for.

Manages only the lock file. The kernel releases the lock if its holder is killed. If the cache folder is on a shared
file system that supports locks, only one of all nodes scans.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.ownership import remove_file

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["held"]

_LOG = logging.getLogger("penstock.feed")

_POLL_S = 0.1
"""Seconds between two attempts to lock. The code polls, because Ctrl-C would not end a wait in the kernel."""


@contextmanager
def held(folder: str | None, name: str, url: str) -> Iterator[bool]:
    """Hold the lock `name` in `folder`. While another process holds it, waits, with a warning that contains `url`.

    Yields:
        Whether the lock is held; False without a folder, or if the lock file cannot be created or locked.
    """
    lock = None if folder is None else _locked(Path(folder), f"{name}.lock", url)
    if lock is None:
        yield False
        return
    descriptor, path = lock
    try:
        yield True
    finally:
        # Delete the file only if the name still belongs to it; otherwise, it is another process's lock. A process that
        # waits for this file then finds the name gone, and creates a new file.
        if _is_at(descriptor, path):
            with suppress(OSError):
                remove_file(path)
        # Unlock explicitly, because a forked child may have inherited the descriptor, and closing it here would not
        # unlock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _locked(folder: Path, name: str, url: str) -> tuple[int, Path] | None:
    path, warned = folder / name, False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor, path
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            if not warned:
                _LOG.warning("%s: another process is reading and indexing all objects; waiting for its index", url)
                warned = True
            time.sleep(_POLL_S)
        except OSError:  # the file system does not support locks
            os.close(descriptor)
            return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has its name in the folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
