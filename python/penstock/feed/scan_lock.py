# SPDX-License-Identifier: Apache-2.0
"""Lock with which only one process per node scans a dataset: a lock file beside the record indexes. The other processes
wait for the lock.

Manages only the lock file. The process that holds the lock can write lines of progress into the file, and waiting
processes read these lines. If the process that holds the lock is killed, the kernel releases the lock. If the cache
folder is on a shared file system that supports locks, only one node scans.
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

__all__ = ["POLL_S", "ScanLock", "attempt", "held", "lines", "warn"]

_LOG = logging.getLogger("penstock.feed")

POLL_S = 0.1
"""Seconds between two attempts to lock. The code polls, because Ctrl-C would not end a wait in the kernel."""

WORK = "reading and indexing all objects"
"""Default description of the work of the lock's holder, in messages."""


class ScanLock:
    """A lock that this process holds."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    def write(self, line: str) -> None:
        """Add a line of progress. If the disk is full, the line is left out without an error."""
        with suppress(OSError):
            os.write(self._descriptor, line.encode() + b"\n")

    def release(self) -> None:
        """Release the lock, and remove its file."""
        # If the name refers to another file, that file is another process's lock, so do not delete it. A process that
        # waits for the deleted file notices that the name is gone, and creates a new file.
        if _is_at(self._descriptor, self._path):
            with suppress(OSError):
                remove_file(self._path)
        # Unlock explicitly: closing the descriptor does not unlock the file if a forked child has inherited the
        # descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def attempt(folder: Path, name: str) -> ScanLock:
    """Take the lock `name` in `folder`, without waiting.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The lock file cannot be created, or the file system does not support locks.
    """
    path = folder / f"{name}.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return ScanLock(descriptor, path)
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def lines(folder: Path, name: str, first: int) -> list[str]:
    """Return the lines of progress that the lock's holder has written, from line `first` on."""
    try:
        text = (folder / f"{name}.lock").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.split("\n")[first:-1]


@contextmanager
def held(folder: str | None, name: str, url: str, work: str = WORK) -> Iterator[bool]:
    """Hold the lock `name` in `folder`. If another process holds the lock, log a warning that contains `url` and
    `work`, and wait.

    Yields:
        Whether this process holds the lock. False if there is no folder, or if the lock file cannot be created or
        locked.
    """
    lock, warned = None, False
    while lock is None and folder is not None:
        try:
            lock = attempt(Path(folder), name)
        except BlockingIOError:
            if not warned:
                warn(url, work)
                warned = True
            time.sleep(POLL_S)
        except OSError:
            break
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def warn(url: str, work: str = WORK) -> None:
    """Log that this process waits for the work of another process."""
    _LOG.warning("%s: another process is %s; waiting for its result", url, work)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has its name in the folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
