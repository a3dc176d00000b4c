# SPDX-License-Identifier: Apache-2.0
"""Writes an array as a new volume in SEG-Y, Zarr or HDF5.

For SEG-Y, this module creates trace headers from the coordinates: grid numbers, positions, times and trace numbers.
(`convert` copies existing trace headers instead.)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.convert.chunking import choose
from penstock.arrays.convert.hdf5_destination import Hdf5Destination
from penstock.arrays.convert.zarr_destination import ZarrDestination
from penstock.arrays.segy.header_fields import BINARY_FIELDS, trace_dtype
from penstock.arrays.segy.reader import EXCEPTION
from penstock.arrays.segy.text_header import encode_text_header
from penstock.atomic_file import atomic_file
from penstock.errors import ConfigError, PenstockError, PreconditionFailed, SystemFault, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.arrays.array import Coordinate
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["FORMATS", "SEGY_FORMATS", "SegyLayout", "create_segy", "create_volume"]

FORMATS = ("zarr", "hdf5", "segy")

SEGY_FORMATS = {
    1: "float32", 2: "int32", 3: "int16", 5: "float32", 6: "float64", 8: "int8", 9: "int64", 10: "uint32", 11: "uint16",
    12: "uint64", 16: "uint8",
}  # fmt: skip
"""Sample formats of SEG-Y that can be written, each with the type of a sample in memory. Format 1 is IBM floating
point.
"""

_BY_DTYPE = {name: code for code, name in SEGY_FORMATS.items() if code != 1}

_FIELDS = {
    "inline": "inline", "crossline": "crossline", "cdp": "cdp", "offset": "offset", "shot": "field_record",
    "channel": "channel", "trace": "trace_in_line",
}  # fmt: skip
"""For each dimension, the header field that numbers it."""

_POSITIONS = ("cdp_x", "cdp_y", "source_x", "source_y", "receiver_x", "receiver_y")
_METRES = {"m": 1.0, "km": 1000.0, "metre": 1.0, "meter": 1.0, "metres": 1.0, "meters": 1.0}
_MILLISECONDS = {"ms": 1.0, "s": 1000.0, "us": 0.001, "µs": 0.001}
_BLOCK_BYTES = 16 << 20

_MAX_PUTS = 16
"""Maximum number of objects that are written at a time. Memory is needed for two copies of each object."""

_NO_EXCEPTIONS = np.empty(0, dtype=EXCEPTION)


@dataclass(frozen=True)
class SegyLayout:
    """Result of `create_segy`: description of the file.

    Attributes:
        size_bytes: Size of the file.
        dims: Names of the dimensions, which are numbered by header fields.
        options: Arguments with which `penstock.arrays.open` always reads the file in the same grid, even a small grid
            whose geometry would not be detected.
    """

    size_bytes: int
    dims: tuple[str, ...]
    options: dict[str, Any]


@dataclass
class _Memory:
    """An array as the source of a conversion."""

    values: np.ndarray[Any, Any]
    dims: tuple[str, ...]
    coords: Mapping[str, Coordinate]
    name: str
    attrs: Mapping[str, Any]
    segy: None = None
    chunks: None = None
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        found: tuple[int, ...] = self.values.shape
        return found

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.values.dtype
        return found

    def read(
        self,
        box: Box,
        headers: np.ndarray[Any, Any] | None,  # noqa: ARG002 - no headers
        out: np.ndarray[Any, Any] | None = None,  # noqa: ARG002 - it is in memory
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return self.values[tuple(slice(*side) for side in box)], _NO_EXCEPTIONS

    def duplicates(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return np.empty((0, 240), np.uint8), np.empty((0, self.shape[-1]), self.dtype), _NO_EXCEPTIONS


def create_volume(
    location: Location,
    values: np.ndarray[Any, Any],
    dims: Sequence[str],
    coords: Mapping[str, Coordinate] | None = None,
    *,
    to: str = "zarr",
    name: str = "amplitude",
    attrs: Mapping[str, Any] | None = None,
    codec: str | None = None,
    access: Sequence[str] = ("balanced",),
    chunks: Sequence[int] | None = None,
    is_sharded: bool = True,
    format: int | None = None,  # noqa: A002 - the standard's word
) -> dict[str, Any]:
    """Write an array as a volume. To continue a killed write to Zarr, repeat the same call.

    Args:
        values: The samples; the last dimension is vertical.
        dims: Names of the dimensions.
        coords: Coordinates, as a mapping from their names, with their unit in `attrs["units"]`.
        to: `zarr`, `hdf5` or `segy`.
        codec: For Zarr: none, lz4 (default), zstd, blosc-zstd or gzip. For HDF5: none (default) or gzip.
        access, chunks, is_sharded: Only for Zarr and HDF5; see `choose`.
        format: Sample format of SEG-Y; by default the format that matches the array's type.
    Returns:
        Arguments with which `penstock.arrays.open` reads this volume.
    Raises:
        ConfigError: An argument is invalid.
        Mismatch, PreconditionFailed: The destination exists, or another writer has created it during this call.
        Unsupported: The format cannot represent the values.
    """
    if to not in FORMATS:
        raise ConfigError(f"to: `{to}` is not one of {', '.join(FORMATS)}", where="to")
    if len(dims) != values.ndim or values.ndim < 1 or not values.size:
        raise ConfigError(
            f"dims: must name each axis of a non-empty array (got {len(dims)} names for shape {list(values.shape)})",
            where="dims",
        )
    if to == "segy":
        if codec not in (None, "none"):
            raise ConfigError("codec: not supported for SEG-Y", where="codec")
        return create_segy(location, values, dims, coords, format=format).options
    source = _Memory(values, tuple(dims), dict(coords or {}), name, dict(attrs or {}))
    chunking = choose(source.dims, source.shape, source.dtype.itemsize, access, chunks=chunks, is_sharded=is_sharded)
    target: ZarrDestination | Hdf5Destination
    if to == "zarr":
        target = ZarrDestination(location, source, chunking, codec or "lz4")
    else:
        is_chunked = codec not in (None, "none") or chunks is not None
        target = Hdf5Destination(location, source, chunking if is_chunked else None, codec or "none")
    plan = json.dumps(
        {
            "source": hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest(),
            "dims": source.dims, "shape": source.shape, "dtype": source.dtype.name, "chunks": chunking.chunks,
            "shards": chunking.shards, "codec": codec, "format": to,
        },
        sort_keys=True,
    )  # fmt: skip
    try:
        if target.prepare(plan):
            return {"array": name}
        done = target.done()

        def write(cell: tuple[int, ...]) -> None:
            box = tuple(
                (at * part, min((at + 1) * part, side))
                for at, part, side in zip(cell, chunking.objects, source.shape, strict=True)
            )
            target.write(cell, box, source.read(box, None)[0], None, _NO_EXCEPTIONS)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if location.is_local else _MAX_PUTS) as pool:
            for written in [pool.submit(write, cell) for cell in np.ndindex(*chunking.grid) if cell not in done]:
                written.result()
        target.finish()
    finally:
        if isinstance(target, Hdf5Destination):
            target.close()
    return {"array": name}


def create_segy(
    location: Location,
    values: Any,
    dims: Sequence[str],
    coords: Mapping[str, Coordinate] | None = None,
    *,
    format: int | None = None,  # noqa: A002 - the standard's word
    text: Sequence[str] = (),
    kept: np.ndarray[Any, Any] | None = None,
    replaces: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SegyLayout:
    """Write an array as a SEG-Y file, with trace headers made from its dimensions and coordinates.

    Dimensions with the names inline, crossline, cdp, offset, shot, channel and trace are stored in the header fields of
    the same names. Other dimensions become cdp, or inline and crossline. The file is big-endian and of revision 1, or
    of revision 2.1 if revision 1 cannot represent the number of samples or their interval. The file gets its final name
    when it is complete.

    Args:
        values: An array, or any object that is indexed like an array. The values are read in blocks of about 16 MiB.
        dims: Names of the dimensions; the last one is `time` (or `t`) or `depth` (or `z`).
        coords: Coordinates, as a mapping from their names. Grid numbers of the dimensions must be whole; by default,
            they are 1, 2, .... Times are in s, ms or us, and depths in m or km; by default, samples are 1 ms or 1 m
            apart. The positions cdp_x, cdp_y, source_x, source_y, receiver_x and receiver_y are in m or km. Without
            cdp_x, the coordinates of the dimensions x and y are the trace positions.
        format: Sample format; by default 5 (IEEE) for float32, and the matching format for other types. Format 1 is IBM
            floating point, which keeps 21 to 24 bits of the mantissa.
        text: Lines of the textual header.
        kept: Trace headers to copy: a structured array with the field names of the standard, and the shape of `values`
            without the last dimension. The number of samples, their interval and their start are not copied. A header
            of zeros means that the trace is missing; this trace is then written and marked as dead.
        replaces: Whether an existing file is replaced.
        progress: Function that is called with the number of written traces and the total number.
    Raises:
        ConfigError: A dimension, coordinate or format is invalid.
        Unsupported: The format would round the values, or a header field cannot represent its value.
        PreconditionFailed: The file exists.
    """
    shape = tuple(int(side) for side in values.shape)
    if len(shape) != len(dims) or not 2 <= len(shape) <= 5 or not prod(shape):
        raise ConfigError(
            f"dims: must name each of the 2 to 5 axes of a non-empty array (got {len(dims)} names for shape "
            f"{list(shape)})",
            where="dims",
        )
    given = dict(coords or {})
    code = format if format is not None else _BY_DTYPE.get(np.dtype(values.dtype).name, 0)
    if code not in SEGY_FORMATS:
        raise ConfigError(
            f"format: {format or np.dtype(values.dtype).name} is not a supported SEG-Y sample format",
            hint=f"use one of {', '.join(map(str, SEGY_FORMATS))}",
            where="format",
        )
    kind = np.dtype(SEGY_FORMATS[code])
    names = _spatial(dims[:-1])
    vertical = "depth" if dims[-1] in ("depth", "z") else "time"
    interval, start = _vertical(given.get(dims[-1]), shape[-1], vertical)
    columns = _columns(names, dims[:-1], shape[:-1], given)
    traces, trace_bytes = prod(shape[:-1]), 240 + shape[-1] * _stored_bytes(code)
    size = 3600 + traces * trace_bytes
    file_header = _file_header(code, shape, vertical, interval, text, names, columns)

    def blocks() -> Iterator[_Block]:
        rows = max(1, _BLOCK_BYTES // (trace_bytes * max(1, traces // shape[0])))
        for first in range(0, shape[0], rows):
            end = min(first + rows, shape[0])
            block = np.asarray(values[first:end])
            samples = np.ascontiguousarray(block, dtype=kind)
            if block.dtype != kind and not np.array_equal(samples, block, equal_nan=block.dtype.kind == "f"):
                raise Unsupported(
                    f"{location.url}: format {code} ({kind.name}) cannot represent all {block.dtype.name} values "
                    "exactly",
                    hint="pass a wider format, or round the values first",
                    where=location.url,
                )
            numbers = np.arange(first * traces // shape[0], end * traces // shape[0])
            headers = _headers(numbers, columns, shape[-1], interval, start)
            if kept is not None:
                _keep(headers, kept.reshape(-1)[numbers])
            yield _Block(numbers, headers.view(np.uint8).reshape(-1), samples.reshape(-1).view(np.uint8))

    def report(written: _Block) -> None:
        if progress is not None:
            progress(int(written.numbers[-1]) + 1, traces)

    if location.is_local:
        _write_file(location, code, file_header, blocks(), report, replaces=replaces)
    else:
        _send(location, code, file_header, blocks(), size, report, replaces=replaces)
    kinds: Mapping[str, Any] = trace_dtype("big").fields or {}
    places = [f"{name}={kinds[_FIELDS[name]][1] + 1}:i4" for name in names]
    return SegyLayout(size, (*names, vertical), {"map": ",".join(places), "vertical": vertical})


@dataclass(frozen=True)
class _Block:
    """Yield groups of traces with consecutive numbers, in file order, with headers and samples as bytes."""

    numbers: np.ndarray[Any, Any]
    headers: np.ndarray[Any, Any]
    samples: np.ndarray[Any, Any]


def _write_file(
    location: Location,
    code: int,
    file_header: bytes,
    blocks: Iterator[_Block],
    report: Callable[[_Block], None],
    *,
    replaces: bool,
) -> None:
    """Write a local file with one thread per core. The file appears when it is complete."""
    threads = len(os.sched_getaffinity(0))
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(location.path, replaces=replaces) as out, ThreadPoolExecutor(threads) as pool:
            out.write(file_header)
            out.flush()
            waiting: deque[tuple[_Block, Future[None]]] = deque()
            for block in blocks:
                write = pool.submit(
                    _native.write_traces, out.fileno(), location.url, code, "big", block.headers, block.samples,
                    block.numbers, first_trace=len(file_header),
                )  # fmt: skip
                waiting.append((block, write))
                if len(waiting) > threads:
                    written, future = waiting.popleft()
                    future.result()
                    report(written)
            for written, future in waiting:
                future.result()
                report(written)
    except FileExistsError:
        raise PreconditionFailed(f"{location.url} already exists", where=location.url) from None
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise SystemFault(f"{location.url}: {error.strerror}", where=location.url) from None


def _send(
    location: Location,
    code: int,
    file_header: bytes,
    blocks: Iterator[_Block],
    size: int,
    report: Callable[[_Block], None],
    *,
    replaces: bool,
) -> None:
    """Send the file to a store in parts, in order."""
    writer = _native.ObjectWriter(
        location.folder, location.name, size, location.variables, create_only=not replaces,
        timeout_s=max(location.timeout_s, size / 1e6),
    )  # fmt: skip
    try:
        writer.write(file_header)
        for block in blocks:
            # A stored sample has the same size as a sample in memory.
            out = np.empty(len(block.headers) + len(block.samples), dtype=np.uint8)
            _native.encode_traces(code, "big", block.headers, block.samples, out)
            writer.write(out)
            report(block)
        writer.finish()
    except BaseException:
        writer.abort()
        raise


def _stored_bytes(code: int) -> int:
    return np.dtype(SEGY_FORMATS[code]).itemsize


def _spatial(dims: Sequence[str]) -> tuple[str, ...]:
    """Return SEG-Y names for all dimensions except the last. A dimension keeps its name if this is the name of a header
    field; otherwise, it gets a default name.
    """
    if all(dim in _FIELDS for dim in dims) and len(set(dims)) == len(dims):
        return tuple(dims)
    if len(dims) > 2:
        raise ConfigError(
            f"dims: {', '.join(dims)} are not the names of SEG-Y dimensions",
            hint=f"use different names from {', '.join(_FIELDS)}",
            where="dims",
        )
    return ("cdp",) if len(dims) == 1 else ("inline", "crossline")


def _vertical(coordinate: Coordinate | None, samples: int, vertical: str) -> tuple[float, int]:
    """Return the sample interval in µs (for depths, in mm) and the start in ms (for depths, in m)."""
    units = _MILLISECONDS if vertical == "time" else _METRES
    if coordinate is None:
        return 1000.0, 0
    unit = coordinate.attrs.get("units", "ms" if vertical == "time" else "m")
    if unit not in units:
        raise ConfigError(f"{vertical}: unit `{unit}` is not one of {', '.join(units)}", where=vertical)
    values = np.asarray(coordinate.values, dtype=np.float64) * units[unit]
    step = (values[-1] - values[0]) / (samples - 1) if samples > 1 else 1.0
    if len(values) != samples or step <= 0 or not np.allclose(np.diff(values), step, rtol=1e-4, atol=0):
        raise ConfigError(
            f"{vertical}: must be {samples:,} increasing values at a constant interval (got {len(values):,} values)",
            where=vertical,
        )
    start = round(values[0])
    if abs(values[0] - start) > 1e-6 * step or not -(2**15) <= start < 2**15:
        raise Unsupported(
            f"{vertical}: SEG-Y traces cannot start at {values[0]:g}, only at a whole number of ms or m below 32,768",
            where=vertical,
        )
    interval = step * 1000
    # Round, because numbers like 0.0012 s are not exact in binary.
    return (float(round(interval)) if abs(interval - round(interval)) < 1e-6 * interval else interval), start


def _columns(
    names: Sequence[str], dims: Sequence[str], shape: Sequence[int], coords: dict[str, Coordinate]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return a mapping from each header field to its values, one per trace."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for axis, (name, dim) in enumerate(zip(names, dims, strict=True)):
        numbers = np.arange(1, shape[axis] + 1)
        if dim == name and name in coords:
            stated = np.asarray(coords[name].values, dtype=np.float64)
            if (
                stated.shape != (shape[axis],)
                or not np.array_equal(stated, np.rint(stated))
                or np.abs(stated).max() >= 2**31
            ):
                raise Unsupported(f"{name}: SEG-Y supports only one 32-bit integer coordinate per index", where=name)
            if len(np.unique(stated)) < len(stated) or (np.diff(stated) < 0).any():
                raise ConfigError(f"{name}: the numbers must increase", where=name)
            numbers = stated.astype(np.int64)
        columns[_FIELDS[name]] = _broadcast(numbers, (dim,), dims, shape)
    positions = {name: coords[name] for name in _POSITIONS if name in coords}
    for name, dim in (("cdp_x", "x"), ("cdp_y", "y")):
        if name not in positions and dim in coords and dim in dims:
            positions[name] = coords[dim]
    metres: dict[str, np.ndarray[Any, Any]] = {}
    for name, coordinate in positions.items():
        unit = coordinate.attrs.get("units", "m")
        if unit not in _METRES or not set(coordinate.dims) <= set(dims):
            raise ConfigError(
                f"{name}: unit `{unit}` or dimensions {list(coordinate.dims)} are not supported", where=name
            )
        scaled = np.asarray(coordinate.values, dtype=np.float64) * _METRES[unit]
        metres[name] = _broadcast(scaled, coordinate.dims, dims, shape)
    if metres:
        largest = max(float(np.abs(values).max()) for values in metres.values())
        scalar = next((each for each in (10000, 1000, 100, 10, 1) if largest * each < 2**31), 0)
        if not scalar or not np.isfinite(largest):
            raise Unsupported(f"coords: SEG-Y cannot represent positions of {largest:g} m", where="coords")
        columns |= {name: np.rint(values * scalar).astype(np.int64) for name, values in metres.items()}
        columns["coordinate_scalar"] = np.asarray(-scalar if scalar > 1 else 1)
        columns["coordinate_units"] = np.asarray(1)
        if "offset" not in columns and {"source_x", "receiver_x"} <= metres.keys():
            apart = [metres.get(f"receiver_{axis}", 0.0) - metres.get(f"source_{axis}", np.zeros(1)) for axis in "xy"]
            columns["offset"] = np.rint(np.hypot(*apart)).astype(np.int64)
    return columns


def _broadcast(
    values: np.ndarray[Any, Any], own: Sequence[str], dims: Sequence[str], shape: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Broadcast values [own dimensions] to one value per trace, in file order."""
    order = [own.index(dim) for dim in dims if dim in own]
    sides = [side if dim in own else 1 for dim, side in zip(dims, shape, strict=True)]
    if sorted(order) != list(range(values.ndim)) or prod(sides) != values.size:
        raise ConfigError(
            f"coords: a coordinate with shape {list(values.shape)} and dimensions {list(own)} does not match the array "
            f"with shape {list(shape)} and dimensions {list(dims)}"
        )
    return np.broadcast_to(values.transpose(order).reshape(sides), tuple(shape)).reshape(-1)


def _headers(
    numbers: np.ndarray[Any, Any],
    columns: Mapping[str, np.ndarray[Any, Any]],
    samples: int,
    interval: float,
    start: int,
) -> np.ndarray[Any, Any]:
    headers = np.zeros(len(numbers), dtype=trace_dtype("big"))
    headers["trace_in_line"] = headers["trace_in_file"] = numbers + 1
    headers["trace_id"] = 1
    headers["samples"] = samples if samples < 2**16 else 0
    headers["sample_interval"] = _short(interval)
    headers["delay_time"] = start
    for name, values in columns.items():
        headers[name] = values[numbers] if values.ndim else values
    return headers


def _keep(headers: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> None:
    """Copy the fields of `kept`, [traces], to `headers`."""
    fixed = ("samples", "sample_interval", "delay_time")
    names = [name for name in kept.dtype.names or () if name in (headers.dtype.names or ()) and name not in fixed]
    is_missing = ~np.any([kept[name] != 0 for name in names], axis=0) if names else np.zeros(len(kept), np.bool_)
    for name in names:
        headers[name] = np.where(is_missing, headers[name], kept[name])
    headers["trace_id"][is_missing] = 2  # the code of a dead trace


def _short(interval: float) -> int:
    """Return the value of the two-byte interval field; 0 if the interval is in the extended field of revision 2."""
    return int(interval) if interval == int(interval) and interval < 2**16 else 0


def _file_header(
    code: int,
    shape: tuple[int, ...],
    vertical: str,
    interval: float,
    text: Sequence[str],
    names: Sequence[str],
    columns: Mapping[str, np.ndarray[Any, Any]],
) -> bytes:
    is_second = _short(interval) == 0 or shape[-1] >= 2**15 or code in (6, 9, 10, 11, 12, 16)
    unit = "us" if vertical == "time" else "mm"
    lines = [
        *text,
        f" {' x '.join(map(str, shape))} samples ({', '.join([*names, vertical])}), every {interval:g} {unit}",
        f" trace headers: {', '.join(columns)}",
    ]
    binary = np.zeros(400, dtype=np.uint8)

    def put(at: int, kind: str, value: float) -> None:
        binary[at : at + np.dtype(kind).itemsize] = np.frombuffer(np.asarray(value, dtype=kind).tobytes(), np.uint8)

    for name, value in {
        "job": 1, "line": 1, "reel": 1, "traces_per_ensemble": min(shape[-2], 2**15 - 1), "sample_interval": _short(interval),
        "samples": shape[-1] if shape[-1] < 2**16 else 0, "format": code, "ensemble_fold": 1, "measurement_system": 1,
        "revision": 0x0201 if is_second else 0x0100, "fixed_length": 1,
    }.items():  # fmt: skip
        byte, kind = BINARY_FIELDS[name]
        put(byte - 3201, ">" + kind, value)
    if is_second:
        put(68, ">u4", shape[-1])
        put(72, ">f8", interval)
        put(96, ">u4", 0x01020304)
    return encode_text_header(lines) + binary.tobytes()
