# SPDX-License-Identifier: Apache-2.0
"""Nothing is removed, unmounted or signalled but by `penstock.ownership`, whose functions prove first that it is ours.

A handle's own `kill()`, `terminate()` and `send_signal()` are free: they reach a child that is not reaped, or nothing.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find"]

_HOME = "penstock/ownership"
_OF_OS = {"kill", "killpg", "remove", "removedirs", "rmdir", "unlink"}
# Of a path, a module or a descriptor, whatever its name.
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
                breaches.append(f"{name}:{getattr(node, 'lineno', 0)}: {found} is for penstock.ownership alone")
    return breaches


def _found(node: ast.AST) -> str | None:
    """What a node removes or signals by, or None. A reference counts as a call: callbacks are references."""
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
    """A call that looks a program up, or handles its name as text."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("which", "get")
