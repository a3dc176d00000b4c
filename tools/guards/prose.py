# SPDX-License-Identifier: Apache-2.0
"""Counts phrases that plain technical English avoids. No count may exceed its ceiling in `prose.json`.

`python -m tools.guards.prose` prints the counts. With `--write` it lowers the ceilings to the counts, and never raises
one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tools.guards.tree import read_text, tracked

__all__ = ["counts", "find"]

CEILINGS = Path(__file__).with_name("prose.json")
_ROOTS = ("crates/", "python/", "docs/guides/", "docs/concepts/", "docs/reference/", "README.md", "CONTRIBUTING.md")
_SUFFIXES = {".rs", ".py", ".pyi", ".md"}
_BANNED = {
    # Use instead: return, print, report, receive, contain.
    "told, tells, hears, heard": r"\b(told|tells?|telling|hears?|heard)\b",
    # Use instead: "is not a", "is not valid", "missing".
    "is no X, is none": r"\b(is|are|was|were|be) (no|none)\b(?! (longer|more|less|fewer|larger|smaller))|\bof none but\b",
    "stands": r"\bstands?\b",
    "held against": r"\b(held|hold|holds) (\w+ ){0,3}against\b",
    "nobody, whoever, somebody": r"\b(nobody|whoever|somebody)\b",
    "anew": r"\banew\b",
    "gives way": r"\b(gives?|gave) way\b",
    # A docstring or prologue that starts with a noun clause: use a noun instead.
    "opens with What": r"(?m)^\s*(//[/!]|\"\"\"|# )\s*What (?!is this)",
}


def counts(root: Path) -> dict[str, int]:
    """Number of occurrences of each construction in tracked sources and pages."""
    found = dict.fromkeys(_BANNED, 0)
    for name in tracked(root):
        if name.suffix in _SUFFIXES and str(name).startswith(_ROOTS):
            text = read_text(root / name) or ""
            for rule, pattern in _BANNED.items():
                found[rule] += len(re.findall(pattern, text))
    return found


def find(root: Path) -> list[str]:
    ceilings = json.loads(CEILINGS.read_text())
    return [
        f"`{rule}` occurs {count:,} times, and {ceilings.get(rule, 0):,} are allowed: write what was added plainly (STYLE, words)"
        for rule, count in counts(root).items()
        if count > ceilings.get(rule, 0)
    ]


def main() -> int:
    found = counts(Path(__file__).resolve().parents[2])
    if "--write" in sys.argv:
        before = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else found
        found = {rule: min(count, before.get(rule, count)) for rule, count in found.items()}
        CEILINGS.write_text(json.dumps(found, indent=2) + "\n")
    print("\n".join(f"{count:6,}  {rule}" for rule, count in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
