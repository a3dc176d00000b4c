# SPDX-License-Identifier: Apache-2.0
"""Lists the files that a commit would contain: the tracked ones, and the untracked ones that git does not ignore."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["read_text", "tracked"]


def tracked(root: Path) -> list[Path]:
    """Tracked and not-ignored files, relative to root, sorted, without tracked files that were deleted on disk."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    names = sorted({Path(name.decode()) for name in listed.split(b"\0") if name})
    return [name for name in names if (root / name).is_file()]


def read_text(path: Path) -> str | None:
    """The file's text, or None if it is not UTF-8 (an image or a binary golden file)."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
