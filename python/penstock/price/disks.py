# SPDX-License-Identifier: Apache-2.0
"""Disk book: limits of block devices, indexed by name and year. Each number has a source."""

from __future__ import annotations

from importlib import resources
from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = ["Disk", "DiskLimit", "find", "load"]

Confidence = Literal["published", "derived", "unverified", "ours"]


class DiskLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limit on I/Os or bytes per second, for reads and writes together. books/disks.toml explains the attributes."""

    what: Literal["ios", "bytes"]
    value: float
    source: str
    as_of: str
    confidence: Confidence
    per_gib: float | None = None
    floor: float = 0.0
    burst: float | None = None
    credits: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        numbers = (self.value, self.per_gib, self.burst, self.credits)
        if any(number is not None and not 0 < number < float("inf") for number in numbers):
            raise ValueError("a limit is not a positive number")
        if (self.burst is None) != (self.credits is None):
            raise ValueError("burst and credits must be given together")

    def base(self, size_bytes: int) -> float:
        """Sustained limit of a disk with this size."""
        if self.per_gib is None:
            return self.value
        return min(self.value, max(self.floor, self.per_gib * size_bytes / 2**30))

    def most(self, size_bytes: int) -> float:
        """Limit of a disk with this size while it has burst credits."""
        return max(self.base(size_bytes), self.burst or 0.0)


class Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A block device in the disk book. `size_gib` is the size in the study or data sheet that is its source."""

    name: str
    year: int
    title: str
    size_gib: int
    io_bytes: int
    limits: tuple[DiskLimit, ...] = msgspec.field(name="limit")

    @property
    def label(self) -> str:
        """Name with year, such as `aws-gp2@2018`."""
        return f"{self.name}@{self.year}"

    @property
    def size_bytes(self) -> int:
        return self.size_gib * 2**30

    def limit(self, what: Literal["ios", "bytes"]) -> DiskLimit | None:
        return next((limit for limit in self.limits if limit.what == what), None)


class _Book(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    disk: tuple[Disk, ...]


def load() -> dict[str, Disk]:
    """Return all disks by `name@year`. The key `name` alone is the entry of the latest year.

    Raises:
        ConfigError: The disk book is invalid.
    """
    raw = resources.files("penstock").joinpath("price/books/disks.toml").read_bytes()
    try:
        book = msgspec.toml.decode(raw, type=_Book)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the bundled book of disks: {error}") from error
    found: dict[str, Disk] = {}
    for disk in sorted(book.disk, key=lambda disk: disk.year):
        found[disk.label] = found[disk.name] = disk
    return found


def find(name: str) -> Disk:
    """Find a disk by its name, with or without the year.

    Raises:
        ConfigError: The disk is unknown; the error lists the known ones.
    """
    disks = load()
    if name not in disks:
        known = ", ".join(sorted(label for label in disks if "@" in label))
        raise ConfigError(f"tier: `{name}` is not one of the disks {known}", where="tier")
    return disks[name]
