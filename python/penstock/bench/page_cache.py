# SPDX-License-Identifier: Apache-2.0
"""Drops the page cache before a phase, if it has permission to, and returns the resulting cache state.

A row records this state. The caches of a remote file server cannot be dropped from this machine; in this case, the
state contains a note.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.bench.results import CacheState

__all__ = ["drop", "file_system_of"]

_DROP = Path("/proc/sys/vm/drop_caches")
# File systems that store their data in memory, so that a cold read is not possible.
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_REMOTE = {"nfs", "nfs4", "lustre", "beegfs", "cifs", "smb3", "ceph", "9p", "glusterfs", "gpfs"}


def file_system_of(path: Path) -> str:
    """Return the kernel's name for the type of a path's file system; empty if the kernel does not report it."""
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
        # If two mounts have the same mount point, the later one hides the earlier one.
        if inside and len(point) >= best:
            best, found = len(point), kind.split()[0]
    return found


def drop(path: Path, *, wanted: bool, direct: bool, was_written: bool) -> CacheState:
    """Write back and drop this host's caches. Return the cache state of `path` afterwards.

    Args:
        path: File, folder or device that is measured next.
        wanted: Whether to drop the caches.
        direct: Whether the phase bypasses the page cache.
        was_written: Whether this run has just written or read the same data.
    """
    # A device node is stored in devtmpfs, but the data of the device are not.
    kind = "" if path.is_block_device() else file_system_of(path)
    if kind in _IN_MEMORY:
        return CacheState(state="warm", how=f"{kind} is in memory")
    warm = "warm" if was_written else "unknown"
    if not wanted:
        return (
            CacheState(state="bypassed", how="O_DIRECT") if direct else CacheState(state=warm, how="kept as requested")
        )
    os.sync()
    try:
        _DROP.write_text("3\n")
    except OSError as error:
        why = f"cannot be dropped here: {error.strerror}"
        return (
            CacheState(state="bypassed", how=f"O_DIRECT; caches {why}") if direct else CacheState(state=warm, how=why)
        )
    how = "sync, then 3 to /proc/sys/vm/drop_caches"
    if kind in _REMOTE or kind.startswith("fuse"):
        how += f"; the caches of the {kind} servers cannot be dropped from this host"
    return CacheState(state="cold", how=how)
