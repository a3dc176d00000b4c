# SPDX-License-Identifier: Apache-2.0
"""Settings that determine the bytes of a written dataset, apart from its samples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import ConfigError
from penstock.feed.number_arguments import as_int

__all__ = ["FORMATS", "KEY", "Compress", "Format", "Settings", "Statistics", "shard_names"]

Format = Literal["tfrecord", "tar", "parquet"]
FORMATS: tuple[Format, ...] = ("tfrecord", "tar", "parquet")
Compress = Literal["gzip", "zstd"]
_SUFFIX = {None: "", "gzip": ".gz", "zstd": ".zst"}

Statistics = list[tuple[tuple[int, int, float, float, float], tuple[int, int, float, float, float]]]
"""Two sets of statistics for each field, of the sizes in bytes and of the values. A set is (count, number of NaN,
minimum, maximum, sum).
"""

KEY = "__key__"
"""Name of the field that contains the name of a sample in a tar."""


def shard_names(name: str) -> re.Pattern[str]:
    """Return the pattern of the names of all shards with this prefix, in any format."""
    return re.compile(rf"{re.escape(name)}-\d{{6,}}\.[a-z.]+")


@dataclass(frozen=True)
class Settings:
    """Settings that determine the bytes of the shards, apart from the samples. `source` identifies the source of a
    conversion.

    Raises:
        ConfigError: A setting is invalid.
    """

    format: Format
    shard_bytes: int
    compress: Compress | None
    level: int | None
    name: str
    source: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format: `{self.format}` is not one of {', '.join(FORMATS)}", where="format")
        if self.compress not in _SUFFIX:
            raise ConfigError(f"compress: `{self.compress}` is not one of gzip, zstd", where="compress")
        if self.level is not None and self.compress is None:
            raise ConfigError("level: requires compress", where="level")
        if self.level is not None:
            # libdeflate (up to level 12) compresses whole shards; zlib (up to level 9) compresses the columns of
            # Parquet.
            least, most = (-7, 22) if self.compress == "zstd" else (1, 9) if self.format == "parquet" else (0, 12)
            if not least <= as_int("level", self.level) <= most:
                raise ConfigError(
                    f"level: must be {least} to {most} for {self.compress} in {self.format} (got {self.level})",
                    where="level",
                )
        if self.shard_bytes < 1:
            raise ConfigError(f"shard_bytes: must be at least 1 (got {self.shard_bytes})", where="shard_bytes")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            raise ConfigError(
                f"name: must consist of letters, digits, `_`, `-` and `.`, and cannot start with `-` or `.` (got "
                f"{self.name!r})",
                where="name",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON for the journal."""
        return {
            "format": self.format,
            "shard_bytes": self.shard_bytes,
            "compress": self.compress,
            "level": self.level,
            "name": self.name,
            "source": self.source,
        }

    @property
    def suffix(self) -> str:
        """Suffix of the names of the shards."""
        return f".{self.format}" + ("" if self.format == "parquet" else _SUFFIX[self.compress])

    def shard_name(self, number: int) -> str:
        """Return the name of a shard. The name does not contain the number of shards, because this number is known only
        at the end.
        """
        return f"{self.name}-{number:06d}{self.suffix}"
