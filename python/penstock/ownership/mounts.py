# SPDX-License-Identifier: Apache-2.0
"""Lists mounts below a folder, identifies the mount of a descriptor, and unmounts mounts that Penstock created."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress

__all__ = ["detach_loop", "mount_of", "mounts_below", "unmount", "unmount_device"]

_OCTAL = re.compile(rb"\\([0-7]{3})")
_PROGRAM_S = 5.0


def mounts_below(path: str) -> list[str]:
    """Mount points at or below a path, deepest first. A path with several mounts occurs once per mount.

    The path must not contain links.
    """
    begin = os.fsencode(path)
    return [
        os.fsdecode(point) for point, _ in sorted(_mounts(), reverse=True) if (point + b"/").startswith(begin + b"/")
    ]


def _mounts() -> list[tuple[bytes, str]]:
    """Every mount point as raw bytes, with the `major:minor` of its device, in mount order."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file]
    # The kernel writes blank, tab, newline and backslash as octal escapes such as \040; all other bytes are literal.
    return [(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), row[4]), row[2].decode()) for row in rows]


def mount_of(fd: int) -> str:
    """Id of the mount in which a descriptor was opened. A bind mount of the same device has a different id."""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            return next(line for line in file if line.startswith("mnt_id:"))
    except (OSError, StopIteration):
        return str(os.fstat(fd).st_dev)


def _tried(*lines: list[str]) -> bool:
    """Run the command lines in order until one succeeds; return whether one succeeded."""
    for command in lines:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROGRAM_S, check=False
            )
            if done.returncode == 0:
                return True
    return False


def unmount(path: str) -> bool:
    """Unmount the topmost mount at a path, even if it is busy. The caller has proved that Penstock mounted it."""
    return _tried(["umount", path], ["fusermount3", "-u", path], ["umount", "-l", path])


def unmount_device(path: str, number: str) -> bool:
    """Unmount a path, but only if its topmost mount has the device number `major:minor` that the caller mounted."""
    at = [device for point, device in _mounts() if point == os.fsencode(os.path.realpath(path))]
    return at[-1:] == [number] and _tried(["umount", path])


def detach_loop(device: str, image: str) -> bool:
    """Detach a loop device, but only if its backing file is the image that the caller created."""
    try:
        with open(f"/sys/block/{os.path.basename(device)}/loop/backing_file") as file:
            backing = file.read().removesuffix("\n")
    except OSError:
        return False
    return backing.removesuffix(" (deleted)") == image and _tried(["losetup", "--detach", device])
