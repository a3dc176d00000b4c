# SPDX-License-Identifier: Apache-2.0
"""Format of the OSU micro-benchmarks: writes the tables of version 5.3, and parses the tables of versions 5.x to 7.x.

Source: the format strings in forresti/osu-micro-benchmarks (5.3): mpi/pt2pt/osu_pt2pt.c and mpi/collective/osu_coll.c.
Version 7 adds `# Datatype:` lines, and columns for validation and percentiles.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from penstock.errors import Corrupt

__all__ = ["OsuRow", "OsuTable", "osu_header", "osu_line", "parse_osu"]

VERSION = "5.3"
_TITLES = {
    "latency": "Latency Test",
    "bw": "Bandwidth Test",
    "bibw": "Bi-Directional Bandwidth Test",
    "allreduce": "Allreduce Latency Test",
    "allgather": "Allgather Latency Test",
    "reduce-scatter": "Reduce_scatter Latency Test",
    "bcast": "Broadcast Latency Test",
    "alltoall": "All-to-All Personalized Exchange Latency Test",
    "barrier": "Barrier Latency Test",
}
_TITLE = re.compile(r"#\s*OSU MPI(?P<device>-\S+| MANAGED)? (?P<title>.*?)(?:\s+v(?P<version>[\w.]+))?\s*")
_MAX_LINE = 4096


class OsuRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a table: microseconds for latencies, MB/s (10^6 bytes) for bandwidths.

    Attributes:
        value: Latency (collectives: averaged over ranks) or bandwidth.
        validation: `Pass` or `Fail`, if the program checked its data.
        extra: Columns that this schema does not have, by their titles.
    """

    size_bytes: int
    value: float
    min_us: float | None = None
    max_us: float | None = None
    iterations: int | None = None
    validation: str | None = None
    extra: dict[str, float] = {}


class OsuTable(msgspec.Struct, frozen=True):
    """Output of one OSU program."""

    operation: str
    title: str
    version: str
    unit: str
    rows: tuple[OsuRow, ...]


def osu_header(operation: str, *, full: bool = False, on_device: bool = False, comment: str = "") -> str:
    """Header of a table, as the program prints it.

    Args:
        full: Corresponds to the option -f of the collectives.
        comment: Text of a line after the title, where version 7 has its `# Datatype:`.
    """
    device = "-CUDA" if on_device else ""
    title = f"# OSU MPI{device} {_TITLES[operation]} v{VERSION}\n" + (f"# {comment}\n" if comment else "")
    if operation in ("latency", "bw", "bibw"):
        column = "Latency (us)" if operation == "latency" else "Bandwidth (MB/s)"
        buffers = "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)\n" if on_device else ""
        return f"{title}{buffers}{'# Size':<10}{column:>20}\n"
    first = "# Avg Latency(us)" if operation == "barrier" else f"{'# Size':<10}{'Avg Latency(us)':>20}"
    more = f"{'Min Latency(us)':>20}{'Max Latency(us)':>20}{'Iterations':>12}" if full else ""
    return f"\n{title}{first}{more}\n"


def osu_line(operation: str, row: OsuRow, *, full: bool = False) -> str:
    """One line of a table, as the program prints it. Point-to-point programs have no full format."""
    line = f"{row.value:>17.2f}" if operation == "barrier" else f"{row.size_bytes:<10d}{row.value:>20.2f}"
    if full and operation not in ("latency", "bw", "bibw"):
        line += f"{row.min_us or 0.0:>20.2f}{row.max_us or 0.0:>20.2f}{row.iterations or 0:>12d}"
    return line + "\n"


# Titles of the columns in lower case without blanks -> field. Version 7 writes some titles differently.
_COLUMNS = {
    "#size": "size_bytes",
    "latency(us)": "value",
    "avglatency(us)": "value",
    "#avglatency(us)": "value",
    "bandwidth(mb/s)": "value",
    "minlatency(us)": "min_us",
    "maxlatency(us)": "max_us",
    "iterations": "iterations",
    "validation": "validation",
}
_HEAD = re.compile(r"#\s*(?:Size|Avg Latency\(us\)|Avg Latency \(us\))(?:\s|$)")


def parse_osu(text: str) -> list[OsuTable]:
    """Parse the output of OSU programs. Lines that belong to no table, such as messages of mpirun, are ignored.

    Raises:
        Corrupt: There is no table, or a line of a table is not valid; the error contains the line.
    """
    tables: list[OsuTable] = []
    title: re.Match[str] | None = None
    columns: list[str] = []
    rows: list[OsuRow] = []

    def end() -> None:
        if title is not None and columns:
            tables.append(_table(title, rows))

    for number, line in enumerate(text.splitlines(), start=1):
        line = line[:_MAX_LINE].rstrip()
        if found := _TITLE.fullmatch(line):
            end()
            title, columns, rows = found, [], []
        elif title is not None and not columns and _HEAD.match(line):
            columns = [_COLUMNS.get(re.sub(r"\s", "", name).lower(), name) for name in _split_titles(line)]
            if "value" not in columns:
                raise Corrupt(
                    f"output of an OSU program, line {number}: no column of latencies or bandwidths: {line[:100]}"
                )
        elif (columns and line[:1].isdigit()) or (columns and columns[0] == "value" and line.strip()[:1].isdigit()):
            rows.append(_row(columns, line, number))
    end()
    if not tables:
        raise Corrupt(
            "output of an OSU program: contains no table", hint="check that the program ran on 2 or more ranks"
        )
    return tables


def _split_titles(line: str) -> list[str]:
    """Titles of the columns. Two or more blanks separate them, and a single blank is part of a title."""
    return [found.strip() for found in re.split(r"\s{2,}", line.strip()) if found.strip()]


def _row(columns: list[str], line: str, number: int) -> OsuRow:
    fields = line.split()
    if len(fields) != len(columns):
        raise Corrupt(
            f"output of an OSU program, line {number}: {len(fields)} values for {len(columns)} columns: {line[:100]}"
        )
    found: dict[str, Any] = {"size_bytes": 0, "extra": {}}
    try:
        for name, value in zip(columns, fields, strict=True):
            if name in ("size_bytes", "iterations"):
                found[name] = int(value)
            elif name == "validation":
                found[name] = value
            elif name in ("value", "min_us", "max_us"):
                found[name] = _finite(value)
            else:
                found["extra"][name] = _finite(value)
        return OsuRow(**found)
    except (ValueError, TypeError):
        raise Corrupt(f"output of an OSU program, line {number}: not a row of numbers: {line[:100]}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _table(title: re.Match[str], rows: list[OsuRow]) -> OsuTable:
    name = title["title"].strip()
    operation = next((key for key, known in _TITLES.items() if known == name), name)
    unit = "MB/s" if operation in ("bw", "bibw") or "Bandwidth" in name else "us"
    return OsuTable(operation, name, title["version"] or "", unit, tuple(rows))
