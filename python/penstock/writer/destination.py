# SPDX-License-Identifier: Apache-2.0
"""Destination of a write: a local folder or a folder in a store. Objects appear only when they are complete."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.atomic_file import PART_PREFIX, atomic_file
from penstock.datasets.files import write_errors
from penstock.errors import ConfigError, Interrupted, NotFound, Unsupported
from penstock.local_paths import absolute, is_local, local_path
from penstock.ownership import remove_file

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OWN", "Destination"]

OWN = ".penstock"
"""Prefix of the names of Penstock's own objects, which do not belong to the dataset."""

_PIECE = 8 << 20
_MIN_RATE_BYTES_PER_S = 1e6
"""Minimum rate of a large upload. The time limit increases by size / rate, so a slower upload fails."""


class Destination:
    """The folder at a URL or path. The folder is created when the first object is written.

    Raises:
        ConfigError: The URL is empty or on another host.
        Unsupported: The URL is a dataset of the Hugging Face Hub, or on a web server.
    """

    def __init__(self, url: str | os.PathLike[str], *, timeout_s: float) -> None:
        text = os.fsdecode(url)
        if not text:
            raise ConfigError("url: must not be empty", where="url")
        if text.startswith("hf://"):
            raise Unsupported(
                f"url: {text} is on the Hugging Face Hub, to which Penstock does not write",
                where="url",
                hint="write to a local folder, then upload it: "
                "huggingface-cli upload ORG/NAME FOLDER --repo-type dataset",
            )
        if text.startswith(("http://", "https://")):
            raise Unsupported(
                f"url: {text} is on a web server, to which Penstock does not write",
                where="url",
                hint="write to a local folder or a bucket (s3://, gs://, az://)",
            )
        self.path = Path(local_path(absolute(text))) if is_local(text) else None
        self.url = (str(self.path) if self.path is not None else text.rstrip("/")) + "/"
        self._timeout_s = timeout_s
        self._files: _native.Files | None = None
        self.stop = threading.Event()
        """After this event is set, a write in progress raises Interrupted."""

    @property
    def files(self) -> _native.Files:
        """The store below the URL."""
        if self._files is None:
            if self.path is not None:
                with write_errors(self.path):
                    self.path.mkdir(parents=True, exist_ok=True)
            self._files = _native.Files(self.url, dict(env.read()), timeout_s=self._timeout_s)
        return self._files

    def listed(self) -> dict[str, int]:
        """Return the names and sizes of all objects, including Penstock's own objects."""
        if self.path is not None and not self.path.exists():
            return {}
        try:
            found = self.files.described(b"")
        except NotFound:
            return {}
        return {os.fsdecode(name): size for name, size, _version, _modified in found}

    def remove_parts(self) -> None:
        """Remove the temporary files of a killed write."""
        if self.path is not None and self.path.is_dir():
            for leftover in self.path.glob(f"{PART_PREFIX}*"):
                remove_file(leftover)

    def read(self, name: str, size: int) -> bytes:
        """Return the content of a small object."""
        return self.files.read(os.fsencode(name), [(0, size)])[0] if size else b""

    def put(self, name: str, data: bytes) -> None:
        """Write a small object in one request."""
        self.files.put(os.fsencode(name), data)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. Missing objects are ignored."""
        keys = [os.fsencode(name) for name in names]
        if keys:
            self.files.delete(keys)

    def put_shard(self, name: str, data: Any) -> None:
        """Write a shard. Local files are synced.

        Raises:
            NoSpace, Denied, SystemFault, ServerError: The shard cannot be written. No object appears under its name.
            Interrupted: `stop` was set.
        """
        view = memoryview(data).cast("B")  # cast, because the elements of an Arrow buffer are int8
        pieces = [view[start : start + _PIECE] for start in range(0, len(view), _PIECE)]
        if self.path is not None:
            self._put_file(self.path / name, pieces)
            return
        writer = _native.ObjectWriter(
            self.url,
            os.fsencode(name),
            len(view),
            dict(env.read()),
            timeout_s=self._timeout_s + len(view) / _MIN_RATE_BYTES_PER_S,
        )
        try:
            for piece in pieces:
                self._go_on()
                writer.write(piece)
            self._go_on()
            writer.finish()
        except BaseException:
            writer.abort()
            raise

    def _put_file(self, path: Path, pieces: list[memoryview]) -> None:
        with write_errors(path), atomic_file(path) as out:
            for piece in pieces:
                self._go_on()
                out.write(piece)

    def _go_on(self) -> None:
        if self.stop.is_set():
            raise Interrupted("the write was interrupted")
