# SPDX-License-Identifier: Apache-2.0
"""Node programs: packs Penstock's scripts into one line of text for `python3 -c`, for nodes without Penstock."""

from __future__ import annotations

import base64
import zlib
from functools import cache
from pathlib import Path

__all__ = ["node_program"]

_PACKAGE = Path(__file__).parent
# Modules of `penstock.ownership` in import order. The package `penstock` itself is empty in a node program.
_CARRIED = ("mounts", "folders", "processes", "__init__")
_BINDING = ("penstock.cpu_binding", "cpu_binding.py")
_LOADER = """
import sys, types
for name in ("penstock", *(row[0] for row in ROWS[:-1])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, file, text in ROWS:
    exec(compile(text, file, "exec"), sys.modules[name].__dict__)
"""


@cache
def node_program(file: Path) -> str:
    """Return the text of a program that runs `file`, which may import `penstock.ownership` and
    `penstock.cpu_binding`. Tracebacks show the original files.

    The text is one line without `!` and braces: csh interprets `!` and newlines even in quotes, and launchers replace
    placeholders such as `{node}`.
    """
    rows = []
    for part in _CARRIED:
        module = "penstock.ownership" if part == "__init__" else f"penstock.ownership.{part}"
        rows.append((module, *_read(_PACKAGE / f"ownership/{part}.py")))
    name, binding = _BINDING
    rows.append((name, *_read(_PACKAGE / binding)))
    rows.append(("__main__", *_read(file)))
    packed = base64.b64encode(zlib.compress(f"ROWS = {rows!r}{_LOADER}".encode(), 9)).decode()
    return f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'


def _read(file: Path) -> tuple[str, str]:
    return f"penstock/{file.relative_to(_PACKAGE)}", file.read_text(encoding="utf-8")
