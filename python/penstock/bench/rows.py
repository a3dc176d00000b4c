# SPDX-License-Identifier: Apache-2.0
"""Benchmark rows: each row is one measured phase, an operation at one size and one concurrency.

Every benchmark writes rows. A folder of results contains `rows.jsonl` (one row per line), `machine.json` (provenance)
and `spec.toml` (the request). Judgements (regimes, advice, ratios) are always computed from the rows and never stored
in them. Fields are only ever added; a reader ignores unknown fields. docs/reference/results.md describes each field.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.results import (
    SCHEMA_VERSION,
    CacheState,
    Provenance,
    finite,
    refuse_newer,
    spec_hash,
    whole_file,
)
from penstock.errors import Corrupt, NotFound, SystemFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["End", "Latency", "Results", "Row", "Sample", "moves_bytes", "read_results", "write_results"]

# Operations have elbencho's names, so that rows and elbencho's CSV agree. The name of a mixed operation contains its
# percentage of reads, or its number of readers. `+s` and `+r` add a stat and a read of each file. NET is elbencho's
# network test.
_DATA_OPERATION = re.compile(r"(?:READ|WRITE|RWMIX\d*|MIX-T\d+|NET)(?:\+[sr])*")
# Operations of rows that are observed from outside: a disk during a run, or a training run itself.
WATCHED = frozenset({"TRACE", "TRAIN"})
# Operations that have no single size, or that run between phases. These operations are timed, but the verdict ignores
# them.
HOUSEKEEPING = frozenset({"SYNC", "DROPCACHE"}) | WATCHED
# Names of the percentiles, mapped to the core's names.
_PERCENTILES = {"50": "p50_us", "90": "p90_us", "95": "p95_us", "99": "p99_us", "99.9": "p99_9_us"}


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Work done in the first `time_s` seconds of a phase, until its first or its last worker ended.

    Attributes:
        entries: Completed files, objects or folders; None if none was completed or counted.
        ios: Blocks read or written.
        cpu: Busy share, 0 to 1, of the processors that the benchmark may run on (its affinity).
    """

    time_s: float
    entries: float | None = None
    ios: float | None = None
    bytes: float | None = None
    entries_per_s: float | None = None
    ios_per_s: float | None = None
    bytes_per_s: float | None = None
    cpu: float | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one kind of operation, in microseconds. The keys of `percentiles_us` are names like "50" and "99.9".

    Attributes:
        count: Operations measured.
        buckets: (bucket, count) of the core's histogram, used to merge the latencies of several hosts. Bucket i <
            128 is i ns; any other bucket i begins at (128 + i % 128) << (i // 128 - 1) ns.
    """

    count: int | None = None
    min_us: float | None = None
    mean_us: float | None = None
    max_us: float | None = None
    percentiles_us: dict[str, float] = {}
    buckets: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any] | None) -> Latency | None:
        """Convert the core's JSON to a latency; None if nothing was recorded."""
        if not fields or not fields["count"]:
            return None
        percentiles = {name: fields[key] for name, key in _PERCENTILES.items()}
        return cls(
            count=fields["count"],
            min_us=fields["min_us"],
            mean_us=fields["mean_us"],
            max_us=fields["max_us"],
            percentiles_us=percentiles,
            buckets=tuple((at, count) for at, count in fields["buckets"]),
        )

    def to_fields(self) -> dict[str, Any]:
        """Convert the latency to the core's JSON, for merging. The merge ignores the percentiles."""
        count, mean = self.count or 0, self.mean_us or 0.0
        return {
            "count": count,
            "min_us": self.min_us or 0.0,
            "mean_us": mean,
            "max_us": self.max_us or 0.0,
            "sum_us": mean * count,
            **{key: self.percentiles_us.get(name, 0.0) for name, key in _PERCENTILES.items()},
            "buckets": self.buckets,
        }


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of a phase's time series: the rates in the interval that ends at `at_s`.

    Attributes:
        busy: Share of the interval in which the device had work.
        queue: Mean number of requests that waited at the device.
        workers: Number of workers that had started by the end of the interval, which shows the ramp of connections.
    """

    at_s: float
    bytes_per_s: float = 0.0
    entries_per_s: float = 0.0
    ios_per_s: float | None = None
    busy: float | None = None
    queue: float | None = None
    throttles: int = 0
    workers: int | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured phase. As in elbencho, `threads` is per host, and `files` is per thread and folder.

    Attributes:
        path_type: `dir`, `file`, `blockdev` or `object`.
        first: Work done until the first worker ended. All workers were busy until then.
        last: Work done until the last worker ended.
        entry_latency: Latency of a whole file or object, including open.
        io_latency: Latency of one block.
        first_byte_latency: Time until an object's first byte.
        service_latency: In an open loop, latency since the request was sent. All other latencies count from the
            scheduled time of the request.
        errors_by_class: Failed requests, by class: "429", "503", "5xx", "reset", "timeout".
        throttled_s: Worker-seconds spent backing off.
        bytes_refetched: Bytes transferred again after a failed attempt.
        open_loop_per_s: Arrival rate of an open loop; None for a closed loop.
        limits: Stated limits of the tier or disk: `bytes_per_s`, `ios_per_s`, `entries_per_s`. Charts draw these limits
            with the series.
        lost_s_by_cause: Worker-seconds lost, by cause.
        cpu_s: Processor seconds of the benchmark itself, on all hosts.
        cores: Processors that each host can keep busy (limited by its affinity and its control group's quota). If
            several hosts share a machine, this is the machine's number of processors divided by the number of hosts.
        prices_as_of: Dates of the prices that `usd` is computed from.
        invalid: Reasons why the figures are not valid; empty for a valid row.
        source: Tool and version that measured the row.
        raw: Fields of an imported file that this schema does not have.
    """

    schema_version: int = SCHEMA_VERSION
    operation: str
    path_type: str = "dir"
    hosts: int = 1
    threads: int = 1
    io_depth: int = 1
    directories: int | None = None
    files: int | None = None
    file_size_bytes: int | None = None
    block_size_bytes: int | None = None
    direct: bool = False
    random: bool = False
    first: End | None = None
    last: End
    entry_latency: Latency | None = None
    io_latency: Latency | None = None
    first_byte_latency: Latency | None = None
    service_latency: Latency | None = None
    errors_by_class: dict[str, int] = {}
    retries: int = 0
    throttled_s: float = 0.0
    bytes_refetched: int = 0
    open_loop_per_s: float | None = None
    series: tuple[Sample, ...] = ()
    limits: dict[str, float] = {}
    lost_s_by_cause: dict[str, float] = {}
    cache: CacheState = CacheState()
    cpu_s: float | None = None
    cores: float | None = None
    usd: float | None = None
    prices_as_of: tuple[str, ...] = ()
    created: str = ""
    label: str = ""
    repeat: int = 0
    spec_hash: str = ""
    source: str = ""
    invalid: tuple[str, ...] = ()
    raw: dict[str, str] = {}

    @property
    def own_cpu(self) -> float | None:
        """Share of the hosts' processors that the benchmark kept busy, 0 to 1; None if it was not recorded."""
        if self.cpu_s is None or not self.cores or self.last.time_s <= 0:
            return None
        return min(1.0, self.cpu_s / (self.last.time_s * self.cores * max(1, self.hosts)))

    @property
    def workers(self) -> int:
        """Maximum number of requests in flight, on all hosts."""
        return max(1, self.hosts) * max(1, self.threads) * max(1, self.io_depth)


class Results(msgspec.Struct, frozen=True):
    """The content of a folder of rows. `provenance` is None for rows of another tool."""

    rows: tuple[Row, ...]
    spec: dict[str, Any] = {}
    provenance: Provenance | None = None


def moves_bytes(operation: str) -> bool:
    """Whether an operation reads or writes the content of files or objects."""
    return _DATA_OPERATION.fullmatch(operation) is not None


def columns(points: Sequence[msgspec.Struct]) -> dict[str, list[Any]]:
    """Return the points of a sweep as a table of lists, as a specification stores them. A field that no point sets is
    omitted.
    """
    found = {name: [getattr(point, name) for point in points] for name in points[0].__struct_fields__} if points else {}
    return {
        name: [value or 0 for value in values] for name, values in found.items() if any(v is not None for v in values)
    }


def _toml(table: dict[str, Any], name: str = "") -> str:
    """Convert a specification to TOML. The specification may contain only scalars, lists of scalars, and tables of
    both.
    """
    # JSON strings, numbers and booleans are valid TOML. TOML cannot represent None, so such values are omitted.
    lines = [f"[{name}]"] if name else []
    lines += [
        f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in table.items()
        if not isinstance(value, dict) and value is not None
    ]
    inner = [
        _toml(value, f"{name}.{json.dumps(key)}" if name else json.dumps(key))
        for key, value in table.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*lines, *inner]) + ("" if inner else "\n")


def write_results(
    folder: Path, rows: Sequence[Row], *, spec: dict[str, Any], provenance: Provenance | None = None
) -> Path:
    """Write `rows.jsonl`, `spec.toml` and, for rows measured here, `machine.json`. Each file is written atomically.

    Rows get the hash of the specification. Rows of a debug build are marked INVALID.

    Raises:
        Corrupt: A figure is not finite.
        Denied, NoSpace, SystemFault: The folder cannot be written.
    """
    mark = spec_hash(spec)
    profile = provenance.build_profile if provenance else "release"
    why = () if profile == "release" else (f"{profile} build",)
    lines = []
    for number, row in enumerate(rows):
        whole = msgspec.structs.replace(
            row, spec_hash=mark, invalid=(*row.invalid, *(w for w in why if w not in row.invalid))
        )
        plain = msgspec.to_builtins(whole)
        finite(plain, f"rows[{number}]")
        lines.append(msgspec.json.encode(plain) + b"\n")
    texts = {"spec.toml": _toml(spec).encode(), "rows.jsonl": b"".join(lines)}
    if provenance is not None:
        texts["machine.json"] = msgspec.json.format(msgspec.json.encode(provenance), indent=1) + b"\n"
    for name, text in texts.items():
        with whole_file(folder / name) as out:
            out.write(text)
    return folder / "rows.jsonl"


# Fields that had other names in version 1.
_VERSION_1 = {"statuses": "errors_by_class", "loss_s": "lost_s_by_cause"}


def _row(line: bytes) -> Row:
    fields = msgspec.json.decode(line, type=dict[str, Any])
    return msgspec.convert({_VERSION_1.get(name, name): value for name, value in fields.items()}, Row)


def read_results(folder: Path) -> Results:
    """Read a folder that `write_results` wrote.

    Raises:
        NotFound: The folder contains no `rows.jsonl`.
        Corrupt: A line is not a row, or has a newer schema.
    """
    import tomllib

    file = folder / "rows.jsonl"
    try:
        raw = file.read_bytes()
        spec = folder / "spec.toml"
        machine = folder / "machine.json"
        fields = tomllib.loads(spec.read_text(encoding="utf-8")) if spec.exists() else {}
        origin = msgspec.json.decode(machine.read_bytes(), type=Provenance) if machine.exists() else None
    except FileNotFoundError:
        raise NotFound(f"{file} does not exist", where=str(file)) from None
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{folder} is not a valid results folder: {error}", where=str(folder)) from None
    except OSError as error:
        raise SystemFault(f"{file} cannot be read: {error.strerror}", where=str(file)) from None
    rows = []
    for number, line in enumerate(raw.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            refuse_newer(line, f"{file}, line {number}")
            row = _row(line)
            # With several hosts, the number of machines is unknown, so `cores` stays unset.
            if row.hosts == 1 and row.cores is None and row.cpu_s is not None and origin is not None:
                row = msgspec.structs.replace(row, cores=origin.machine.cores)
            rows.append(row)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{file}, line {number} is not a valid row: {error}", where=str(file)) from None
    return Results(rows=tuple(rows), spec=fields, provenance=origin)
