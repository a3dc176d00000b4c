# SPDX-License-Identifier: Apache-2.0
"""The kernel's caches: dropped before a phase where this process may, and what is true where it may not.

Owns the word that a row says of its caches. A server's caches, behind a mount, are out of reach from here, and said to be.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.bench.results import CacheState

__all__ = ["drop", "file_system_of"]

_DROP = Path("/proc/sys/vm/drop_caches")
# What these hold is memory and nothing else: there is no colder place to read it from.
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_REMOTE = {"nfs", "nfs4", "lustre", "beegfs", "cifs", "smb3", "ceph", "9p", "glusterfs", "gpfs"}


def file_system_of(path: Path) -> str:
    """The type of the file system that holds a path, as the kernel names it; empty where it does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    place = str(path.resolve())
    best, found = -1, ""
    for line in lines:
        mount, _, kind = line.partition(" - ")
        point = mount.split()[4].encode().decode("unicode_escape")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # The later of two mounts on one point hides the earlier.
        if inside and len(point) >= best:
            best, found = len(point), kind.split()[0]
    return found


def drop(path: Path, *, wanted: bool, direct: bool, was_written: bool) -> CacheState:
    """Write back and drop what this host caches, and say what state that leaves `path` in.

    Args:
        path: What is about to be measured.
        wanted: Whether to drop at all.
        direct: The phase passes the page cache by.
        was_written: This run wrote or read the same data just now.
    """
    # A device's node lies in memory; what it is a node of does not.
    kind = "" if path.is_block_device() else file_system_of(path)
    if kind in _IN_MEMORY:
        return CacheState(state="warm", how=f"{kind} is memory")
    warm = "warm" if was_written else "unknown"
    if not wanted:
        return CacheState(state="bypassed", how="O_DIRECT") if direct else CacheState(state=warm, how="kept as asked")
    os.sync()
    try:
        _DROP.write_text("3\n")
    except OSError as error:
        why = f"may not be dropped here: {error.strerror}"
        return (
            CacheState(state="bypassed", how=f"O_DIRECT; caches {why}") if direct else CacheState(state=warm, how=why)
        )
    how = "sync, then 3 to /proc/sys/vm/drop_caches"
    if kind in _REMOTE or kind.startswith("fuse"):
        how += f"; the caches of {kind}'s servers are not this host's to drop"
    return CacheState(state="cold", how=how)
