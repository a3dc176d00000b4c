# SPDX-License-Identifier: Apache-2.0
"""Paths of this machine, as users write them. Accesses no file."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import ConfigError, Unsupported

__all__ = ["absolute", "is_local", "local_path"]


def absolute(text: str) -> str:
    """Return a path as an absolute path, with `~` replaced by the home folder, and a URL (with `://`) unchanged. The
    `~NAME` of an unknown user remains, as in shells. A slash at the end is dropped.
    """
    if "://" in text:
        return text
    return str(Path(os.path.expanduser(text)).absolute())  # noqa: PTH111 - pathlib raises for an unknown `~NAME`


def is_local(url: str) -> bool:
    """True for a path and for file://."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> str:
    """Return the absolute path of a destination, with `~` replaced by the home folder.

    Raises:
        Unsupported: The destination is in a store.
    """
    if not is_local(url):
        scheme = url.partition("://")[0]
        raise Unsupported(f"destination: must be a local folder, not a {scheme}:// URL (got `{url}`)")
    path = url.removeprefix("file://").removeprefix("localhost")
    if url.startswith("file://") and not path.startswith("/"):
        raise ConfigError(f"destination: `{url}` is on another host", where="destination")
    if not path:
        raise ConfigError("destination: must not be empty", where="destination")
    path = path if url.startswith("file://") else os.path.expanduser(path)  # noqa: PTH111
    return os.path.abspath(path)  # noqa: PTH100 - links are not resolved
