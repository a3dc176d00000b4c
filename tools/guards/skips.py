# SPDX-License-Identifier: Apache-2.0
"""Checks that no test is skipped. A missing package, server or device fails, so a green run means that all tests ran."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tools.guards.tree import tracked

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find"]

_SKIPS = {"importorskip", "skip", "skipif", "skipTest", "skipIf", "skipUnless", "SkipTest"}
_FROM = {"pytest", "pytest.mark", "mark", "unittest", "self"}


def find(root: Path) -> list[str]:
    breaches = []
    for name in tracked(root):
        if name.suffix == ".py" and name.parts[0] == "tests":
            tree = ast.parse((root / name).read_text(encoding="utf-8"))
            breaches += [
                f"{name}:{line}: `{what}` skips a test; a missing need is a failure" for line, what in _skips(tree)
            ]
    return breaches


def _skips(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _SKIPS and ast.unparse(node.value) in _FROM:
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.ImportFrom) and node.module in _FROM:
            found += [(node.lineno, alias.name) for alias in node.names if alias.name in _SKIPS]
    return sorted(found)
