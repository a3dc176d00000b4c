# SPDX-License-Identifier: Apache-2.0
"""Mounts: those below a folder, the one that contains a descriptor, and the removal of one of ours."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress

__all__ = ["detach_loop", "mount_of", "mounts_below", "unmount", "unmount_device"]

_OCTAL = re.compile(rb"\\([0-7]{3})")
_PROGRAM_S = 5.0


def mounts_below(path: str) -> list[str]:
    """Mount points at or below a path without links, deepest first; a path with several mounts occurs once per mount."""
    begin = os.fsencode(path)
    return [
        os.fsdecode(point) for point, _ in sorted(_mounts(), reverse=True) if (point + b"/").startswith(begin + b"/")
    ]


def _mounts() -> list[tuple[bytes, str]]:
    """Every mount point, as raw bytes, with its device's `major:minor`, in the order of mounting."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file]
    # Blank, tab, newline and backslash are written as \040 and the like; all other bytes are literal.
    return [(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), row[4]), row[2].decode()) for row in rows]


def mount_of(fd: int) -> str:
    """Id of the mount that contains a descriptor; a bind mount of the same device has another id."""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            return next(line for line in file if line.startswith("mnt_id:"))
    except (OSError, StopIteration):
        return str(os.fstat(fd).st_dev)


def _tried(*lines: list[str]) -> bool:
    """Run command lines until one succeeds; returns whether one did."""
    for command in lines:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROGRAM_S, check=False
            )
            if done.returncode == 0:
                return True
    return False


def unmount(path: str) -> bool:
    """Unmount the topmost mount at a path, also a busy one. The caller has proved that it is ours."""
    return _tried(["umount", path], ["fusermount3", "-u", path], ["umount", "-l", path])


def unmount_device(path: str, number: str) -> bool:
    """Unmount a path. Proof: its topmost mount has the device `major:minor` that the caller mounted."""
    at = [device for point, device in _mounts() if point == os.fsencode(os.path.realpath(path))]
    return at[-1:] == [number] and _tried(["umount", path])


def detach_loop(device: str, image: str) -> bool:
    """Detach a loop device. Proof: its backing file is the image that the caller created."""
    try:
        with open(f"/sys/block/{os.path.basename(device)}/loop/backing_file") as file:
            backing = file.read().removesuffix("\n")
    except OSError:
        return False
    return backing.removesuffix(" (deleted)") == image and _tried(["losetup", "--detach", device])
