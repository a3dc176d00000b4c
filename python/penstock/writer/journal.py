# SPDX-License-Identifier: Apache-2.0
"""Journal of a write, in the destination: the settings, and one small object for each complete shard.

    URL/.penstock/write/settings.json     format, limits and fields; written before the first shard
    URL/.penstock/write/shard-000000.json written after shard 0; a shard without it is written again
    URL/.penstock/manifest.json           written last; the dataset is complete

If the write is run again, it continues with the first shard that is not complete.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError, Corrupt
from penstock.writer.destination import OWN

if TYPE_CHECKING:
    from penstock.writer.destination import Destination

__all__ = ["MANIFEST", "Journal", "ShardRecord", "difference"]

MANIFEST = f"{OWN}/manifest.json"
_FOLDER = f"{OWN}/write/"
_SETTINGS = f"{_FOLDER}settings.json"
_VERSION = 1
_READERS = 16


class ShardRecord(msgspec.Struct, frozen=True):
    """A complete shard. Sizes are in bytes.

    Attributes:
        first: Number of the shard's first sample.
        last_crc32c: CRC-32C of the shard's last record before compression; in Parquet, of the values of the last row.
        fields: Kinds and shapes of the fields, over all samples up to the end of this shard.
        statistics: For each field, statistics of sizes and of values: count, number of NaN, minimum, maximum and sum.
            If there are no values, minimum and maximum are None.
    """

    name: str
    first: int
    samples: int
    bytes: int
    crc32c: str
    last_crc32c: int
    fields: dict[str, dict[str, Any]]
    statistics: list[tuple[list[float | None], list[float | None]]]


class Journal:
    """The journal of a destination, read from a listing of the destination."""

    def __init__(self, destination: Destination, listed: dict[str, int]) -> None:
        self._at = destination
        self._listed = listed

    @property
    def exists(self) -> bool:
        """Whether the destination contains the settings of an unfinished write."""
        return _SETTINGS in self._listed

    def settings(self) -> dict[str, Any]:
        """Return the settings of the unfinished write.

        Raises:
            Corrupt: The settings cannot be read.
        """
        return self._document(_SETTINGS)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the complete dataset."""
        return self._document(MANIFEST)

    def _document(self, name: str) -> dict[str, Any]:
        place = f"{self._at.url}{name}"
        try:
            found = json.loads(self._at.read(name, self._listed[name]))
        except ValueError as error:
            raise Corrupt(f"{place} is not a document of penstock.write: {error}", where=place) from None
        if not isinstance(found, dict):
            raise Corrupt(f"{place} is not a document of penstock.write", where=place)
        return found

    def begin(self, settings: dict[str, Any]) -> None:
        """Write the settings."""
        self._at.put(_SETTINGS, json.dumps({"version": _VERSION, **settings}).encode())

    def end(self, settings: dict[str, Any]) -> None:
        """Delete all objects. If this process is killed during the deletion, the write cannot be continued, only
        overwritten.
        """
        # The settings are written first and deleted last. While they exist, all shards in the folder belong to the
        # writer.
        self._at.put(_SETTINGS, json.dumps({**settings, "version": None}).encode())
        self._at.delete([MANIFEST])  # first, because a dataset with a manifest counts as complete
        self._at.delete(name for name in self._listed if name != _SETTINGS)
        self._at.delete([_SETTINGS])

    def check(self, mine: dict[str, Any]) -> dict[str, Any] | None:
        """Return the settings of the unfinished write, if they are equal to `mine`, apart from the fields. None if no
        shard is stored yet, because another write may then replace the settings.

        Raises:
            ConfigError: The settings differ.
        """
        if set(self._listed) == {_SETTINGS}:
            return None
        theirs = self.settings()
        if (differs := difference(theirs, {"version": _VERSION, **mine})) is not None:
            raise ConfigError(
                f"{self._at.url} has an unfinished write {differs}",
                where="url",
                hint='use the same settings to continue it, or if_exists="overwrite" to start again',
            )
        return theirs

    def note(self, number: int, shard: ShardRecord) -> None:
        """Record that a shard is complete."""
        self._at.put(f"{_FOLDER}shard-{number:06d}.json", msgspec.json.encode(shard))

    def whole(self) -> list[ShardRecord]:
        """Return the complete shards, from shard 0 to the last shard before a missing one. Remove the journal entries
        of all other shards.
        """
        shards, names = self.complete_shards()
        # Remove the journal entries of shards after a missing shard. These shards are written again, possibly with
        # other samples.
        kept = {_SETTINGS, *names[: len(shards)]}
        self._at.delete(name for name in self._listed if name.startswith(_FOLDER) and name not in kept)
        return shards

    def complete_shards(self) -> tuple[list[ShardRecord], list[str]]:
        """Return the complete shards, from shard 0 to the last shard before a missing one, and the names of their
        journal entries.
        """
        names: list[str] = []
        while (name := f"{_FOLDER}shard-{len(names):06d}.json") in self._listed:
            names.append(name)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="penstock-journal") as pool:
            found = list(pool.map(lambda name: self._at.read(name, self._listed[name]), names))
        shards = []
        for text in found:
            try:
                shard = msgspec.json.decode(text, type=ShardRecord)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                break
            if self._listed.get(shard.name) != shard.bytes:
                break
            shards.append(shard)
        return shards, names

    def remove(self) -> None:
        """Remove the journal."""
        self._at.delete([name for name in self._at.listed() if name.startswith(_FOLDER)])


def difference(theirs: dict[str, Any], mine: dict[str, Any]) -> str | None:
    """Describe the first setting of `mine` that differs in `theirs`; None if they are the same."""
    for name, value in mine.items():
        if theirs.get(name) != value:
            if name == "source":  # the value is a hash, which would not help the user
                return "of another source or other fields"
            return f"with {name}={_shown(theirs.get(name))}, but this write has {name}={_shown(value)}"
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
