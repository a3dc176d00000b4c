# SPDX-License-Identifier: Apache-2.0
"""What `penstock bench disk-trace` wrote, as rows: a device's series beside the limits that are stated for it.

A trace is no phase: nobody counted operations of one size, so that its row is drawn and never judged by the fit.
"""

from __future__ import annotations

import msgspec

from penstock.bench.results import refuse_newer
from penstock.bench.rows import End, Row, Sample
from penstock.errors import Corrupt

__all__ = ["TRACE", "looks_like", "parse"]

TRACE = "TRACE"


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


class _Trace(msgspec.Struct):
    device: str
    limits: _Limits
    samples: list[_Sample]
    hit: str
    seconds: float
    read_bytes: int
    write_bytes: int
    ios: int


class _Document(msgspec.Struct):
    traces: list[_Trace]


def looks_like(text: str) -> bool:
    """Whether a text is a document of traces."""
    return text.lstrip().startswith("{") and '"traces"' in text[:200]


def parse(text: str, place: str) -> list[Row]:
    """A row a device.

    Raises:
        Corrupt: No such document, or one of a newer schema.
    """
    raw = text.encode()
    try:
        refuse_newer(raw, place)
        document = msgspec.json.decode(raw, type=_Document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{place} is no document of disk traces: {error}", where=place) from None
    return [_row(trace) for trace in document.traces]


def _row(trace: _Trace) -> Row:
    told = {"bytes_per_s": trace.limits.bytes_per_s, "ios_per_s": trace.limits.ios_per_s}
    return Row(
        operation=TRACE,
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
        limits={name: value for name, value in told.items() if value is not None},
        source="penstock disk-trace",
        raw={"hit": trace.hit, "limits": trace.limits.source},
    )
