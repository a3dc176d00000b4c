# SPDX-License-Identifier: Apache-2.0
"""Sets block device limits for all programs, through cgroup v1 (blkio.throttle) or v2 (io.max).

Writes only the files of these limits. In v1, each limit is set on the root group and, with the same value, on every
group below the root. In v2, only groups below the root can be limited.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import Denied, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BlockLimits", "read_limits", "set_limits"]

_V1 = Path("/sys/fs/cgroup/blkio")
_V2 = Path("/sys/fs/cgroup")
_KINDS = {
    "read_bytes_per_s": ("read_bps_device", "rbps"),
    "write_bytes_per_s": ("write_bps_device", "wbps"),
    "read_ios_per_s": ("read_iops_device", "riops"),
    "write_ios_per_s": ("write_iops_device", "wiops"),
}


class BlockLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per second; None means unlimited."""

    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    read_ios_per_s: float | None = None
    write_ios_per_s: float | None = None

    @classmethod
    def shared(cls, *, ios_per_s: float | None, bytes_per_s: float | None) -> BlockLimits:
        """Return limits that are the same for reads and writes."""
        return cls(
            read_bytes_per_s=bytes_per_s,
            write_bytes_per_s=bytes_per_s,
            read_ios_per_s=ios_per_s,
            write_ios_per_s=ios_per_s,
        )


def _groups() -> Iterator[tuple[Path, bool]]:
    """Yield each control group that can set a limit, and whether it belongs to cgroup v1."""
    if (_V1 / "blkio.throttle.read_bps_device").exists():
        for folder, _, files in os.walk(_V1):
            if "blkio.throttle.read_bps_device" in files:
                yield Path(folder), True
        return
    for folder, _, files in os.walk(_V2):
        if "io.max" in files:
            yield Path(folder), False


def set_limits(device: str, limits: BlockLimits) -> None:
    """Set the limits of a device (`7:0`) in every control group that exists now; `BlockLimits()` removes them.

    Raises:
        Denied: The process is not root.
        Unsupported: The kernel has no control groups for block devices.
    """
    groups = list(_groups())
    if not groups:
        raise Unsupported(
            "limits of block devices require the control group blkio (v1) or io (v2), which is not mounted"
        )
    for group, is_v1 in groups:
        try:
            if is_v1:
                for name, (file, _) in _KINDS.items():
                    value = getattr(limits, name)
                    (group / f"blkio.throttle.{file}").write_text(f"{device} {int(value or 0)}\n")
            else:
                values = {short: getattr(limits, name) for name, (_, short) in _KINDS.items()}
                line = " ".join(f"{short}={int(value) if value else 'max'}" for short, value in values.items())
                (group / "io.max").write_text(f"{device} {line}\n")
        except FileNotFoundError:
            continue  # the group was removed in the meantime
        except PermissionError as error:
            raise Denied(
                f"{group} cannot be written: {error.strerror}", hint="run the command as root", where=str(group)
            ) from None


def read_limits(device: str) -> BlockLimits:
    """Return the lowest limits that any control group sets for a device; None where no group sets a limit."""
    found: dict[str, float] = {}

    def note(name: str, text: str) -> None:
        with suppress(ValueError):
            found[name] = min(found.get(name, float("inf")), float(text))

    for group, is_v1 in _groups():
        with suppress(OSError):
            if is_v1:
                for name, (file, _) in _KINDS.items():
                    for line in (group / f"blkio.throttle.{file}").read_text().splitlines():
                        where, _, value = line.partition(" ")
                        if where == device:
                            note(name, value)
            else:
                for line in (group / "io.max").read_text().splitlines():
                    where, *pairs = line.split()
                    stated = dict(pair.split("=", 1) for pair in pairs)
                    for name, (_, short) in _KINDS.items():
                        if where == device and stated.get(short, "max") != "max":
                            note(name, stated[short])
    return BlockLimits(**found)
