# SPDX-License-Identifier: Apache-2.0
"""Reads result files of Penstock, elbencho, fio, IOR and mdtest. Detects the format from the content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.bench.importers import elbencho, fio, ior, trace_rows
from penstock.bench.rows import Results, read_results
from penstock.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.bench.rows import Row

__all__ = ["read_any"]

# Maximum file size. A sweep prints thousands of lines; a larger file is a log, or data passed by mistake.
_LIMIT_BYTES = 256_000_000
# Number of bytes that suffice to detect a format. A folder of results may also contain the measured data, which must
# not be read in full.
_HEAD_BYTES = 1 << 16
_READERS: tuple[tuple[Callable[[str], bool], Callable[[str, str], list[Row]]], ...] = (
    (elbencho.looks_like, elbencho.parse),
    (fio.looks_like, fio.parse),
    (trace_rows.is_trace, trace_rows.parse_trace),
    (trace_rows.is_run, trace_rows.parse_run),
    (ior.looks_like_ior_json, ior.parse_ior_json),
    (ior.looks_like_ior_csv, ior.parse_ior_csv),
    (ior.looks_like_mdtest, ior.parse_mdtest),
    (ior.looks_like_ior, ior.parse_ior),
)
_KNOWN = (
    "elbencho's CSV, fio's JSON, IOR's output, JSON and CSV, mdtest's output, and folders written by penstock bench"
)


def _rows(file: Path) -> list[Row] | None:
    """Read the rows of a file. Return None if its first bytes match no known format."""
    with file.open("rb") as opened:
        head = opened.read(_HEAD_BYTES)
        parse = next((parse for knows, parse in _READERS if knows(head.decode("utf-8", errors="replace"))), None)
        if parse is None:
            return None
        text = (head + opened.read(_LIMIT_BYTES)).decode("utf-8", errors="replace")
    if len(text) >= _LIMIT_BYTES:
        raise Corrupt(f"{file} is too large for a results file (limit {_LIMIT_BYTES:,} bytes)", where=str(file))
    return parse(text, str(file))


def read_any(path: Path) -> Results:
    """Read a result file of another tool, or a folder of results. Files of unknown format in a folder are ignored.

    Raises:
        NotFound: The path is missing, or the folder contains no known format.
        Corrupt: The file has an unknown format, or it starts like a known format but is invalid.
    """
    if path.is_dir():
        if (path / "rows.jsonl").exists():
            return read_results(path)
        found: list[Row] = []
        known = False
        for file in sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")):
            if file.name == "rows.jsonl":
                found += read_results(file.parent).rows
                known = True
                continue
            rows = _rows(file)
            known = known or rows is not None
            found += rows or ()
        if not known:
            raise NotFound(f"{path} contains no known results", where=str(path), hint=f"give one of these: {_KNOWN}")
        return Results(rows=tuple(found))
    if not path.exists():
        raise NotFound(f"{path} does not exist", where=str(path))
    if path.name == "rows.jsonl":
        return read_results(path.parent)
    rows = _rows(path)
    if rows is None:
        raise Corrupt(f"{path} has an unknown format", where=str(path), hint=f"give one of these: {_KNOWN}")
    return Results(rows=tuple(rows))
