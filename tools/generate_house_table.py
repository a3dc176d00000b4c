# SPDX-License-Identifier: Apache-2.0
"""Write the table of crates and packages in CONTRIBUTING.md from their descriptions; `--check` exits 1 if it is stale."""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- house: written by tools/generate_house_table.py -->\n", "<!-- end of house -->\n"


def table(root: Path = ROOT) -> str:
    """A table row for each crate (its description) and each Python package (its docstring's first sentence)."""
    rows = ["| where | what |", "|---|---|"]
    for path in sorted(root.glob("crates/*/Cargo.toml")):
        described = tomllib.loads(path.read_text())["package"]["description"]
        rows.append(f"| `{path.parent.relative_to(root)}` | {described} |")
    for path in sorted(root.glob("python/penstock/*/__init__.py")):
        result = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
        first = re.split(r"(?<=\.)\s", result)[0].removesuffix(".").replace("|", "\\|")
        rows.append(f"| `{path.parent.relative_to(root)}` | {first} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the table is stale")
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    wanted = before + BEGIN + table() + END + rest.split(END)[1]
    if not parser.parse_args().check:
        PAGE.write_text(wanted)
    elif text != wanted:
        print(f"{PAGE.name} is stale: run make generate")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
