# SPDX-License-Identifier: Apache-2.0
"""Checks that code removes files, unmounts file systems and signals processes only through `penstock.ownership`.

The functions of `penstock.ownership` first prove that the target belongs to Penstock. A handle's own `kill()`, `terminate()` and
`send_signal()` are allowed: they reach only a child that is not yet reaped.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find"]

_HOME = "penstock/ownership"
_OF_OS = {"kill", "killpg", "remove", "removedirs", "rmdir", "unlink"}
# Methods that are checked on any object: a path, a module or a descriptor.
_ANYWHERE = {"killpg", "pidfd_send_signal", "removedirs", "rmdir", "rmtree", "unlink"}
_PROGRAMS = {"fuser", "fusermount", "fusermount3", "kill", "killall", "pkill", "rm", "rmdir", "umount"}


def find(root: Path) -> list[str]:
    breaches = []
    for path in sorted((root / "python").rglob("*.py")):
        name = path.relative_to(root)
        if _HOME in name.as_posix():
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = _found(node)
            if found:
                breaches.append(f"{name}:{getattr(node, 'lineno', 0)}: {found} may be used only in penstock.ownership")
    return breaches


def _found(node: ast.AST) -> str | None:
    """Name of the removing or signalling function that a node uses, or None. A reference counts, as in a callback."""
    if isinstance(node, ast.Attribute):
        is_os = isinstance(node.value, ast.Name) and node.value.id == "os"
        if node.attr in _ANYWHERE or (is_os and node.attr in _OF_OS):
            return f"{ast.unparse(node.value)}.{node.attr}"
    if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil", "signal"):
        names = [alias.name for alias in node.names if alias.name in _OF_OS | _ANYWHERE]
        return f"{node.module}.{names[0]}" if names else None
    words = node.elts if isinstance(node, (ast.List, ast.Tuple)) else node.args if isinstance(node, ast.Call) else []
    first = words[0] if words else None
    if isinstance(first, ast.Constant) and first.value in _PROGRAMS and not _is_about_text(node):
        return f"the program `{first.value}`"
    return None


def _is_about_text(node: ast.AST) -> bool:
    """True for a call that looks up a program, or handles its name as text."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("which", "get")
