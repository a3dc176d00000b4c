# SPDX-License-Identifier: Apache-2.0
"""Location of an object or folder on any store, and the settings that the core needs to access it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from penstock import _native, env
from penstock.errors import ConfigError, NotFound
from penstock.local_paths import absolute

__all__ = ["Entry", "Location"]


_TEMPORARY = ".penstock-tmp-"
"""Prefix of the names of the temporary files that the core's local store writes."""


@dataclass(frozen=True)
class Entry:
    """An object in a listing."""

    name: str
    size: int
    version: str | None


@dataclass(frozen=True)
class Location:
    """The URL of an object, or of a folder of objects. A plain path is local.

    Raises:
        ConfigError: The URL is empty.
    """

    url: str
    timeout_s: float = 600.0
    variables: dict[str, str] = field(default_factory=lambda: dict(env.read()), repr=False, compare=False)

    def __post_init__(self) -> None:
        text = os.fsdecode(self.url).rstrip("/") if self.url not in ("/", "file:///") else self.url
        if not text:
            raise ConfigError("url: must not be empty", where="url", hint="write `.` for the working directory")
        text = absolute(text)
        object.__setattr__(self, "url", text.removeprefix("file://localhost").removeprefix("file://"))

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name.strip('/')}", self.timeout_s, self.variables)

    @property
    def is_local(self) -> bool:
        """True if the location is a path on a local file system."""
        return "://" not in self.url

    @property
    def path(self) -> Path:
        """Path of a local location."""
        return Path(self.url)

    @property
    def folder(self) -> str:
        """URL of the parent folder, with `/` at its end."""
        return self.url.rpartition("/")[0] + "/"

    @property
    def name(self) -> bytes:
        """Name in the parent folder."""
        return os.fsencode(self.url.rpartition("/")[2])

    @cached_property
    def files(self) -> _native.Files:
        """Return access to the objects below this location."""
        return _native.Files(self.url + "/", self.variables, timeout_s=self.timeout_s)

    @cached_property
    def _beside(self) -> _native.Files:
        return _native.Files(self.folder, self.variables, timeout_s=self.timeout_s)

    def entry(self) -> Entry | None:
        """Return the object at this location; None if it does not exist."""
        try:
            name, size, version, _ = self._beside.head(self.name)
        except (NotFound, IsADirectoryError):
            return None
        return Entry(os.fsdecode(name), size, version)

    def list(self, prefix: str = "") -> list[Entry]:
        """List the objects below this location whose names begin with `prefix`, sorted by the bytes of their names.
        Temporary objects of killed writers are left out.
        """
        found = self.files.described(os.fsencode(prefix))
        entries = [Entry(os.fsdecode(name), size, version) for name, size, version, _ in found]
        return [entry for entry in entries if not entry.name.rpartition("/")[2].startswith(_TEMPORARY)]

    def read(self, name: str) -> bytes | None:
        """Read an object below this location; None if it does not exist."""
        try:
            _, size, version, _ = self.files.head(os.fsencode(name))
        except (NotFound, IsADirectoryError, NotADirectoryError):
            return None
        return self.files.read(os.fsencode(name), [(0, size)], version=version)[0] if size else b""

    def read_range(self, start: int, count: int, version: str | None = None) -> bytes:
        """Read `count` bytes of the object, or fewer at its end. If `version` is given, read only this version."""
        return self._beside.read(self.name, [(start, count)], version=version)[0]

    def head(self, count: int) -> bytes:
        """Read the first `count` bytes of the object, or fewer if it is smaller."""
        return self.read_range(0, count) if count else b""

    def write(self, name: str, content: bytes, *, create_only: bool = False) -> None:
        """Write an object below this location.

        Raises:
            PreconditionFailed: The object exists, and `create_only` is true.
        """
        self.files.put(os.fsencode(name), content, create_only=create_only)
