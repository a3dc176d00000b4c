# SPDX-License-Identifier: Apache-2.0
"""Checks that every source file starts with one SPDX licence line (after the `#!` line, if it has one)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.guards.tree import read_text, tracked

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find"]

_SUFFIXES = {".rs", ".py", ".pyi", ".sh"}
_NAMES = {"Makefile", "run"}
_LINE = "SPDX-License-Identifier: Apache-2.0"


def find(root: Path) -> list[str]:
    breaches = []
    for name in tracked(root):
        if name.suffix not in _SUFFIXES and name.name not in _NAMES:
            continue
        lines = (read_text(root / name) or "").splitlines()
        first = lines[1:2] if lines[:1] and lines[0].startswith("#!") else lines[:1]
        if not first or _LINE not in first[0]:
            breaches.append(f"{name}: the first line must be the comment `{_LINE}`")
    return breaches
