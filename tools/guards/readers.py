# SPDX-License-Identifier: Apache-2.0
"""Checks that packages that read results import nothing that moves bytes.

Also checks that nothing shipped imports `penstock.testing`. import-linter checks the rules between Python modules, but
it does not see the compiled core, or a package that does not exist yet.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find", "imported"]

_READERS = ("price", "plan", "report")
_MOVERS = (
    "penstock._native",
    "penstock.feed",
    "penstock.stage",
    "penstock.emulator",
    "penstock.datasets",
    "penstock.train",
    "torch",
)
_PLUG_INS = ("workloads", "engines", "launchers")
_PLUG_IN_MAY = (
    "penstock.protocols",
    "penstock.errors",
    "penstock.units",
    "penstock.ownership",
    "penstock.plugins.parse_settings",
    "penstock.atomic_file",
    "penstock.child_process",
    "penstock.node_program",
    "penstock.cpu_binding",
)


def find(root: Path) -> list[str]:
    package = root / "python/penstock"
    breaches = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        room = place.parts[0]
        name = path.relative_to(root)
        for module in imported(path):
            if room in _READERS and _under(module, _MOVERS):
                breaches.append(f"{name}: `{room}` only reads results, and may not import {module}")
            if room != "testing" and _under(module, ("penstock.testing",)):
                breaches.append(f"{name}: nothing that is shipped imports {module}")
            own = f"penstock.{room}"
            if room in _PLUG_INS and _under(module, ("penstock",)) and not _under(module, (*_PLUG_IN_MAY, own)):
                breaches.append(f"{name}: a plug-in may know {', '.join(_PLUG_IN_MAY)}, not {module}")
    return breaches


def imported(path: Path) -> list[str]:
    """All modules that a file imports, also inside functions. Imports for type checkers never run, and are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from penstock import units` imports a module, so the joined name counts too. For `from penstock.units
            # import parse_bytes` the joined name matches no module, which does no harm.
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _under(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)
