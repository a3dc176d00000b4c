# SPDX-License-Identifier: Apache-2.0
"""Reads the kernel's block device counters (/proc/diskstats, documented in Documentation/admin-guide/iostats.rst)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from penstock.errors import ConfigError, NotFound, SystemFault

__all__ = ["Counters", "device_of", "read_counters"]

_SECTOR = 512  # unit of the kernel's counters, in bytes; independent of the device's sector size


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one device since it appeared. `busy_s` is the time with requests in flight; `waited_s` is the sum of
    the in-flight times of all requests. `merged` counts requests that the kernel merged into other requests; the I/O
    counts exclude them.
    """

    number: str
    at_s: float
    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    busy_s: float
    waited_s: float
    merged: int

    @property
    def ios(self) -> int:
        return self.read_ios + self.write_ios

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def read_counters(file: Path = Path("/proc/diskstats")) -> dict[str, Counters]:
    """Counters of every device, by name.

    Raises:
        SystemFault: The kernel does not provide the counters.
    """
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise SystemFault(f"{file} cannot be read: {error.strerror}", where=str(file)) from None
    at_s = time.monotonic()
    found = {}
    for line in lines:
        fields = line.split()
        if len(fields) < 14 or not all(field.isdigit() for field in (*fields[:2], *fields[3:14])):
            continue
        numbers = [int(field) for field in fields[3:14]]
        found[fields[2]] = Counters(
            number=f"{fields[0]}:{fields[1]}",
            at_s=at_s,
            read_ios=numbers[0],
            read_bytes=numbers[2] * _SECTOR,
            write_ios=numbers[4],
            write_bytes=numbers[6] * _SECTOR,
            merged=numbers[1] + numbers[5],
            busy_s=numbers[9] / 1000,
            waited_s=numbers[10] / 1000,
        )
    return found


def device_of(text: str) -> str:
    """Kernel name of a device, given as `/dev/nvme0n1`, as `nvme0n1`, or as any path on its file system.

    Raises:
        NotFound: The path or device does not exist.
        ConfigError: The path's file system is not on a single device.
    """
    known = read_counters()
    if text in known:
        return text
    try:
        facts = Path(text).stat()
    except OSError:
        raise NotFound(f"{text} is neither a block device nor a path", where=text) from None
    number = facts.st_rdev or facts.st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for name, counters in known.items():
        if counters.number == wanted:
            return name
    raise ConfigError(f"{text} is not on a block device with kernel statistics", where=text)
