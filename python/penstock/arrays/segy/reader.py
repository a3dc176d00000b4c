# SPDX-License-Identifier: Apache-2.0
"""Opens SEG-Y files as arrays: scans their headers, and reads samples trace by trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.array import Array, Coordinate
from penstock.arrays.segy.geometry import Candidate, Geometry, candidates, grid, parse_map, scaled
from penstock.arrays.segy.header_fields import BINARY_FIELDS, trace_dtype
from penstock.arrays.segy.scan import SCANNED, HeaderScan, scan
from penstock.arrays.segy.text_header import decode_text_header
from penstock.errors import Corrupt, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["EXCEPTION", "SegyBackend", "SegyFile", "open_segy"]

EXCEPTION = np.dtype([("trace", "<u8"), ("sample", "<u8"), ("word", "<u4")])
"""An IBM word that float32 cannot represent exactly."""

_LOOK_TRACES = 64
"""Number of traces that are read to check the values in the binary header."""


class SegyFile:
    """An open SEG-Y file: its layout and headers, and functions that read traces."""

    def __init__(
        self,
        location: Location,
        *,
        format: int | None = None,  # noqa: A002 - the standard's word
        byte_order: str | None = None,
        samples: int | None = None,
        allow_trailing: bool = False,
    ) -> None:
        self.location = location
        self.overrides = {
            "format": format, "byte_order": byte_order, "samples": samples, "allow_trailing": allow_trailing,
        }  # fmt: skip
        self.core = _native.SegyFile(
            location.folder,
            location.name,
            location.variables,
            overrides=json.dumps(self.overrides),
            timeout_s=location.timeout_s,
        )
        self.layout: dict[str, Any] = json.loads(self.core.layout())
        self.dtype = np.dtype(self.layout["dtype"])
        self.header_dtype = trace_dtype(self.layout["byte_order"], self.layout["header_bytes"])
        self.header_samples = self._find_header_samples()
        if format is None:
            self._check_format()

    @property
    def traces(self) -> int:
        """Number of traces."""
        return int(self.layout["traces"])

    @property
    def samples(self) -> int:
        """Number of samples of each trace."""
        return int(self.layout["samples"])

    def file_header(self) -> bytes:
        """Return all bytes before the first trace."""
        return self.core.read_bytes(0, self.layout["first_trace"])

    def trailer(self) -> bytes:
        """Return all bytes after the last trace."""
        count = self.layout["trailing_bytes"]
        return self.core.read_bytes(self.layout["size"] - count, count) if count else b""

    def text_header(self) -> str:
        """Return the textual file header and the extended headers as lines of text."""
        header = self.file_header()
        return decode_text_header(header[:3200] + header[3600 : 3600 + 3200 * self.layout["extended_headers"]])

    def binary_header(self) -> dict[str, int]:
        """Return the values of the fields in the binary file header."""
        raw = self.file_header()
        sign = ">" if self.layout["byte_order"] == "big" else "<"
        return {
            name: int(np.frombuffer(raw, sign + kind, 1, byte - 1)[0]) for name, (byte, kind) in BINARY_FIELDS.items()
        }

    def raw_headers(self, traces: np.ndarray[Any, Any], threads: int = 1) -> np.ndarray[Any, Any]:
        """Read the headers of these traces, as uint8 [traces, header_bytes]."""
        out = np.empty((len(traces), self.layout["header_bytes"]), dtype=np.uint8)
        self.core.read(np.ascontiguousarray(traces, dtype=np.uint64), headers=out, threads=threads)
        return out

    def read(
        self,
        traces: np.ndarray[Any, Any],
        first: int,
        end: int,
        *,
        headers: np.ndarray[Any, Any] | None = None,
        samples: np.ndarray[Any, Any] | None = None,
        threads: int = 1,
    ) -> np.ndarray[Any, Any]:
        """Read traces into `headers` and `samples` (contiguous, one row per trace). Returns the `EXCEPTION`s among the
        samples.
        """
        numbers = np.ascontiguousarray(traces, dtype=np.uint64)
        views = [None if each is None else each.reshape(-1).view(np.uint8) for each in (headers, samples)]
        found = self.core.read(numbers, headers=views[0], samples=views[1], first=first, end=end, threads=threads)
        return np.frombuffer(found, dtype=EXCEPTION)

    def scan(
        self,
        fields: Sequence[tuple[int, str]] = (),
        *,
        threads: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> HeaderScan:
        """Scan all trace headers. If this version of the file was scanned before, load the scan from the cache.

        Raises:
            Unsupported: The traces have different lengths.
        """
        found = scan(
            self.core, self.location.url, fields, threads=threads, progress=progress, variables=self.location.variables
        )
        counts = found["samples"]
        right = {0, min(self.samples, 0xFFFF), self.samples & 0xFFFF, self.header_samples} - {None}
        wrong = np.flatnonzero(~np.isin(counts, sorted(right)))
        if len(wrong) and self.overrides["samples"] is None:
            trace = int(wrong[0])
            raise Unsupported(
                f"{self.location.url}: the header of trace {trace:,} states {int(counts[trace]):,} samples, but the "
                f"file has {self.samples:,} per trace",
                where=self.location.url,
                hint=f"if all traces have {self.samples:,} samples, pass samples={self.samples}",
            )
        return found

    def _find_header_samples(self) -> int | None:
        """Return the sample count in the trace headers if it contradicts the binary header, otherwise None.

        Programs that cut traces often leave the old count in the trace headers. The binary header counts as correct if
        two conditions hold. First, the file consists of whole traces of the length in the binary header, but not of the
        other length. Second, all trace headers at the resulting positions contain the other count.
        """
        if not self.traces or self.overrides["samples"] is not None:
            return None
        stated = int(self._stated_samples(np.zeros(1, dtype=np.uint64))[0])
        if stated in (0, self.samples, self.samples & 0xFFFF, min(self.samples, 0xFFFF)):
            return None
        size = (self.layout["trace_bytes"] - self.layout["header_bytes"]) // self.samples
        other = self.layout["header_bytes"] + stated * size
        body = self.layout["size"] - self.layout["first_trace"]
        if not self.layout["trailing_bytes"] and body % other:
            numbers = np.linspace(0, self.traces - 1, _LOOK_TRACES).astype(np.uint64)
            if (self._stated_samples(np.unique(numbers)) == stated).all():
                return stated
        raise Corrupt(
            f"{self.location.url}: the binary header states {self.samples:,} samples per trace, but the first "
            f"trace header states {stated:,}",
            where=self.location.url,
            hint=f"pass samples={self.samples} or samples={stated}, whichever is correct",
        )

    def _stated_samples(self, traces: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.raw_headers(traces).reshape(-1).view(self.header_dtype)["samples"]

    def _check_format(self) -> None:
        """Reject IBM samples if the header states IEEE, and IEEE samples if the header states IBM.

        In a normalised IBM word, the first hexadecimal digit of the fraction is not zero. If IEEE numbers have many
        magnitudes, the same four bits are zero in 1 of 16 words.
        """
        if self.layout["format"] not in (1, 5) or not self.traces:
            return
        numbers = np.unique(np.linspace(0, self.traces - 1, _LOOK_TRACES).astype(np.uint64))
        count = min(self.samples, 1024)
        values = np.empty((len(numbers), count), dtype=np.float32)
        as_float = _native.SegyFile(
            self.location.folder, self.location.name, self.location.variables,
            overrides=json.dumps({**self.overrides, "format": 5}), timeout_s=self.location.timeout_s,
        )  # fmt: skip
        as_float.read(numbers, samples=values.view(np.uint8), first=0, end=count)
        words = np.unique(values.view(np.uint32)[values.view(np.uint32) & 0x7FFFFFFF != 0])
        if len(words) < 1000:
            return
        zeros = float(np.mean(words & 0x00F00000 == 0))
        signs = float(np.mean(words >> 31))
        exponents = np.unique(words >> 23 & 0xFF)
        is_ieee = 0.04 < zeros < 0.12
        # IEEE numbers of one sign or of few magnitudes (for example, a velocity model) can lack such zeros by chance.
        is_ibm = zeros < 1e-4 and 0.2 < signs < 0.8 and len(exponents) >= 8
        if self.layout["format"] == 1 and is_ieee and not _is_wild(values):
            self._refuse("IBM floating point", 1, "IEEE", 5)
        if self.layout["format"] == 5 and is_ibm:
            self._refuse("IEEE", 5, "IBM floating point", 1)

    def _refuse(self, stated: str, code: int, found: str, other: int) -> None:
        raise Corrupt(
            f"{self.location.url}: the binary header states {stated} samples (format {code}), but they look like {found}",
            where=self.location.url,
            hint=f"pass format={other} to read them as {found}, or format={code} to read them as the header states",
        )


def _is_wild(values: np.ndarray[Any, Any]) -> bool:
    """True if the magnitudes of IEEE numbers are implausible. IBM words that are read as IEEE numbers have all
    magnitudes.
    """
    finite = np.abs(values[np.isfinite(values) & (values != 0)])
    if finite.size < values.size / 2:
        return True
    low, high = np.quantile(finite, [0.01, 0.99])
    return bool(high > 1e30 or low < 1e-30)


class SegyBackend:
    """The samples of a file, in its grid."""

    def __init__(self, file: SegyFile, geometry: Geometry) -> None:
        self.file, self.geometry = file, geometry
        self.shape = (*geometry.trace_index.shape, file.samples)
        self.dtype = file.dtype
        self.chunk_shape = (*([1] * geometry.trace_index.ndim), file.samples)

    def read(self, boxes: Sequence[Box], threads: int) -> list[np.ndarray[Any, Any]]:
        # Boxes with the same range of samples are read together, as one list of traces.
        parts: list[np.ndarray[Any, Any]] = []
        spans = [box[-1] for box in boxes]
        indexes = [self.geometry.trace_index[tuple(slice(*side) for side in box[:-1])] for box in boxes]
        for first, end in dict.fromkeys(spans):
            wanted = [index.reshape(-1) for index, span in zip(indexes, spans, strict=True) if span == (first, end)]
            numbers = np.concatenate(wanted)
            there = numbers >= 0
            out = np.empty((len(numbers), end - first), dtype=self.dtype)
            if there.all():
                self.file.read(numbers, first, end, samples=out, threads=threads)
            else:
                found = np.empty((int(there.sum()), end - first), dtype=self.dtype)
                self.file.read(numbers[there], first, end, samples=found, threads=threads)
                out[there] = found
                out[~there] = np.nan if self.dtype.kind == "f" else 0
            parts.append(out)
        rows = {span: iter(np.split(part, np.cumsum([index.size for index, each in zip(indexes, spans, strict=True) if each == span])[:-1]))
                for span, part in zip(dict.fromkeys(spans), parts, strict=True)}  # fmt: skip
        return [
            next(rows[span]).reshape(*index.shape, span[1] - span[0])
            for index, span in zip(indexes, spans, strict=True)
        ]

    def headers(self, key: Any) -> np.ndarray[Any, Any]:
        """Return the trace headers at an index of the grid, as a structured array. The header of a missing trace is
        zero.
        """
        index = np.asarray(self.geometry.trace_index[key])
        there = index.reshape(-1) >= 0
        raw = np.zeros((index.size, self.file.layout["header_bytes"]), dtype=np.uint8)
        raw[there] = self.file.raw_headers(index.reshape(-1)[there])
        return raw.reshape(-1).view(self.file.header_dtype).reshape(index.shape)

    def stats(self) -> dict[str, int]:
        return self.file.core.stats()


def open_segy(
    location: Location,
    *,
    map: str | None = None,  # noqa: A002 - as on the command line
    vertical: str = "time",
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    **overrides: Any,
) -> Array:
    """Open a SEG-Y file as an array in the grid of its survey.

    Args:
        map: Header fields that number the dimensions, such as `inline=189:i4,crossline=193:i4`; by default the geometry
            that fits the headers best.
        vertical: Name of the last dimension: `time` or `depth`.
        overrides: `format`, `byte_order`, `samples` and `allow_trailing`, for a file with a wrong binary header.
    """
    file = SegyFile(location, **overrides)
    keys = None if map is None else parse_map(map)
    extra = [(key.byte, key.kind) for key in keys or () if key.column not in SCANNED]
    headers = file.scan(extra, threads=threads, progress=progress)
    chosen: Candidate | None = None
    if keys is None:
        chosen = candidates(headers)[0]
        keys = chosen.keys
    geometry = grid(headers, keys)
    backend = SegyBackend(file, geometry)
    dims = (*geometry.dims, vertical)
    coords = coordinates(file, headers, geometry, vertical)
    attrs = {
        "format": file.layout["format"], "byte_order": file.layout["byte_order"], "revision": file.layout["revision"],
        "traces": file.traces, "duplicate_traces": len(geometry.duplicates),
        "missing_traces": int((geometry.trace_index < 0).sum()), "map": ",".join(str(key) for key in keys),
    }  # fmt: skip
    warnings = []
    if file.overrides["format"] is None and file.layout["interval"] <= 0:
        warnings.append("the sample interval is 0: the last dimension has sample numbers")
    if file.header_samples is not None:
        warnings.append(
            f"the trace headers state {file.header_samples:,} samples, but the file has {file.samples:,} per trace"
        )
    if warnings:
        attrs["warning"] = "; ".join(warnings)
    return Array(backend, name="amplitude", dims=dims, coords=coords, attrs=attrs, headers=backend.headers)


def coordinates(file: SegyFile, headers: HeaderScan, geometry: Geometry, vertical: str) -> Mapping[str, Coordinate]:
    """Return the coordinates of a file: grid numbers, times or depths of the samples, and positions in the field."""
    coords: dict[str, Coordinate] = {}
    for dim, values in zip(geometry.dims, geometry.axes, strict=True):
        is_length = dim == "offset"
        coords[dim] = Coordinate((dim,), values, {"units": _length_unit(file)} if is_length else {})
    coords[vertical] = Coordinate((vertical,), *_vertical(file, headers, vertical))
    for name in ("cdp_x", "cdp_y", "source_x", "source_y", "receiver_x", "receiver_y"):
        if headers.is_constant(name) and not headers.columns[name]:
            continue
        values = scaled(headers[name].astype(np.float64), headers["coordinate_scalar"])
        coords[name] = Coordinate(geometry.dims, _on_grid(values, geometry), {"units": _coordinate_unit(file, headers)})
    return coords


def _on_grid(values: np.ndarray[Any, Any], geometry: Geometry) -> np.ndarray[Any, Any]:
    index = geometry.trace_index
    if not len(values):
        return np.full(index.shape, np.nan)
    found: np.ndarray[Any, Any] = np.where(index >= 0, values[np.maximum(index, 0)], np.nan)
    return found


def _vertical(file: SegyFile, headers: HeaderScan, vertical: str) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    interval = file.layout["interval"]
    numbers = np.arange(file.samples, dtype=np.float64)
    if interval <= 0:
        return numbers, {"units": "1", "long_name": "sample number"}
    delays = np.unique(headers["delay_time"]) if file.traces else np.zeros(1)
    start = float(delays[0]) if len(delays) == 1 else 0.0
    # The header contains the interval in µs and the start in ms. For depths, it contains the interval in 1/1000 of the
    # unit and the start in the unit.
    unit = "ms" if vertical == "time" else _length_unit(file)
    attrs: dict[str, Any] = {"units": unit, "standard_name": vertical} if vertical == "depth" else {"units": unit}
    if len(delays) > 1:
        attrs["comment"] = "delay recording times differ among traces; times are from the start of each trace"
    return start + numbers * interval / 1000, attrs


def _length_unit(file: SegyFile) -> str:
    return "ft" if file.binary_header()["measurement_system"] == 2 else "m"


def _coordinate_unit(file: SegyFile, headers: HeaderScan) -> str:
    kinds = np.unique(headers["coordinate_units"])
    known = {1: _length_unit(file), 2: "arcsec", 3: "degrees", 4: "degrees (packed DMS)"}
    return known.get(int(kinds[0]), _length_unit(file)) if len(kinds) == 1 else _length_unit(file)
