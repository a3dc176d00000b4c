# SPDX-License-Identifier: Apache-2.0
"""Cache directories of the feed. Anything in them may be deleted at any time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["record_index_dir"]


def record_index_dir(variables: Mapping[str, str]) -> str | None:
    """The folder of record indexes: `PENSTOCK_CACHE`, or `penstock` below `XDG_CACHE_HOME` or `~/.cache`.

    None if `PENSTOCK_CACHE` is set and empty: indexes are not kept then.
    """
    value = variables.get("PENSTOCK_CACHE")
    if value is not None:
        return str(Path(value) / "records") if value else None
    home = variables.get("XDG_CACHE_HOME")
    if home:
        return str(Path(home) / "penstock/records")
    home = variables.get("HOME")
    return str(Path(home) / ".cache/penstock/records") if home else None
