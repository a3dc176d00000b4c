# SPDX-License-Identifier: Apache-2.0
"""Converts observations of a run to rows: a disk's time series, or the time split of a training run.

Reads the output of `penstock bench disk-trace` and of `penstock train`. The rows are not phases of counted operations
of one size. Therefore, charts show these rows, but the verdict ignores them. `raw["limit"]` is the limit that the
source itself reports.
"""

from __future__ import annotations

import msgspec

from penstock.bench.results import RunRecord, refuse_newer
from penstock.bench.rows import End, Row, Sample
from penstock.errors import Corrupt

__all__ = ["is_run", "is_trace", "parse_run", "parse_trace"]

# Names of totals over the time classes. A total is not a time class.
_SUMS = ("wall_s", "wait_s")
_HITS = {
    "throughput": "limited by bytes per second",
    "IOPS": "limited by operations per second",
    "device": "busy all the time, below every stated limit",
    "none": "with room to spare",
}


class _Limits(msgspec.Struct):
    ios_per_s: float | None = None
    bytes_per_s: float | None = None
    source: str = ""


class _Sample(msgspec.Struct):
    at_s: float
    read_bytes_per_s: float
    write_bytes_per_s: float
    read_ios_per_s: float
    write_ios_per_s: float
    utilisation: float
    queue: float


class _Trace(msgspec.Struct, kw_only=True):
    device: str
    limits: _Limits
    samples: list[_Sample]
    binding_limit: str = ""
    hit: str = ""  # name of `binding_limit` in version 1
    seconds: float
    read_bytes: int
    write_bytes: int
    ios: int


class _Document(msgspec.Struct):
    traces: list[_Trace]


def is_trace(text: str) -> bool:
    """Whether a text is a trace document of `penstock bench disk-trace`."""
    return text.lstrip().startswith("{") and '"traces"' in text[:200]


def parse_trace(text: str, place: str) -> list[Row]:
    """Parse a trace document into rows, one per device.

    Raises:
        Corrupt: The text is not a trace document, or has a newer schema.
    """
    raw = text.encode()
    try:
        refuse_newer(raw, place)
        document = msgspec.json.decode(raw, type=_Document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{place} is not a valid disk trace document: {error}", where=place) from None
    return [_row(trace) for trace in document.traces]


def _row(trace: _Trace) -> Row:
    limit = trace.binding_limit or trace.hit
    stated = {"bytes_per_s": trace.limits.bytes_per_s, "ios_per_s": trace.limits.ios_per_s}
    return Row(
        operation="TRACE",
        path_type="blockdev",
        label=trace.device,
        last=End(time_s=trace.seconds, ios=trace.ios, bytes=trace.read_bytes + trace.write_bytes),
        series=tuple(
            Sample(
                at_s=s.at_s,
                bytes_per_s=s.read_bytes_per_s + s.write_bytes_per_s,
                ios_per_s=s.read_ios_per_s + s.write_ios_per_s,
                busy=s.utilisation,
                queue=s.queue,
            )
            for s in trace.samples
        ),
        limits={name: value for name, value in stated.items() if value is not None},
        source="penstock disk-trace",
        raw={"limit": _HITS.get(limit, limit), "stated by": trace.limits.source},
    )


def is_run(text: str) -> bool:
    """Whether a text is the `result.json` of a training run."""
    return (
        text.lstrip().startswith("{") and '"kind"' in text[:2_000] and '"spec_hash"' in text and '"provenance"' in text
    )


def parse_run(text: str, place: str) -> list[Row]:
    """Parse a run record into one row: the bytes that the run moved, and the time split of the rank that waited
    longest.

    Raises:
        Corrupt: The text is not a run record, or has a newer schema.
    """
    raw = text.encode()
    try:
        refuse_newer(raw, place)
        record = msgspec.json.decode(raw, type=RunRecord)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{place} is not a valid run record: {error}", where=place) from None
    seconds = record.loader.get("seconds")
    known = seconds if isinstance(seconds, dict) else {}
    limiting = str(record.loader.get("limiting", "")).removesuffix("_s").replace("_", " ")
    return [
        Row(
            operation="TRAIN",
            label=record.label or record.id,
            last=End(
                time_s=record.train_s,
                bytes=record.bytes,
                bytes_per_s=record.bytes / record.train_s if record.train_s > 0 else None,
            ),
            lost_s_by_cause={
                name.removesuffix("_s").replace("_", " "): float(value)
                for name, value in known.items()
                if name not in _SUMS and isinstance(value, int | float) and value > 0
            },
            cache=record.cache,
            created=record.created,
            spec_hash=record.spec_hash,
            invalid=record.invalid,
            source=f"penstock {record.provenance.version}",
            raw={"limit": f"limited by {limiting}"} if limiting else {},
        )
    ]
