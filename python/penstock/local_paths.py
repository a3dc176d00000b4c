# SPDX-License-Identifier: Apache-2.0
"""Paths of this machine, as users write them. Accesses no file."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["absolute"]


def absolute(text: str) -> str:
    """Return a path as an absolute path, with `~` replaced by the home folder, and a URL (with `://`) unchanged. The
    `~NAME` of an unknown user remains, as in shells. A slash at the end is dropped.
    """
    if "://" in text:
        return text
    return str(Path(os.path.expanduser(text)).absolute())  # noqa: PTH111 - pathlib raises for an unknown `~NAME`
