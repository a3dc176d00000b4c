# SPDX-License-Identifier: Apache-2.0
"""Names of the files through which ranks and their parent process exchange the spec, progress, results and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.atomic_file import atomic_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ALONE", "ERROR", "PROGRESS", "RESULT", "SPEC", "write_json"]

SPEC, RESULT, PROGRESS, ERROR = "spec.json", "result.json", "progress.json", "error-{rank}.json"
ALONE = "use --ranks 1 to reproduce it in one process"


def write_json(file: Path, value: object) -> None:
    """Write a JSON file atomically, because the parent process may read it at any time."""
    with atomic_file(file, durable=False) as out:
        out.write(msgspec.json.encode(value))
