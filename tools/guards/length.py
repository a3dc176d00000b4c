# SPDX-License-Identifier: Apache-2.0
"""Checks that files stay short: a file of over 800 lines must give the reason in its first comment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tools.guards.tree import read_text, tracked

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LIMIT", "find"]

LIMIT = 800
_SUFFIXES = {".rs", ".py", ".pyi", ".sh", ".js"}
# A prologue gives a reason if it mentions the file's own length.
_REASON = re.compile(r"\b(long|length|lines)\b", re.IGNORECASE)


def find(root: Path) -> list[str]:
    breaches = []
    for name in tracked(root):
        if name.suffix not in _SUFFIXES:
            continue
        lines = (read_text(root / name) or "").splitlines()
        if len(lines) > LIMIT and not _REASON.search(_first_comment(lines)):
            breaches.append(
                f"{name}: {len(lines)} lines; split it, or let its first comment say why it is longer than {LIMIT}"
            )
    return breaches


def _first_comment(lines: list[str]) -> str:
    """The prologue: everything before the first line of code, SPDX line left out. At most 40 lines."""
    kept: list[str] = []
    for line in lines[:40]:
        if re.match(r"\s*(use|import|from|mod|pub|def|class|const)\b", line):
            break
        if "SPDX" not in line:
            kept.append(line)
    return "\n".join(kept)
