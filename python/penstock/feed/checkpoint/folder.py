# SPDX-License-Identifier: Apache-2.0
"""Folder of checkpoints on any store: object names, the commit object that completes a checkpoint, and retention.

    URL/000000001200/<attempt>-<rank>.bin     bytes of one rank
    URL/000000001200/<attempt>.json           names, shapes and checksums (`penstock.feed.checkpoint.metadata`)
    URL/000000001200/commit.json              written last; a checkpoint without it does not exist

Each attempt to write the checkpoint of a step has a random name. Files of a killed attempt are therefore never mixed
with files of the next attempt. This module does not import torch.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock import _native, env
from penstock.errors import (
    ConfigError,
    Corrupt,
    Denied,
    NoSpace,
    NotFound,
    PenstockError,
    PreconditionFailed,
    SystemFault,
    Unsupported,
)
from penstock.local_paths import absolute
from penstock.ownership import remove_empty_folder, remove_file

__all__ = ["Checkpoint", "CheckpointFolder", "FileWriter", "data_name", "latest_checkpoint", "list_checkpoints"]

_COMMIT = "commit.json"
_FORMAT, _VERSION = "penstock-checkpoint", 1
_NAME = re.compile(r"(\d{12})/([^/]+)")
_MIN_RATE_BYTES_PER_S = 1e6
"""Minimum rate of a large upload. The time limit is at least size / rate, so that only a slower upload fails."""


def data_name(attempt: str, rank: int) -> str:
    """Name of the data file of a rank."""
    return f"{attempt}-{rank:05d}.bin"


def metadata_name(attempt: str) -> str:
    """Name of the metadata of an attempt."""
    return f"{attempt}.json"


class _Commit(msgspec.Struct, frozen=True):
    """Content of a commit object. Sizes are in bytes."""

    format: str
    version: int
    step: int
    attempt: str
    created: str
    world: int
    files: int
    bytes: int
    metadata_bytes: int
    metadata_crc32c: int


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        step: Training step, or another number that increases from checkpoint to checkpoint.
        bytes: Total size of the data files of all ranks, without the metadata.
        files: Number of data files.
        world: Number of ranks that wrote the checkpoint.
        created: Time of the commit, in UTC.
        attempt: Random name of the attempt that wrote the checkpoint.
    """

    step: int
    bytes: int
    files: int
    world: int
    created: str
    attempt: str


class FileWriter(Protocol):
    """Sequential writer of one file. The file is durable after `finish`."""

    def write(self, data: Any, /) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...


class CheckpointFolder:
    """The folder at a URL (`s3://`, `gs://`, `az://`, `file://`) or path, with its checkpoints.

    Only one training run can write to a folder at a time.

    Raises:
        ConfigError: The URL is empty.
    """

    def __init__(self, url: str | os.PathLike[str], *, timeout_s: float = 600.0) -> None:
        text = os.fsdecode(url).rstrip("/")
        if not text:
            raise ConfigError("checkpoint: the URL must not be empty", where="url")
        text = text.removeprefix("file://localhost").removeprefix("file://")
        self.url = absolute(text)
        self.path = None if "://" in text else Path(self.url)
        self._timeout_s = timeout_s
        self._variables = dict(env.read())
        self._damaged: dict[int, str] = {}

    @cached_property
    def _files(self) -> _native.Files:
        return _native.Files(self.url + "/", self._variables, timeout_s=self._timeout_s)

    def place(self, step: int) -> str:
        """Return the URL of the checkpoint of a step."""
        return f"{self.url}/{step:012d}"

    # ------------------------------------------------------------ listing

    def _listed(self, step: int | None = None) -> dict[int, dict[str, int]]:
        """Return the sizes of the files, by step and name."""
        found: dict[int, dict[str, int]] = {}
        try:
            described = self._files.described(b"" if step is None else b"%012d/" % step)
        except NotFound:  # the folder does not exist yet
            return {}
        for name, size, _, _ in described:
            if match := _NAME.fullmatch(os.fsdecode(name)):
                found.setdefault(int(match[1]), {})[match[2]] = size
        return found

    def whole(self) -> list[Checkpoint]:
        """List the complete checkpoints, by step.

        Raises:
            Corrupt: A newer version of Penstock wrote a checkpoint.
        """
        return [one for step, files in sorted(self._listed().items()) if (one := self._if_whole(step, files))]

    def latest(self) -> Checkpoint | None:
        """Return the complete checkpoint with the highest step, or None. After this call, `damaged` describes newer
        checkpoints that were committed but are no longer complete.

        Raises:
            Corrupt: A newer version of Penstock wrote the checkpoint.
        """
        for step, files in sorted(self._listed().items(), reverse=True):
            if one := self._if_whole(step, files):
                return one
        return None

    @property
    def damaged(self) -> list[str]:
        """Descriptions of the damaged checkpoints that this object has seen, by step."""
        return [self._damaged[step] for step in sorted(self._damaged)]

    def find(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step.

        Raises:
            NotFound: The checkpoint does not exist, or was not completed.
            Corrupt: The checkpoint is damaged, or Penstock did not write it.
        """
        return _described(self._found(step))

    def _found(self, step: int) -> _Commit:
        files = self._listed(step).get(step, {})
        if _COMMIT not in files:
            raise NotFound(
                f"{self.place(step)} is not a complete checkpoint: it has no {_COMMIT}",
                where=self.place(step),
                hint="choose a step that penstock.torch.list_checkpoints returns",
            )
        commit = self._commit(step, files[_COMMIT])
        self._check(commit, files)
        return commit

    def _if_whole(self, step: int, files: dict[str, int]) -> Checkpoint | None:
        if _COMMIT not in files:
            return None
        try:
            commit = self._commit(step, files[_COMMIT])
            self._check(commit, files)
        except NotFound:  # deleted after the listing
            return None
        except _Newer:
            raise
        except Corrupt as error:
            self._damaged[step] = str(error)
            return None
        return _described(commit)

    def _commit(self, step: int, size: int) -> _Commit:
        place = f"{self.place(step)}/{_COMMIT}"
        raw = self._read(f"{step:012d}/{_COMMIT}", [(0, size)])[0] if size else b""
        try:
            commit = msgspec.json.decode(raw, type=_Commit)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{place} is not the commit of a Penstock checkpoint: {error}", where=place) from None
        if commit.format != _FORMAT or commit.step != step:
            raise Corrupt(
                f"{place} is not the commit of this checkpoint: its format is {commit.format!r}, and its step is "
                f"{commit.step:,}",
                where=place,
            )
        if commit.version > _VERSION:
            raise _Newer(
                f"{place} has format version {commit.version}, but this build reads up to {_VERSION}",
                where=place,
                hint="install a newer Penstock",
            )
        return commit

    def _check(self, commit: _Commit, files: dict[str, int]) -> None:
        """Raise Corrupt if files are missing or do not have the size in the commit."""
        metadata = metadata_name(commit.attempt)
        own = [size for name, size in files.items() if name.startswith(commit.attempt) and name != metadata]
        if (len(own), sum(own)) != (commit.files, commit.bytes):
            raise Corrupt(
                f"{self.place(commit.step)} is damaged: it has {len(own):,} files with {sum(own):,} bytes, "
                f"instead of {commit.files:,} with {commit.bytes:,}",
                where=self.place(commit.step),
                hint="delete this folder, and resume from the previous checkpoint",
            )
        if files.get(metadata) != commit.metadata_bytes:
            raise Corrupt(
                f"{self.place(commit.step)}/{metadata} has {files.get(metadata, 0):,} bytes, instead of "
                f"{commit.metadata_bytes:,}",
                where=self.place(commit.step),
            )

    # ------------------------------------------------------------ reading

    def _read(self, name: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return self._files.read(os.fsencode(name), ranges)

    def read(self, step: int, name: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Read ranges (offset, length) of a file of a checkpoint."""
        return self._read(f"{step:012d}/{name}", ranges)

    def read_metadata(self, step: int) -> bytes:
        """Read the metadata of a complete checkpoint, and check it against the commit.

        Raises:
            NotFound: The checkpoint does not exist, or was not completed.
            Corrupt: The checkpoint is damaged.
        """
        commit = self._found(step)
        name = metadata_name(commit.attempt)
        raw = self.read(step, name, [(0, commit.metadata_bytes)])[0]
        if (len(raw), _native.crc32c(raw)) != (commit.metadata_bytes, commit.metadata_crc32c):
            place = f"{self.place(step)}/{name}"
            raise Corrupt(
                f"{place} is damaged: it has CRC-32C {_native.crc32c(raw):08x} (want {commit.metadata_crc32c:08x})",
                where=place,
                hint="delete this checkpoint, and resume from the previous checkpoint",
            )
        return raw

    # ------------------------------------------------------------ writing

    def new_attempt(self, step: int) -> str:
        """Return a name for an attempt to write the checkpoint of a step. A damaged checkpoint is replaced.

        Raises:
            PreconditionFailed: The checkpoint exists.
        """
        files = self._listed(step).get(step, {})
        if self._if_whole(step, files):
            raise self._exists(step)
        if _COMMIT in files:
            self._delete(step, [_COMMIT])
            self._damaged.pop(step, None)
        return secrets.token_hex(6)

    def _exists(self, step: int) -> PreconditionFailed:
        return PreconditionFailed(
            f"{self.place(step)}: a checkpoint of step {step:,} exists already",
            where=self.place(step),
            hint="write to another folder, or delete the checkpoint",
        )

    def create(self, step: int, name: str, size: int) -> FileWriter:
        """Create a file of `size` bytes below a checkpoint."""
        if self.path is not None:
            return _LocalFile(self.path / f"{step:012d}" / name, size)
        return _native.ObjectWriter(
            self.place(step) + "/",
            os.fsencode(name),
            size,
            self._variables,
            timeout_s=max(self._timeout_s, size / _MIN_RATE_BYTES_PER_S),
        )

    def commit(self, step: int, attempt: str, *, world: int, sizes: dict[str, int], metadata: bytes) -> Checkpoint:
        """Write the metadata and then the commit object, which completes the checkpoint.

        Args:
            sizes: Size of each data file in bytes, by name.

        Raises:
            ConfigError: The store does not show the files of every rank.
            PreconditionFailed: Another writer committed this step first.
        """
        found = self._listed(step).get(step, {})
        missing = [name for name, size in sizes.items() if found.get(name) != size]
        if missing:
            raise ConfigError(
                f"{self.place(step)}: rank 0 does not see {len(missing):,} of the {len(sizes):,} files of the ranks "
                f"(such as {missing[0]})",
                where=self.url,
                hint="give --checkpoint a folder that all nodes share, or a store",
            )
        writer = self.create(step, metadata_name(attempt), len(metadata))
        try:
            writer.write(metadata)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        commit = _Commit(
            _FORMAT, _VERSION, step, attempt, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), world,
            len(sizes), sum(sizes.values()), len(metadata), _native.crc32c(metadata),
        )  # fmt: skip
        name, content = b"%012d/%s" % (step, _COMMIT.encode()), msgspec.json.encode(commit)
        try:
            self._files.put(name, content, create_only=True)
        except PreconditionFailed:
            raise self._exists(step) from None
        except Unsupported:  # no conditional writes; `new_attempt` has checked that the step has no checkpoint
            self._files.put(name, content)
        return _described(commit)

    def prune(self, keep: int) -> int:
        """Delete all but the newest `keep` complete checkpoints, and the files of killed attempts at older steps.
        Return the number of deleted checkpoints. Never deletes the newest complete checkpoint.
        """
        listed = self._listed()
        whole = [one for step, files in sorted(listed.items()) if (one := self._if_whole(step, files))]
        if not whole:
            return 0
        old = {one.step for one in whole[: -max(keep, 1)]}
        kept = {one.step: one.attempt for one in whole if one.step not in old}
        newest = whole[-1].step
        for step, files in sorted(listed.items()):
            if step > newest or step in self._damaged:
                continue
            if step in kept:
                gone = [name for name in files if not name.startswith((kept[step], _COMMIT))]
            else:
                # Delete the commit first, so that a partly deleted checkpoint is never listed as complete.
                if _COMMIT in files:
                    self._delete(step, [_COMMIT])
                gone = [name for name in files if name != _COMMIT]
            self._delete(step, gone)
            if step not in kept and self.path is not None:
                remove_empty_folder(self.path / f"{step:012d}")
        return len(old)

    def remove(self, step: int, name: str) -> None:
        """Remove a file of a checkpoint that was not committed."""
        self._delete(step, [name])
        if self.path is not None:
            remove_empty_folder(self.path / f"{step:012d}")

    def _delete(self, step: int, names: list[str]) -> None:
        if names:
            self._files.delete([os.fsencode(f"{step:012d}/{name}") for name in names])


class _Newer(Corrupt):
    """A newer version of Penstock wrote the checkpoint. Do not skip such a checkpoint silently."""


def _described(commit: _Commit) -> Checkpoint:
    return Checkpoint(commit.step, commit.bytes, commit.files, commit.world, commit.created, commit.attempt)


class _LocalFile:
    """File of a checkpoint in a local folder. It has its final name from the start, because readers ignore the file
    before the commit. The core's writer is not used, because it would keep the whole file in memory.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size, self._written = path, size, 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise self._fault(error) from None

    def _fault(self, error: OSError) -> PenstockError:
        place = str(self._path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(
                f"{place}: no space left on the disk (wrote {self._written:,} of {self._size:,} bytes)",
                where=place,
                need=self._size,
                hint="free some space, keep fewer checkpoints, or choose a folder on another disk",
            )
        kind = Denied if isinstance(error, PermissionError) else SystemFault
        return kind(f"{place} cannot be written: {error.strerror or error}", where=place)

    def write(self, data: Any, /) -> None:
        rest = memoryview(data)
        try:
            while rest:
                count = self._file.write(rest)
                self._written += count
                rest = rest[count:]
        except OSError as error:
            raise self._fault(error) from None

    def finish(self) -> None:
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            for folder in (self._path.parent, self._path.parent.parent):
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except OSError as error:
            raise self._fault(error) from None

    def abort(self) -> None:
        self._file.close()
        remove_file(self._path)
        remove_empty_folder(self._path.parent)


def list_checkpoints(url: str | os.PathLike[str]) -> list[Checkpoint]:
    """List the complete checkpoints below a URL, by step. The list is empty if the folder does not exist.

    Raises:
        PenstockError: The store cannot be listed.
    """
    return CheckpointFolder(url).whole()


def latest_checkpoint(url: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the complete checkpoint with the highest step below a URL, or None if there is no complete checkpoint.

    Raises:
        PenstockError: The store cannot be listed.
    """
    return CheckpointFolder(url).latest()
