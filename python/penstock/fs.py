# SPDX-License-Identifier: Apache-2.0
"""Read-only fsspec filesystem over Penstock's stores, for pandas, xarray, h5py and other libraries that accept fsspec.

    fs = penstock.fs.FileSystem()
    pandas.read_csv(fs.open("s3://bucket/labels.csv"))
    fsspec.open("penstock::s3://bucket/labels.csv")        # if the entry point is installed

Implements paths and listings. The stores handle requests, credentials, retries and deadlines. Folders are key prefixes.
"""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlsplit

from penstock import _native, env
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError, NotFound
from penstock.extras import require

require("penstock.fs", "fsspec")

from fsspec import AbstractFileSystem  # noqa: E402 - fsspec is there now
from fsspec.spec import AbstractBufferedFile  # noqa: E402

__all__ = ["FileSystem"]

_BLOCK = 4 << 20
"""Read-ahead of `open` in bytes: large enough to hide the latency of one request, small enough to waste little on a
seek."""


class _File(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An open object, pinned to the version that it had when it was opened."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        found: bytes = self.fs.cat_file(self.path, start, end, version=self.details.get("version"))
        return found


class FileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Read-only filesystem over every store, with full URLs as paths: `ls`, `info`, `open`, `cat_file`, `cat_ranges`,
    `glob`, `find`, `walk`.
    """

    protocol: ClassVar[tuple[str, ...]] = ("penstock",)
    root_marker = ""
    cachable = True

    @renamed_parameters({"deadline_s": "timeout_s"})
    def __init__(self, *, timeout_s: float = 600.0, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s
        self._stores: dict[str, _native.Files] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(path).removeprefix("penstock::").removeprefix("penstock://")
        if "://" not in text:
            text = f"file://{text if text.startswith('/') else '/' + text}"
        scheme, _, rest = text.partition("://")
        return f"{scheme}://{rest.rstrip('/') if len(rest) > 1 else rest}"

    @classmethod
    def _parent(cls, path: str) -> str:
        scheme, _, rest = cls._strip_protocol(path).partition("://")
        return f"{scheme}://{rest.rpartition('/')[0]}"

    def _opened(self, path: str) -> tuple[_native.Files, str, str]:
        """Return the store of a path, the URL of the store's root, and the path below it."""
        parts = urlsplit(path, allow_fragments=False)
        if not parts.scheme:
            raise ConfigError(f"{path} is not a URL", where="path")
        root = f"{parts.scheme}://{parts.netloc}"
        if root not in self._stores:
            self._stores[root] = _native.Files(root + "/", dict(env.read()), timeout_s=self._timeout_s)
        return self._stores[root], root, path[len(root) :].lstrip("/")

    @staticmethod
    def _entry(root: str, found: tuple[bytes, int, str | None, float | None]) -> dict[str, Any]:
        key, size, version, modified = found
        name = f"{root}/{key.decode(errors='surrogateescape')}"
        return {"name": name, "size": size, "type": "file", "version": version, "modified_s": modified}

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """Return the entries directly below a path or, for an object, the object itself."""
        path = self._strip_protocol(path)
        files, root, name = self._opened(path)
        prefix = f"{name}/" if name else ""
        found: dict[str, dict[str, Any]] = {}
        for entry in files.described(prefix.encode(errors="surrogateescape")):
            below = entry[0].decode(errors="surrogateescape")[len(prefix) :]
            head, slash, _rest = below.partition("/")
            full = f"{root}/{prefix}{head}"
            found[full] = {"name": full, "size": 0, "type": "directory"} if slash else self._entry(root, entry)
        if not found:
            info = self.info(path)
            found = {info["name"]: info} if info["type"] == "file" else {}
        entries = list(found.values())
        return entries if detail else sorted(found)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the size, type, version and modification time.

        Raises:
            NotFound: The path is neither an object nor a prefix of a key.
        """
        path = self._strip_protocol(path)
        files, root, name = self._opened(path)
        if name:
            try:
                return self._entry(root, files.head(name.encode(errors="surrogateescape")))
            except (NotFound, IsADirectoryError):
                pass
        if not name or files.described(f"{name}/".encode(errors="surrogateescape"), most=1):
            return {"name": path, "size": 0, "type": "directory"}
        raise NotFound(f"{path} does not exist", where=path)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """Return all objects below a path, from one listing."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        path = self._strip_protocol(path)
        files, root, name = self._opened(path)
        listed = files.described((f"{name}/" if name else "").encode(errors="surrogateescape"))
        found = {entry["name"]: entry for entry in (self._entry(root, each) for each in listed)}
        if not found and name and self.exists(path) and self.info(path)["type"] == "file":
            found = {path: self.info(path)}
        return found if detail else sorted(found)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, *, version: str | None = None, **_: Any
    ) -> bytes:
        """Return the bytes of an object from `start` to `end`. Negative values count from the end."""
        path = self._strip_protocol(path)
        files, _root, name = self._opened(path)
        first, last = start or 0, end
        if first < 0 or last is None or last < 0:
            size = files.head(name.encode(errors="surrogateescape"))[1]
            first = max(0, size + first) if first < 0 else first
            last = size if last is None else (size + last if last < 0 else last)
        if last <= first:
            return b""
        (found,) = files.read(name.encode(errors="surrogateescape"), [(first, last - first)], version=version)
        return found

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        """Read several ranges. The ranges of one object are read in a single call to the store."""
        del max_gap  # unused: the store merges neighbouring ranges
        count = len(paths)
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * count
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * count
        if not len(starts) == len(ends) == count:
            raise ConfigError(
                f"cat_ranges: paths, starts and ends must have the same length (got {count}, {len(starts)} and {len(ends)})",
                where="cat_ranges",
            )
        found: list[Any] = [None] * count
        plain: dict[str, list[int]] = {}
        for at, (path, start, end) in enumerate(zip(paths, starts, ends, strict=True)):
            if start is not None and end is not None and 0 <= start < end:
                plain.setdefault(self._strip_protocol(path), []).append(at)
            else:
                found[at] = self._guarded(on_error, lambda p=path, s=start, e=end: self.cat_file(p, s, e))
        for path, slots in plain.items():
            files, _root, name = self._opened(path)
            ranges = [(starts[at], ends[at] - starts[at]) for at in slots]
            read = self._guarded(
                on_error, lambda f=files, n=name, r=ranges: f.read(n.encode(errors="surrogateescape"), r)
            )
            for number, at in enumerate(slots):
                found[at] = read if isinstance(read, Exception) else read[number]
        return found

    @staticmethod
    def _guarded(on_error: str, work: Any) -> Any:
        try:
            return work()
        except Exception as error:
            if on_error == "raise":
                raise
            return error

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, cache_options: Any = None, **options: Any
    ) -> _File:
        if mode != "rb":
            raise ConfigError(f"mode: `{mode}` is not supported, because this file system is read-only", where="mode")
        block = block_size if isinstance(block_size, int) else _BLOCK
        return _File(self, path, mode, block, cache_options=cache_options, **options)

    def created(self, path: str) -> Any:
        """Not supported, because stores do not record the creation time. Returns the modification time."""
        return self.modified(path)

    def modified(self, path: str) -> Any:
        """Return the modification time of the object."""
        from datetime import UTC, datetime

        changed = self.info(path).get("modified_s")
        return None if changed is None else datetime.fromtimestamp(changed, UTC)

    def ukey(self, path: str) -> str:
        """Return a key that changes whenever the object changes."""
        info = self.info(path)
        return f"{info['name']}:{info.get('version')}:{info['size']}"
