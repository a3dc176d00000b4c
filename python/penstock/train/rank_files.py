# SPDX-License-Identifier: Apache-2.0
"""Files by which the ranks of a run and the process that launched them exchange the spec, progress, results and errors."""

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
    """Write atomically, because the parent may read at any time."""
    with atomic_file(file, durable=False) as out:
        out.write(msgspec.json.encode(value))
