# SPDX-License-Identifier: Apache-2.0
"""Folder of record indexes in the cache of the feed. Any file in this folder can be deleted at any time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["record_index_dir"]


def record_index_dir(variables: Mapping[str, str]) -> str | None:
    """Return the folder of record indexes. It is below `PENSTOCK_CACHE` or, by default, below `penstock` in
    `XDG_CACHE_HOME` or `~/.cache`.

    If `PENSTOCK_CACHE` is set but empty, the result is None, and indexes are not stored.
    """
    value = variables.get("PENSTOCK_CACHE")
    if value is not None:
        return str(Path(value) / "records") if value else None
    home = variables.get("XDG_CACHE_HOME")
    if home:
        return str(Path(home) / "penstock/records")
    home = variables.get("HOME")
    return str(Path(home) / ".cache/penstock/records") if home else None
