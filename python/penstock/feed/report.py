# SPDX-License-Identifier: Apache-2.0
"""Report of an epoch's time, computed from the loader's measurements. Measures nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CLASSES", "EpochMeasurements", "Report", "make"]

CLASSES = (
    "compute_s",
    "first_byte_s",
    "transfer_s",
    "throttle_s",
    "inflate_s",
    "decode_s",
    "map_s",
    "host_to_device_s",
    "overhead_s",
)
"""Classes of time. Every second of wall time is in exactly one class."""

_LIMIT_TEXTS = {
    "compute_s": "the consumer's own work",
    "first_byte_s": "requests without a response yet (latency)",
    "transfer_s": "bytes in transit (bandwidth)",
    "throttle_s": "throttling by the store",
    "inflate_s": "inflating (CPU)",
    "decode_s": "checking and copying records (CPU)",
    "map_s": "the functions of map()",
    "host_to_device_s": "copies to the device",
    "overhead_s": "requests not yet sent (read-ahead or memory budget) and hand-over",
}

_POOL = (
    "pool_own_reads",
    "pool_own_bytes",
    "pool_engine_reads",
    "pool_engine_bytes",
    "pool_bucket_reads",
    "pool_bucket_bytes",
    "pool_refills",
)

# If the pass waits for less than this share of the time, the consumer is the bottleneck.
_LIMITED = 0.05


@dataclass(slots=True)
class EpochMeasurements:
    """Measurements of a pass so far. Times are in seconds. Counters count from the start of the pass."""

    epoch: int = 0
    samples: int = 0
    batches: int = 0
    bytes_out: int = 0
    wall_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    host_to_device_s: float = 0.0
    first_batch_s: float | None = None
    complete: bool = False
    timing: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    error_counts: tuple[int, int, list[str]] = (0, 0, [])


class Report(Mapping[str, Any]):
    """A mapping of the report's values. Prints as a table of the time classes."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, key: str) -> Any:
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Report({self._rows!r})"

    def line(self) -> str:
        """Return one line for a progress meter: position, rate, and the resource for which the pass waits."""
        waits = f"waits {100 * self['wait_share']:.1f} %"
        if self["limiting"] != "compute_s":
            waits += f" ({self['limiting'].removesuffix('_s').replace('_', ' ')})"
        wall = max(self["wall_s"], 1e-9)
        return (
            f"epoch {self['epoch']} · {self['samples']:,} samples · {self['samples_per_s']:,.1f}/s · "
            f"{self['bytes_in'] / wall / 1e6:,.1f} MB/s in · {waits}"
            + (f" · {self['throttles']:,} throttled" if self["throttles"] else "")
        )

    def prometheus(self) -> str:
        """Return the numbers in Prometheus' text format, for an HTTP endpoint or a collector's folder."""
        return _exposition(self)

    def __str__(self) -> str:
        wall = max(self["wall_s"], 1e-9)
        first = self["first_batch_s"]
        lines = [
            f"epoch {self['epoch']}: {self['samples']:,} samples in {self['wall_s']:.2f} s "
            f"({self['samples_per_s']:.1f} samples/s), waiting {100 * self['wait_share']:.1f} %"
            + (f", first batch after {first:.2f} s" if first is not None else "")
        ]
        lines += [
            f"  {name.removesuffix('_s').replace('_', ' '):<16} {self[name]:9.2f} s {100 * self[name] / wall:5.1f} %"
            for name in CLASSES
            if self[name] > 0
        ]
        lines.append(
            f"  {self['bytes_in'] / 1e9:.3f} GB in, {self['bytes_out'] / 1e9:.3f} GB out, {self['requests']:,} requests, "
            f"{self['throttles']:,} throttled, {self['retries']:,} retried, {self['hedges']:,} hedged "
            f"({self['hedges_won']:,} answered first); counts: {self['counts']}"
        )
        if self["window"] is not None:
            lines.append(
                f"  window {self['window']:,} objects: {self['expected_gets_per_batch']:.1f} object reads expected for a batch of"
                f" {self['global_batch']:,} over {self['world']:,} ranks"
            )
        if self["needed_bytes"]:
            needed, have = self["needed_bytes"], self["bytes_in"]
            lines.append(
                f"  the epoch's patches need {needed / 1e9:.3f} GB of chunks; this rank read {have / needed:.2f} times that"
            )
        if any(self["caches"]):
            lines.append(
                f"  node cache: {self['cache_hits']:,} reads from it ({self['cache_bytes'] / 1e9:.3f} GB), "
                f"{self['cache_misses']:,} objects fetched into it, {self['cache_evictions']:,} evicted"
                + (f", {self['cache_transcodes']:,} rewritten in planes" if self["cache_transcodes"] else "")
            )
        lines += [f"  compressed objects are {text}" for text in self["transcoding"] if text is not None]
        if self["locality"] is not None:
            where = self["locality"]
            read = max(1, self["pool_own_bytes"] + self["pool_engine_bytes"] + self["pool_bucket_bytes"])
            shares = (f"{100 * self[f'pool_{way}_bytes'] / read:.1f} %" for way in ("own", "engine", "bucket"))
            lines.append(
                "  pool: {} of the bytes from this node's own files, {} by the engine, {} refetched from the bucket".format(
                    *shares
                )
                + f" ({self['pool_refills']:,} objects put back); {100 * where['expected_local_share']:.1f} % would "
                f"be local in a global order ({where['copies']} of {where['nodes']})"
            )
        if self["device"] is not None:
            lines.append(f"  batches are copied to {self['device']}")
        if self["skipped"] or self["substituted"]:
            lines.append(
                f"  {self['skipped']:,} bad samples left out, {self['substituted']:,} replaced by others; "
                f"the first: {self['bad_samples'][0]}"
            )
        lines.append(f"  limited by {self['limiting'].removesuffix('_s').replace('_', ' ')}: {self['reason']}")
        return "\n".join(lines)


_COUNTS = {
    "samples": "Samples delivered",
    "batches": "Batches delivered",
    "bytes_in": "Bytes received from the store",
    "bytes_out": "Bytes of the batches delivered",
    "requests": "Requests sent to the store",
    "throttles": "Requests throttled by the store",
    "retries": "Requests sent again",
    "hedges": "Requests sent a second time because the first was late",
    "hedges_won": "Second requests that were answered first",
    "errors": "Other errors returned by the store",
    "skipped": "Bad samples left out",
    "substituted": "Bad samples replaced by others",
    "cache_hits": "Reads answered from the node's cache",
    "cache_misses": "Objects fetched into the node's cache",
    "cache_evictions": "Objects evicted from the node's cache",
    "cache_transcodes": "Objects that the node's cache has rewritten in planes",
    "pool_own_bytes": "Bytes read in a pool from this node's own files",
    "pool_engine_bytes": "Bytes read in a pool by its engine",
    "pool_bucket_bytes": "Bytes that a pool had lost, read refetched from the bucket",
    "pool_refills": "Lost objects that were put into the pool again",
}
"""Counters of a pass that are exported to Prometheus."""


def _exposition(rows: Mapping[str, Any]) -> str:
    """Format the values in the text format of https://prometheus.io/docs/instrumenting/exposition_formats/, version
    0.0.4.

    Every value is a gauge with the labels rank and epoch. Counters are not possible, because the values start at zero
    in each pass.
    """
    where = f'rank="{rows["rank"]}",epoch="{rows["epoch"]}"'
    lines = [
        "# HELP penstock_feed_seconds Wall time of the epoch's pass by class; the classes add up to it",
        "# TYPE penstock_feed_seconds gauge",
        *(
            f'penstock_feed_seconds{{{where},class="{name.removesuffix("_s")}"}} {float(rows[name])!r}'
            for name in CLASSES
        ),
    ]
    for name, text in _COUNTS.items():
        lines += [
            f"# HELP penstock_feed_{name} {text}",
            f"# TYPE penstock_feed_{name} gauge",
            f"penstock_feed_{name}{{{where}}} {rows[name]}",
        ]
    return "\n".join(lines) + "\n"


def make(measured: EpochMeasurements, facts: Mapping[str, Any]) -> Report:
    """Build the report of one pass. `facts` are added to the report unchanged."""
    timing, counters = measured.timing, measured.counters
    latency = timing.get("wait_first_byte_s", 0.0)
    backed_off, answered = counters.get("throttle_wait_s", 0.0), counters.get("first_byte_s", 0.0)
    throttle = latency * (backed_off / (backed_off + answered)) if backed_off > 0 else 0.0
    # A queued object waits for threads that decompress or decode, so divide the waiting time in proportion to the times
    # of decompression and decoding.
    busy_inflate, busy_decode = timing.get("busy_inflate_s", 0.0), timing.get("busy_decode_s", 0.0)
    queue, busy = timing.get("wait_queue_s", 0.0), busy_inflate + busy_decode
    inflates = busy_inflate / busy if busy > 0 else 0.0
    rows: dict[str, Any] = {
        "compute_s": measured.compute_s,
        "first_byte_s": latency - throttle,
        "transfer_s": timing.get("wait_transfer_s", 0.0),
        "throttle_s": throttle,
        "inflate_s": timing.get("wait_inflate_s", 0.0) + queue * inflates,
        "decode_s": timing.get("wait_decode_s", 0.0) + queue * (1 - inflates),
        "map_s": timing.get("wait_map_s", 0.0),
        "host_to_device_s": measured.host_to_device_s,
    }
    rows["overhead_s"] = max(0.0, measured.wall_s - sum(rows.values()))
    share = measured.wait_s / measured.wall_s if measured.wall_s > 0 else 0.0
    waits = {name: rows[name] for name in CLASSES if name != "compute_s"}
    limiting = "compute_s" if share < _LIMITED else max(waits, key=lambda name: waits[name])
    reason = f"{rows[limiting]:.2f} s of {measured.wall_s:.2f} s went to {_LIMIT_TEXTS[limiting]}"
    return Report(
        {
            "epoch": measured.epoch,
            "complete": measured.complete,
            "samples": measured.samples,
            "batches": measured.batches,
            "samples_per_s": measured.samples / measured.wall_s if measured.wall_s > 0 else 0.0,
            "first_batch_s": measured.first_batch_s,
            "wall_s": measured.wall_s,
            "wait_s": measured.wait_s,
            "wait_share": share,
            **rows,
            "busy_inflate_s": busy_inflate,
            "busy_decode_s": busy_decode,
            "busy_first_byte_s": answered,
            "busy_transfer_s": counters.get("transfer_s", 0.0),
            "busy_throttle_s": backed_off,
            "bytes_in": int(counters.get("bytes_in", 0)),
            "bytes_out": measured.bytes_out,
            "requests": int(counters.get("requests", 0)),
            "throttles": int(counters.get("throttles", 0)),
            "retries": int(counters.get("retries", 0)),
            "hedges": int(counters.get("hedges", 0)),
            "hedges_won": int(counters.get("hedges_won", 0)),
            "errors": int(counters.get("errors", 0)),
            "cache_hits": int(counters.get("cache_hits", 0)),
            "cache_misses": int(counters.get("cache_misses", 0)),
            "cache_bypasses": int(counters.get("cache_bypasses", 0)),
            "cache_evictions": int(counters.get("cache_evictions", 0)),
            "cache_transcodes": int(counters.get("cache_transcodes", 0)),
            "cache_corrupt": int(counters.get("cache_corrupt", 0)),
            "cache_failures": int(counters.get("cache_failures", 0)),
            "cache_bytes": int(counters.get("cache_bytes", 0)),
            **{name: int(counters.get(name, 0)) for name in _POOL},
            "skipped": measured.error_counts[0],
            "substituted": measured.error_counts[1],
            "bad_samples": measured.error_counts[2],
            "limiting": limiting,
            "reason": reason,
            **facts,
        }
    )
