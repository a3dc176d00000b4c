# SPDX-License-Identifier: Apache-2.0
"""Header scan: reads all trace headers of a file once. The result is cached for each version of a file."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.segy.header_fields import TRACE_FIELDS
from penstock.atomic_file import atomic_file
from penstock.feed.record_index_dir import record_index_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock import _native

__all__ = ["SCANNED", "HeaderScan", "scan"]

SCANNED = (
    "trace_in_file", "field_record", "channel", "source_point", "cdp", "trace_in_cdp", "trace_id", "offset",
    "elevation_scalar", "coordinate_scalar", "source_x", "source_y", "receiver_x", "receiver_y", "coordinate_units",
    "delay_time", "samples", "sample_interval", "cdp_x", "cdp_y", "inline", "crossline", "shot_point",
)  # fmt: skip
"""Header fields from which geometry and coordinates are derived."""

_BATCH = 1 << 16
"""Number of traces per read. The headers of these traces have 16 MB."""


@dataclass(frozen=True)
class HeaderScan:
    """Fields of all trace headers, as columns in file order. A field whose value is the same in all traces is a
    scalar.
    """

    traces: int
    columns: Mapping[str, np.ndarray[Any, Any]]

    def __getitem__(self, field: str) -> np.ndarray[Any, Any]:
        """Return the values of a field, one per trace, as int32, int64 or float64."""
        column = self.columns[field]
        return np.broadcast_to(column, (self.traces,)) if column.ndim == 0 else column

    def is_constant(self, field: str) -> bool:
        """True if all traces have the same value."""
        return self.columns[field].ndim == 0


def scan(
    file: _native.SegyFile,
    place: str,
    fields: Iterable[tuple[int, str]] = (),
    *,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> HeaderScan:
    """Read the headers of all traces, or load them from the cache.

    Args:
        place: URL of the file. The name of the cache entry is derived from the URL and the file's version.
        fields: Additional fields, as (first byte, type); their columns are named `BYTE:TYPE`.
        progress: Function that is called with the number of scanned traces and the total number.
        variables: Environment variables that define the cache folder. If None, the cache is not used.
    """
    layout = json.loads(file.layout())
    wanted = {name: TRACE_FIELDS[name] for name in SCANNED}
    wanted |= {f"{byte}:{kind}": (byte, kind) for byte, kind in fields}
    kept = _cache_file(place, file.version, layout, wanted, variables or {})
    if kept is not None and (found := _load(kept, layout["traces"], wanted)) is not None:
        return found
    sign = ">" if layout["byte_order"] == "big" else "<"
    kind = np.dtype(
        {
            "names": list(wanted),
            "formats": [sign + each for _, each in wanted.values()],
            "offsets": [byte - 1 for byte, _ in wanted.values()],
            "itemsize": layout["header_bytes"],
        }
    )
    parts: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in wanted}
    count = layout["traces"]
    for start in range(0, count, _BATCH):
        numbers = np.arange(start, min(start + _BATCH, count), dtype=np.uint64)
        raw = np.empty((len(numbers), layout["header_bytes"]), dtype=np.uint8)
        file.read(numbers, headers=raw, threads=threads)
        rows = raw.reshape(-1).view(kind)
        for name, column in parts.items():
            column.append(_shrunk(rows[name].astype(_held_as(kind[name]))))
        if progress is not None:
            progress(int(numbers[-1]) + 1, count)
    sizes = [min(_BATCH, count - start) for start in range(0, count, _BATCH)]
    columns = {name: _joined(each, sizes) for name, each in parts.items()}
    found = HeaderScan(count, columns)
    if kept is not None:
        _save(kept, columns)
    return found


def _held_as(kind: np.dtype[Any]) -> type[np.generic]:
    if kind.kind == "f":
        return np.float64
    return np.int32 if kind.itemsize < 4 or kind.str[1:] == "i4" else np.int64


def _shrunk(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return column[0].reshape(()) if column.size and (column == column[0]).all() else column


def _joined(parts: list[np.ndarray[Any, Any]], sizes: list[int]) -> np.ndarray[Any, Any]:
    if not parts:
        return np.zeros((), dtype=np.int32)
    if all(part.ndim == 0 and part == parts[0] for part in parts):
        return parts[0]
    return np.concatenate([np.broadcast_to(part, (size,)) for part, size in zip(parts, sizes, strict=True)])


def _cache_file(
    place: str, version: str | None, layout: Mapping[str, Any], wanted: Mapping[str, Any], variables: Mapping[str, str]
) -> Path | None:
    folder = record_index_dir(variables)
    if folder is None or version is None:
        return None
    text = json.dumps([place, version, layout, wanted], sort_keys=True)
    return Path(folder).with_name("segy") / f"{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()}.npz"


def _load(path: Path, traces: int, wanted: Iterable[str]) -> HeaderScan | None:
    try:
        with np.load(path, allow_pickle=False) as found:
            columns = {name: found[name] for name in wanted}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    if any(column.shape not in ((), (traces,)) for column in columns.values()):
        return None
    return HeaderScan(traces, columns)


def _save(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    # Ignore the error. Without the cache entry, the next run scans the file again.
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_file(path, durable=False) as out:
            np.savez(out, **columns)  # type: ignore[arg-type]  # names are strings
        os.utime(path)
    except OSError:
        return
