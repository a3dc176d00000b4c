# SPDX-License-Identifier: Apache-2.0
"""The files that a commit would carry: what git tracks, and what it would if asked to add everything."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["read_text", "tracked"]


def tracked(root: Path) -> list[Path]:
    """Tracked and not-ignored files, relative to root, sorted; a deleted file that git still knows is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    names = sorted({Path(name.decode()) for name in listed.split(b"\0") if name})
    return [name for name in names if (root / name).is_file()]


def read_text(path: Path) -> str | None:
    """The file as text, or None where it is not UTF-8 (a picture, golden bytes)."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
