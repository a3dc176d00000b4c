# SPDX-License-Identifier: Apache-2.0
"""Runs a conversion: plans blocks, and copies them in threads. Several processes can share a conversion to Zarr."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.convert.chunking import SHARD_BYTES, Chunking, choose, parse_shape, whole_traces
from penstock.arrays.convert.hdf5_destination import Hdf5Destination
from penstock.arrays.convert.mdio_destination import MdioDestination, MdioSource, mdio_chunks
from penstock.arrays.convert.segy_destination import SegyDestination
from penstock.arrays.convert.source import SegyFacts, Source, open_source
from penstock.arrays.convert.zarr_destination import ZarrDestination
from penstock.arrays.convert.zfp import lossy_of
from penstock.arrays.lease import Lease
from penstock.arrays.location import Location
from penstock.errors import Busy, ConfigError, Deadline, Unsupported
from penstock.ranks import Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.arrays.indexing import Box

__all__ = ["FORMATS", "LAYOUTS", "ConversionReport", "convert", "format_of"]

FORMATS = ("zarr", "segy", "hdf5")
LAYOUTS = ("plain", "mdio")
"""Layouts of a Zarr group: Penstock's own (plain CF), and MDIO v1."""

_SUFFIXES = {
    ".zarr": "zarr",
    ".mdio": "zarr",
    ".sgy": "segy",
    ".segy": "segy",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".nc": "hdf5",
}


@dataclass
class ConversionReport:
    """Result of a conversion."""

    source: str
    destination: str
    format: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: str
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    blocks: int = 0
    resumed: int = 0
    sample_bytes: int = 0
    stored_bytes: int = 0
    ibm_words: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    is_complete: bool = False
    map: str | None = None
    """Geometry of a source with trace headers, as for `--map`; empty if traces are in file order."""
    lossy: dict[str, Any] | None = None
    """Codec, setting and error of lossy compression, in this conversion or in an earlier conversion that wrote the
    source.
    """
    explanation: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: str | None = None,
    layout: str | None = None,
    array: str | None = None,
    map: str | None = None,  # noqa: A002 - as on the command line
    vertical: str = "time",
    access: Sequence[str] = ("balanced",),
    chunks: str | None = None,
    shards: str | None = None,
    codec: str | None = None,
    threads: int | None = None,
    rank: Rank | None = None,
    dry_run: bool = False,
    timeout_s: float = 600.0,
    progress: Callable[[str, int, int], None] | None = None,
    **overrides: Any,
) -> ConversionReport:
    """Convert a volume without loss, unless `codec` is lossy. A conversion from SEG-Y to Zarr or HDF5 and back gives
    the same bytes.

    If a conversion to Zarr or SEG-Y is killed, repeat the same call to resume it. Several ranks of one launch can share
    a conversion to Zarr. Each rank writes different whole objects.

    Args:
        to: `zarr`, `segy` or `hdf5`; by default from the destination's suffix.
        layout: Layout of a Zarr group: `plain` (default), or `mdio` (default for the suffix `.mdio`). MDIO v1 can open
            the layout `mdio`, which has the names, `headers`, `trace_mask` and chunks of MDIO. The layout `mdio` has
            shards only if `shards` is given.
        access: Access pattern for which chunks are chosen: dimensions across which slices are read, or `balanced`,
            `shots` or `train`.
        chunks, shards: Shapes to use, such as `64,64,64`. `shards="none"` stores each chunk as an object.
        codec: Codec, with an optional `:LEVEL`. For Zarr: `none`, `lz4` (default), `zstd`, `blosc-zstd` or `gzip`; for
            HDF5: `none` or `gzip`. Lossy codecs, only for Zarr: `zfp:tolerance=X`, `zfp:precision=BITS` or
            `zfp:rate=BITS`.
        threads: Number of threads, by default one per core. Each thread needs about 128 MiB of memory (two blocks).
        rank: Rank of this process, if a launch has several.
        dry_run: Only plan the conversion, and write nothing.
        progress: Function that is called with the phase (`scan` or `convert`), the number of finished units and the
            total number.
        overrides: `format`, `byte_order`, `samples` and `allow_trailing`, for a SEG-Y source with a wrong header.

    Raises:
        Busy: Another process is writing to this destination.
        Mismatch: The destination exists, or belongs to a conversion with different settings.
        Unsupported: The destination's format cannot represent the volume.
    """
    begin, begin_cpu = time.monotonic(), time.process_time()
    from_, to_place = Location(os.fspath(source), timeout_s), Location(os.fspath(destination), timeout_s)
    kind = format_of(to_place, to)
    rank = rank or Rank()
    count = threads or len(os.sched_getaffinity(0))

    def phase_progress(phase: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, of: progress(phase, done, of)

    volume = open_source(
        from_, array=array, map=map, vertical=vertical, threads=count, progress=phase_progress("scan"), **overrides
    )
    layout = _layout_of(to_place, kind, layout)
    if layout == "mdio":
        volume = MdioSource(volume)
        if chunks is None and (usual := mdio_chunks(volume)) is not None:
            chunks = ",".join(f"{side}" for side in usual)
        shards = shards or "none"
    chunking = _chunking(kind, volume, access, chunks, shards)
    report = ConversionReport(
        from_.url, to_place.url, kind, volume.shape, volume.dims, volume.dtype.name,
        None if kind == "segy" else chunking.chunks, chunking.shards if kind == "zarr" else None,
        blocks=prod(chunking.grid), sample_bytes=prod(volume.shape) * volume.dtype.itemsize,
        explanation=chunking.explain() if kind == "zarr" else [],
        map=None if volume.segy is None else volume.segy.layout.get("map"),
    )  # fmt: skip
    target = _destination(kind, to_place, volume, chunking, chunks, codec)
    if dry_run:
        return report
    plan = json.dumps(
        {
            "source": _plain(volume.identity), "dims": volume.dims, "shape": volume.shape, "dtype": volume.dtype.name,
            "chunks": chunking.chunks, "shards": chunking.shards, "codec": codec, "format": kind, "layout": layout,
        },
        sort_keys=True,
    )  # fmt: skip
    if kind != "zarr" and rank.world > 1:
        raise Unsupported(
            f"to: {rank.world:,} ranks cannot write one {kind} file", hint="convert with one rank, or to Zarr"
        )
    stop = threading.Event()
    lease = Lease(to_place, f"{target.state}/lease", on_loss=stop.set) if kind == "zarr" and rank.rank == 0 else None
    try:
        if lease is not None:
            target.check()
            lease.acquire()
        is_whole = False
        if rank.rank == 0:
            is_whole = target.prepare(plan)
        elif isinstance(target, ZarrDestination):
            _await_plan(target, plan, timeout_s)
        if is_whole:
            report.resumed = report.blocks
        else:
            _carry(volume, target, chunking, rank, count, stop, report, phase_progress("convert"))
            if rank.rank == 0:
                if isinstance(target, ZarrDestination):
                    _await_ranks(target, chunking, stop)
                target.finish()
        report.is_complete = rank.rank == 0
        report.lossy = lossy_of(volume.attrs)
        if isinstance(target, ZarrDestination) and report.is_complete:
            report.lossy = target.lossy() or report.lossy
    finally:
        if isinstance(target, SegyDestination | Hdf5Destination):
            target.close()
        if lease is not None:
            lease.release()
    report.seconds = round(time.monotonic() - begin, 3)
    report.cpu_seconds = round(time.process_time() - begin_cpu, 3)
    return report


def format_of(location: Location, stated: str | None) -> str:
    """Return the format of a destination: the given format, or the format of the suffix.

    Raises:
        ConfigError: The suffix is not known.
    """
    kind = stated or _SUFFIXES.get(os.path.splitext(location.url)[1].lower())  # noqa: PTH122 - of a URL
    if kind not in FORMATS:
        raise ConfigError(
            f"to: the suffix of {location.url} does not determine the format",
            where="to",
            hint=f"set it to one of {', '.join(FORMATS)}",
        )
    return kind


def _layout_of(location: Location, kind: str, stated: str | None) -> str:
    layout = stated or ("mdio" if kind == "zarr" and location.url.lower().endswith(".mdio") else "plain")
    if layout not in LAYOUTS:
        raise ConfigError(f"layout: `{layout}` is not one of {', '.join(LAYOUTS)}", where="layout")
    if layout == "mdio" and kind != "zarr":
        raise ConfigError(f"layout: mdio requires the format zarr (got {kind})", where="layout")
    return layout


def _chunking(kind: str, volume: Source, access: Sequence[str], chunks: str | None, shards: str | None) -> Chunking:
    shape, dims, itemsize = volume.shape, volume.dims, volume.dtype.itemsize
    if kind == "segy":
        return whole_traces(dims, shape, itemsize, volume.chunks)
    given = None if chunks is None else parse_shape(chunks, len(shape), "chunks")
    is_sharded = kind == "zarr" and shards != "none"
    given_shards = parse_shape(shards, len(shape), "shards") if shards not in (None, "none") and shards else None
    return choose(
        dims, shape, itemsize, access, chunks=given, shards=given_shards, is_sharded=is_sharded or kind == "hdf5"
    )


def _destination(
    kind: str, location: Location, volume: Source, chunking: Chunking, chunks: str | None, codec: str | None
) -> Any:
    if isinstance(volume, MdioSource):
        return MdioDestination(location, volume, chunking, codec or "blosc-zstd")
    if kind == "zarr":
        return ZarrDestination(location, volume, chunking, codec or "lz4")
    if kind == "hdf5":
        is_chunked = codec not in (None, "none") or chunks is not None
        return Hdf5Destination(location, volume, chunking if is_chunked else None, codec or "none")
    if codec is not None:
        raise ConfigError("codec: not supported for SEG-Y", where="codec")
    return SegyDestination(location, volume, _facts(volume, location))


def _facts(volume: Source, location: Location) -> SegyFacts:
    if volume.segy is None:
        raise Unsupported(
            f"{location.url}: a conversion to SEG-Y requires trace headers, but the source has none",
            hint="run penstock array create --from SOURCE to create headers from coordinates",
        )
    return volume.segy


def _carry(
    volume: Source,
    target: Any,
    chunking: Chunking,
    rank: Rank,
    threads: int,
    stop: threading.Event,
    report: ConversionReport,
    progress: Callable[[int, int], None] | None,
) -> None:
    finished_cells = target.done()
    columns = _columns(chunking, is_grouped=isinstance(target, ZarrDestination))[rank.rank :: rank.world]
    total = sum(map(len, columns))
    left = [kept for column in columns if (kept := [cell for cell in column if cell not in finished_cells])]
    done = report.resumed = total - sum(map(len, left))
    if progress is not None:
        progress(done, total)
    scratch = _Scratch()

    def box_of(cell: tuple[int, ...]) -> Box:
        return tuple(
            (at * size, min((at + 1) * size, side))
            for at, size, side in zip(cell, chunking.objects, volume.shape, strict=True)
        )

    def work(column: list[tuple[int, ...]]) -> tuple[int, int]:
        """Read the traces of a column once, then write all objects of the column."""
        start, end = box_of(column[0])[-1][0], box_of(column[-1])[-1][1]
        box = (*box_of(column[0])[:-1], (start, end))
        sides = [end - start for start, end in box]
        headers = None
        if volume.segy is not None and column[0][-1] == 0:
            headers = scratch.take("headers", (*sides[:-1], volume.segy.header_bytes), np.dtype(np.uint8))
        samples, exceptions = volume.read(box, headers, scratch.take("samples", sides, volume.dtype))
        stored = 0
        for cell in column:
            if stop.is_set():
                raise Busy(
                    f"{report.destination}: another process has taken over the destination", where=report.destination
                )
            place = box_of(cell)
            first, last = place[-1]
            numbers = exceptions["sample"]
            own = exceptions[(numbers >= first) & (numbers < last)] if len(column) > 1 else exceptions
            stored += target.write(cell, place, samples[..., first - start : last - start], headers, own)
        return stored, len(exceptions)

    # Each thread processes one column at a time, so the number of threads limits the memory.
    with ThreadPoolExecutor(threads, thread_name_prefix="penstock-convert") as pool:
        waiting: dict[Future[tuple[int, int]], list[tuple[int, ...]]] = {}
        todo = iter(left)
        try:
            while True:
                while len(waiting) < threads and (column := next(todo, None)) is not None:
                    waiting[pool.submit(work, column)] = column
                if not waiting:
                    break
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    column = waiting.pop(future)
                    stored, words = future.result()
                    if not isinstance(target, ZarrDestination):
                        target.mark(column[0])
                    report.stored_bytes += stored
                    report.ibm_words += words
                    done += len(column)
                    if progress is not None:
                        progress(done, total)
        except BaseException:
            stop.set()
            raise


class _Scratch(threading.local):
    """Buffers of a thread. They are reused for each block, because the page faults of new memory take longer than
    copying a block.
    """

    def take(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return a buffer of this shape with arbitrary content. The next call with the same name reuses it."""
        size = prod(shape) * dtype.itemsize
        held = self.__dict__.get(name)
        if held is None or held.nbytes < size:
            held = self.__dict__[name] = np.empty(size, dtype=np.uint8)
        found: np.ndarray[Any, Any] = held[:size].view(dtype).reshape(shape)
        return found


def _columns(chunking: Chunking, *, is_grouped: bool) -> list[list[tuple[int, ...]]]:
    """Group objects that are adjacent along the last dimension (the samples), so that each trace is read only once."""
    count = max(1, SHARD_BYTES // (prod(chunking.objects) * chunking.itemsize)) if is_grouped else 1
    cells = list(np.ndindex(*chunking.grid))
    rows = [cells[at : at + chunking.grid[-1]] for at in range(0, len(cells), max(1, chunking.grid[-1]))]
    return [row[at : at + count] for row in rows for at in range(0, len(row), count)]


def _await_plan(target: ZarrDestination, plan: str, timeout_s: float) -> None:
    """Wait until rank 0 has created the arrays."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        found = target.location.read(f"{target.state}/plan.json")
        if found is not None and found.decode() == plan:
            return
        time.sleep(0.2)
    raise Deadline(f"rank 0 did not prepare {target.location.url} within {timeout_s:.0f} s", where=target.location.url)


def _await_ranks(target: ZarrDestination, chunking: Chunking, stop: threading.Event) -> None:
    """Wait until all objects are written. If no object is written for 300 s, raise an error, because a rank has
    probably ended early.
    """
    total, quiet_s, last = prod(chunking.grid), 0.0, -1
    while (count := len(target.done())) < total and not stop.is_set():
        quiet_s = quiet_s + 0.5 if count == last else 0.0
        last = count
        if quiet_s > 300:
            raise Deadline(
                f"{target.location.url}: {total - count:,} of {total:,} objects are missing, and no object was written in "
                "the last 300 s",
                where=target.location.url, hint="start the conversion again to resume it",
            )  # fmt: skip
        time.sleep(0.5)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
