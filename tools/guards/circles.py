# SPDX-License-Identifier: Apache-2.0
"""Checks that no files import each other, directly or through other files. Covers Python modules and Rust files.

A parent and its children may use each other (a package's `__init__`, a crate's `lib.rs`, a `mod.rs`). Imports for type
checkers do not count, and neither do tests.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from tools.guards.tree import tracked

__all__ = ["circles", "find"]


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one file (Tarjan), each sorted."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            part = [stack.pop()]
            while part[-1] != node:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(part))

    sys.setrecursionlimit(10_000)
    for node in sorted(edges):
        if node not in number:
            visit(node)
    return sorted(found)


def _is_family(a: str, b: str) -> bool:
    """Whether either module is an ancestor of the other."""
    return a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.") or "" in (a, b)


# ---------------------------------------------------------------- Python


def _imports(tree: ast.Module, module: str, *, is_package: bool) -> set[str]:
    """Dotted names that a module imports at run time, each with the names imported from it."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for statement in node.orelse:
                walk(statement)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(tree)
    return found


def python_edges(root: Path) -> dict[str, set[str]]:
    files = {
        ".".join(name.relative_to("python").with_suffix("").parts).removesuffix(".__init__"): name
        for name in tracked(root)
        if name.suffix == ".py" and name.parts[:2] == ("python", "penstock")
    }
    edges: dict[str, set[str]] = {}
    for module, name in files.items():
        tree = ast.parse((root / name).read_text())
        for imported in _imports(tree, module, is_package=name.name == "__init__.py"):
            target = imported if imported in files else imported.rpartition(".")[0]
            if target in files and not _is_family(module, target):
                edges.setdefault(module, set()).add(target)
    return edges


# ---------------------------------------------------------------- Rust

_USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", re.MULTILINE)
_PATH = re.compile(r"\b((?:crate|self|super)(?:::(?:\w+))+)")


def _expanded(tree: str) -> list[str]:
    """Expands `a::{b, c::{d, e}}` to `a::b`, `a::c::d`, `a::c::e`."""
    tree = " ".join(tree.split())
    opened = tree.find("{")
    if opened < 0:
        return [tree.partition(" as ")[0].strip()]
    prefix, inner = tree[:opened], tree[opened + 1 : tree.rindex("}")]
    parts, depth, part = [], 0, ""
    for char in inner:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [prefix + each for piece in [*parts, part] if piece.strip() for each in _expanded(piece.strip())]


def _without_tests(text: str) -> str:
    text = re.sub(r"//[^\n]*", "", text)
    return re.split(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{", text)[0]


def rust_edges(root: Path, crate: str) -> dict[str, set[str]]:
    source = Path("crates") / crate / "src"
    files: dict[str, Path] = {}
    for name in tracked(root):
        if (
            name.suffix == ".rs"
            and name.is_relative_to(source)
            and "tests" not in name.stem
            and "tests" not in name.parts
        ):
            module = ".".join(name.relative_to(source).with_suffix("").parts)
            files["" if module == "lib" else module.removesuffix(".mod")] = name
    texts = {module: _without_tests((root / name).read_text()) for module, name in files.items()}

    def absolute(module: str, path: str) -> list[str]:
        words = path.split("::")
        at = module.split(".") if module else []
        if words[0] == "crate":
            at, words = [], words[1:]
        elif words[0] in ("self", "super"):
            while words and words[0] in ("self", "super"):
                at = at[:-1] if words[0] == "super" else at
                words = words[1:]
        return [*at, *words]

    # Names that a module re-exports from its children: a use of such a name counts as a use of the child.
    exports: dict[str, dict[str, str]] = {module: {} for module in files}
    for module, text in texts.items():
        for use in _USE.findall(text):
            for path in _expanded(use):
                words = path.split("::")
                child = f"{module}.{words[0]}".strip(".") if words[0] not in ("crate", "self", "super") else ""
                if child in files and len(words) > 1:
                    exports[module][words[-1]] = child

    def file_of(words: list[str]) -> str | None:
        for count in range(len(words), -1, -1):
            module = ".".join(words[:count])
            if module in files:
                rest = words[count:]
                return exports[module].get(rest[0], module) if rest else module
        return None

    edges: dict[str, set[str]] = {}
    for module, text in texts.items():
        paths = {path for use in _USE.findall(text) for path in _expanded(use)} | set(_PATH.findall(text))
        for path in paths:
            if path.split("::")[0] not in ("crate", "self", "super"):
                continue
            target = file_of(absolute(module, path))
            if target is not None and not _is_family(module, target):
                edges.setdefault(f"{crate}:{module}", set()).add(f"{crate}:{target}")
    return edges


def all_circles(root: Path) -> list[list[str]]:
    """One line for each import cycle of the tree."""
    found = circles(python_edges(root))
    for crate in sorted({name.parts[1] for name in tracked(root) if name.parts[:1] == ("crates",)}):
        found += circles(rust_edges(root, crate))
    return found


def find(root: Path) -> list[str]:
    return [
        f"{' <-> '.join(each)} use each other: move what they share below both, or pass it in"
        for each in all_circles(root)
    ]
