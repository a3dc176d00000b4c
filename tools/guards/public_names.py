# SPDX-License-Identifier: Apache-2.0
"""Checks that there are at most 30 public names, each with a page entry.

Also checks that the compiled module's list of names equals its stub's.
"""

from __future__ import annotations

import ast
import importlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LIMIT", "documented", "find", "listed"]

LIMIT = 30
_PAGE = "docs/reference/python.md"


# Adapters for libraries that these checks' environment does not have; `make test-peers` imports them.
_FOREIGN = {"jax", "tensorflow"}


def find(root: Path) -> list[str]:
    names = listed(root / "python/penstock/__init__.py")
    breaches = []
    if len(names) > LIMIT:
        breaches.append(f"penstock.__all__ has {len(names)} names; {LIMIT} at most")
    result = documented((root / _PAGE).read_text(encoding="utf-8"))
    breaches += [f"penstock.{name} has no heading in {_PAGE}" for name in names if name not in result]
    breaches += [
        f"{_PAGE} has a heading for penstock.{name}, which is not public" for name in sorted(result - set(names))
    ]
    penstock = importlib.import_module("penstock")
    for name in names:
        try:
            getattr(penstock, name)
        except ModuleNotFoundError as error:
            if error.name not in _FOREIGN:
                breaches.append(f"penstock.{name} is in the public list, but does not load: {error}")
        except (AttributeError, ImportError) as error:
            breaches.append(f"penstock.{name} is in the public list, but does not load: {error}")
    stub = set(listed(root / "python/penstock/_native.pyi"))
    native = importlib.import_module("penstock._native")
    compiled = {name for name in dir(native) if not name.startswith("_")} | {"__profile__", "__version__"}
    breaches += [
        f"penstock._native.{name} is in the stub's __all__, not in the module" for name in sorted(stub - compiled)
    ]
    breaches += [
        f"penstock._native.{name} is in the module, not in the stub's __all__" for name in sorted(compiled - stub)
    ]
    return breaches


def listed(path: Path) -> list[str]:
    """The literal `__all__` of a module or stub, read without running the file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def documented(page: str) -> set[str]:
    """Names that have their own heading: ### `penstock.NAME`, with or without a call."""
    return set(re.findall(r"^#+ `penstock\.(\w+)", page, flags=re.MULTILINE))
