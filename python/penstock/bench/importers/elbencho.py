# SPDX-License-Identifier: Apache-2.0
"""Reads and writes elbencho's results CSV, with its exact columns, operation names and units.

Translates to and from `Row`; does not judge the figures. A missing column counts as empty, because versions of elbencho
differ; unknown columns are ignored. MiB is 2**20 bytes. elbencho truncates every figure to a whole number. Therefore,
the reader computes a rate from the count and the time, within the range that the truncated rate allows. `render`
truncates in the same way.
"""

from __future__ import annotations

import csv
import io
import math
import re
from typing import TYPE_CHECKING, Any

from penstock.bench.rows import End, Latency, Row
from penstock.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["COLUMNS", "looks_like", "parse", "render"]

_MIB = 1 << 20
_LIMIT_FIELD = 1_000_000  # in characters; elbencho's longest column is its command line
_ENDS = ("[first]", "[last]")


def _pair(name: str) -> list[str]:
    return [f"{name} {end}" for end in _ENDS]


def _latency(name: str) -> list[str]:
    return [f"{name} [{which}]" for which in ("min", "avg", "max")]


_MIX = "rwmix read "
COLUMNS = [
    *["ISO date", "label", "path type", "paths", "hosts", "threads", "dirs", "files", "file size", "block size"],
    *["direct IO", "random", "random aligned", "IO depth", "shared paths", "truncate", "operation"],
    *(column for name in ("time ms", "entries/s", "IOPS", "MiB/s", "CPU%", "entries", "MiB") for column in _pair(name)),
    *_latency("Ent lat us"),
    *_latency("IO lat us"),
    *(_MIX + c for name in ("entries/s", "IOPS", "MiB/s", "entries", "MiB") for c in _pair(name)),
    *(_MIX + c for name in ("Ent lat us", "IO lat us") for c in _latency(name)),
    *["version", "command"],
]
# Columns without a field in `Row` are stored unchanged, so that a file is the same after reading and writing it.
_KEPT = ("paths", "random aligned", "shared paths", "truncate", "version", "command")


def looks_like(text: str) -> bool:
    """Whether a text starts like elbencho's CSV."""
    head = text.lstrip("\ufeff").partition("\n")[0]
    return "operation" in head.split(",") and "threads" in head.split(",")


def _number(row: Mapping[str, str], column: str, place: str) -> float | None:
    text = row.get(column, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise Corrupt(f"{place}: `{column}` is {text!r}, not a number", where=place) from None
    if not math.isfinite(value) or value < 0 or value > 1e30:
        raise Corrupt(f"{place}: `{column}` is {text}, not a finite number", where=place)
    return value


def _whole(row: Mapping[str, str], column: str, place: str, default: int | None = None) -> int | None:
    value = _number(row, column, place)
    return default if value is None else int(value)


def _size(row: Mapping[str, str], column: str, place: str) -> int | None:
    """Size in bytes. Hand-written files may also use elbencho's notation (`256k`, `1M`), in powers of two."""
    found = re.fullmatch(r"(\d{1,18})([kmgt])(?:i?b)?", row.get(column, "").strip().lower())
    return int(found[1]) << 10 * ("kmgt".index(found[2]) + 1) if found else _whole(row, column, place)


# Maximum loss by truncation: just under 1.
_CUT_OFF = 0.999


def _finer(count: float | None, rate: float | None, time_s: float) -> float | None:
    """Compute a rate from count and time, within the range that the truncated rate allows: from the truncated rate to
    less than 1 above.
    """
    if not count or time_s <= 0:
        return rate
    from_count = count / time_s
    return from_count if rate is None else min(max(from_count, rate), rate + _CUT_OFF)


def _end(row: Mapping[str, str], which: str, prefix: str, place: str) -> End | None:
    def get(name: str) -> float | None:
        return _number(row, f"{prefix}{name} {which}", place)

    time_ms = _number(row, f"time ms {which}", place)
    entries, entries_rate, mib = get("entries"), get("entries/s"), get("MiB")
    mib_rate, iops, cpu = get("MiB/s"), get("IOPS"), None if prefix else get("CPU%")
    moved = None if mib is None else mib * _MIB
    if time_ms is None and entries_rate is None and mib_rate is None and iops is None:
        return None
    # The time is missing in tables copied from a paper, which contain only rates.
    time_s = (time_ms or 0.0) / 1000
    return End(
        time_s=time_s,
        entries=entries,
        bytes=moved,
        entries_per_s=_finer(entries, entries_rate, time_s),
        ios_per_s=iops,
        bytes_per_s=_MIB * finer if (finer := _finer(mib, mib_rate, time_s)) is not None else None,
        cpu=None if cpu is None else cpu / 100,
    )


def _of_latency(row: Mapping[str, str], name: str, place: str) -> Latency | None:
    found = [_number(row, column, place) for column in _latency(name)]
    return Latency(min_us=found[0], mean_us=found[1], max_us=found[2]) if any(v is not None for v in found) else None


# elbencho writes `bucket` for many objects, and `object` for one object. With HDFS it measures files in folders.
_PATH_TYPES = {"bucket": "object", "object": "object", "s3": "object", "hdfs": "dir"}


def parse(text: str, place: str) -> list[Row]:
    """Parse a CSV file into rows. The file may be several CSV files joined together, each with its header.

    Args:
        place: Name of the file, for error messages.
    Raises:
        Corrupt: The text is not elbencho's CSV, or a figure is invalid.
    """
    if not looks_like(text):
        raise Corrupt(
            f"{place} is not an elbencho CSV: the first line does not contain `operation` and `threads`",
            where=place,
            hint="run elbencho with --csvfile to write one",
        )
    return [row for number, fields in _lines(text, place) for row in _rows(fields, f"{place}, line {number}")]


def _lines(text: str, place: str) -> Iterator[tuple[int, dict[str, str]]]:
    # The command column may contain unescaped quotes. Therefore, lines are split at every comma, as elbencho writes
    # them.
    csv.field_size_limit(_LIMIT_FIELD)
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), quoting=csv.QUOTE_NONE)
    head: list[str] = []
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if not head or fields[: len(head)] == head or "operation" in fields:
                head = [field.strip() for field in fields]
                continue
            if len(fields) > len(head):
                fields = [*fields[: len(head) - 1], ",".join(fields[len(head) - 1 :])]
            yield reader.line_num, dict(zip(head, fields, strict=False))
    except csv.Error as error:
        raise Corrupt(f"{place}, line {reader.line_num}: {error}", where=place) from None


def _rows(fields: Mapping[str, str], place: str) -> Iterator[Row]:
    phase, plus, beside = fields.get("operation", "").strip().partition("+")
    operation = phase.upper() + plus + beside.lower()
    if not operation:
        raise Corrupt(f"{place}: the operation is missing", where=place)
    last = _end(fields, "[last]", "", place) or _end(fields, "[first]", "", place)
    if last is None:
        raise Corrupt(f"{place}: {operation} has neither a time nor a rate", where=place)
    kind = fields.get("path type", "").strip().lower()
    version = fields.get("version", "").strip()
    given: dict[str, Any] = {
        "path_type": _PATH_TYPES.get(kind, kind) or "dir",
        "hosts": max(1, _whole(fields, "hosts", place, 1) or 1),
        "threads": max(1, _whole(fields, "threads", place, 1) or 1),
        "io_depth": max(1, _whole(fields, "IO depth", place, 1) or 1),
        "directories": _whole(fields, "dirs", place),
        "files": _whole(fields, "files", place),
        "file_size_bytes": _size(fields, "file size", place),
        "block_size_bytes": _size(fields, "block size", place),
        "direct": bool(_whole(fields, "direct IO", place, 0)),
        "random": bool(_whole(fields, "random", place, 0)),
        "created": fields.get("ISO date", "").strip(),
        "label": fields.get("label", "").strip(),
        "source": f"elbencho {version}".strip(),
        "raw": {column: fields[column] for column in _KEPT if fields.get(column, "").strip()}
        | ({"path type": kind} if kind in _PATH_TYPES else {}),
    }
    yield Row(
        operation=operation,
        first=_end(fields, "[first]", "", place),
        last=last,
        entry_latency=_of_latency(fields, "Ent lat us", place),
        io_latency=_of_latency(fields, "IO lat us", place),
        **given,
    )
    mixed = _end(fields, "[last]", _MIX, place)
    if mixed is not None and (mixed.entries_per_s or mixed.ios_per_s or mixed.bytes_per_s):
        # elbencho writes the readers of a mixed phase on the same line as its writers. This reader makes a separate row
        # for the readers, and `render` joins the two rows again.
        yield Row(
            operation="RWMIX",
            first=_end(fields, "[first]", _MIX, place),
            last=mixed,
            entry_latency=_of_latency(fields, f"{_MIX}Ent lat us", place),
            io_latency=_of_latency(fields, f"{_MIX}IO lat us", place),
            **given,
        )


# Tolerance for a whole number that was computed as a float: 0.29 * 100 is slightly less than 29.
_HAIR = 1e-6


def _text(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else str(math.floor(value * scale + _HAIR))


def _columns(end: End | None, which: str, prefix: str = "") -> dict[str, str]:
    if end is None:
        return {}
    found = {
        f"{prefix}entries/s {which}": _text(end.entries_per_s),
        f"{prefix}IOPS {which}": _text(end.ios_per_s),
        f"{prefix}MiB/s {which}": _text(end.bytes_per_s, 1 / _MIB),
        f"{prefix}entries {which}": _text(end.entries),
        f"{prefix}MiB {which}": _text(end.bytes, 1 / _MIB),
    }
    if not prefix:
        found |= {f"time ms {which}": _text(end.time_s, 1000), f"CPU% {which}": _text(end.cpu, 100)}
    return found


def _measured(row: Row, prefix: str = "") -> dict[str, str]:
    found = {**_columns(row.first, "[first]", prefix), **_columns(row.last, "[last]", prefix)}
    for name, latency in (("Ent lat us", row.entry_latency), ("IO lat us", row.io_latency)):
        if latency is not None:
            figures = (latency.min_us, latency.mean_us, latency.max_us)
            found |= dict(zip([prefix + c for c in _latency(name)], map(_text, figures), strict=True))
    return found


def _read_share(writes: End, reads: End) -> int | None:
    """Percentage of reads in a mixed phase, which elbencho puts into the name of the operation."""
    for written, read in (
        (writes.ios_per_s, reads.ios_per_s),
        (writes.bytes_per_s, reads.bytes_per_s),
        (writes.entries_per_s, reads.entries_per_s),
    ):
        if written is not None and read is not None and written + read > 0:
            return round(100 * read / (written + read))
    return None


def render(rows: Iterable[Row]) -> str:
    """Write rows as elbencho's CSV. Data without a column (throttles, percentiles, series) remains in `rows.jsonl`
    only.
    """
    lines: list[dict[str, str]] = []
    writes = End(time_s=0.0)
    for row in rows:
        if row.operation == "RWMIX" and lines:
            lines[-1] |= _measured(row, _MIX)
            if lines[-1]["operation"] == "WRITE" and (share := _read_share(writes, row.last)) is not None:
                lines[-1]["operation"] = f"RWMIX{share}"
            continue
        writes = row.last
        direct, random = str(int(row.direct)), str(int(row.random))
        lines.append(
            {
                "ISO date": row.created.replace("Z", ".000+0000"),
                "label": row.label,
                "path type": row.raw.get("path type", "bucket" if row.path_type == "object" else row.path_type),
                "hosts": str(row.hosts),
                "threads": str(row.threads),
                "dirs": _text(row.directories),
                "files": _text(row.files),
                "file size": _text(row.file_size_bytes),
                "block size": _text(row.block_size_bytes),
                "direct IO": direct,
                "random": random,
                "IO depth": str(row.io_depth),
                "operation": row.operation,
                **_measured(row),
                **{column: row.raw[column] for column in _KEPT if column in row.raw},
            }
        )
        if row.random:
            lines[-1].setdefault("random aligned", "1")
        lines[-1].setdefault("paths", "1")
        lines[-1].setdefault("version", row.source)
    # elbencho does not escape fields. A comma inside a field becomes a space, as elbencho does in its command column.
    body = [",".join(line.get(c, "").replace(",", " ").replace("\n", " ") for c in COLUMNS) for line in lines]
    return "\n".join([",".join(COLUMNS), *body]) + "\n"
