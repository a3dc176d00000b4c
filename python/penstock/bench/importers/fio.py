# SPDX-License-Identifier: Apache-2.0
"""Reader of fio's JSON results: one row per direction of each group of equal jobs. Does not judge the figures."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from penstock.bench.rows import End, Latency, Row
from penstock.errors import Corrupt

__all__ = ["looks_like", "parse"]

# Writes come first, because elbencho's CSV puts the readers of a mixed phase on the line of its writers.
_OPERATIONS = {"write": "WRITE", "read": "READ"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)i?b?", re.IGNORECASE)


def looks_like(text: str) -> bool:
    """Whether a text contains the output of fio --output-format=json; warnings may precede it."""
    return '"fio version"' in text[:20_000]


def _size(text: object) -> int | None:
    """Parse a size in fio's notation: `4k`, `1m`, `4096`, `4k-64k` (the first is used) or `4k,8k` (the first is for
    reads).
    """
    found = _SIZE.match(str(text or "").strip())
    if not found:
        return None
    return int(float(found[1][:18]) * 1024 ** " kmgtp".index(found[2].lower() or " "))


def _figure(table: dict[str, Any], name: str, place: str) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise Corrupt(f"{place}: `{name}` is {value!r}, not a finite number", where=place)
    return float(value)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def parse(text: str, place: str) -> list[Row]:
    """Parse fio's JSON into rows.

    Raises:
        Corrupt: The text is not JSON or not fio's output, or a figure is invalid.
    """
    try:
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{place} is not fio JSON output: {error}", where=place) from None
    document = _table(document)
    jobs = document.get("jobs", document.get("client_stats"))
    if not isinstance(jobs, list):
        raise Corrupt(f"{place} is not fio JSON output: the list of jobs is missing", where=place)
    common = _table(document.get("global options"))
    version = str(document.get("fio version", "fio"))
    # Jobs with equal settings ran in parallel. With --numjobs but without --group_reporting, fio lists each of these
    # jobs.
    groups: dict[str, list[dict[str, Any]]] = {}
    for job in map(_table, jobs):
        if job.get("jobname") == "All clients":
            continue
        like = json.dumps([job.get("jobname"), job.get("groupid"), job.get("job options")], sort_keys=True)
        groups.setdefault(like, []).append(job)
    return [
        row
        for group in groups.values()
        for row in _rows(
            group, common, f"{place}, job {group[0].get('jobname', '?')}", version, str(document.get("time", ""))
        )
    ]


def _rows(group: list[dict[str, Any]], common: dict[str, Any], place: str, version: str, created: str) -> list[Row]:
    options = {**common, **_table(group[0].get("job options"))}
    name = str(options.get("filename", ""))
    jobs = _size(options.get("numjobs")) or len(group)
    pattern = str(options.get("rw", options.get("readwrite", ""))).lower()
    failed = [job for job in group if job.get("error")]
    both = sum(any(_table(job.get(d)).get("total_ios") for job in group) for d in _OPERATIONS) == 2
    rows = []
    for direction, operation in _OPERATIONS.items():
        parts = [part for job in group if (part := _table(job.get(direction))).get("total_ios")]
        if not parts:
            continue
        time_s = max((_figure(p, "runtime", place) or 0.0) for p in parts) / 1000
        moved = sum(_figure(p, "io_bytes", place) or 0.0 for p in parts)
        done = sum(_figure(p, "total_ios", place) or 0.0 for p in parts)
        # Older fio versions write only KiB/s.
        rate = sum(_figure(p, "bw_bytes", place) or 1024 * (_figure(p, "bw", place) or 0.0) for p in parts)
        rows.append(
            Row(
                operation="RWMIX" if both and direction == "read" else operation,
                path_type="blockdev" if name.startswith("/dev/") else "file",
                threads=max(1, jobs),
                io_depth=max(1, _size(options.get("iodepth")) or 1),
                files=_size(options.get("nrfiles")),
                file_size_bytes=_size(options.get("size")),
                block_size_bytes=_size(options.get("bs", options.get("blocksize", 4096))),
                direct=str(options.get("direct", "0")) == "1",
                random=pattern.startswith("rand"),
                last=End(
                    time_s=time_s,
                    ios=done,
                    bytes=moved,
                    ios_per_s=sum(_figure(p, "iops", place) or 0.0 for p in parts),
                    bytes_per_s=rate,
                ),
                io_latency=_latency(parts, place),
                created=created,
                label=str(group[0].get("jobname", "")),
                source=version,
                invalid=(f"fio ended with error {failed[0]['error']}",) if failed else (),
                raw={"ioengine": str(options["ioengine"])} if "ioengine" in options else {},
            )
        )
    return rows


def _latency(parts: list[dict[str, Any]], place: str) -> Latency | None:
    """Latency of all jobs; the mean is weighted by the number of I/Os. Has percentiles only for a single job, because
    percentiles of several jobs cannot be merged.
    """
    tables = [t for p in parts if (t := _table(p.get("lat_ns")) or _table(p.get("clat_ns")))]
    ios = [_figure(p, "total_ios", place) or 0.0 for p in parts]
    means = [_figure(t, "mean", place) for t in tables]
    if len(tables) != len(parts) or not sum(ios) or any(m is None for m in means):
        return None
    least = [v for t in tables if (v := _figure(t, "min", place)) is not None]
    most = [v for t in tables if (v := _figure(t, "max", place)) is not None]
    shares = _table(_table(parts[0].get("clat_ns")).get("percentile")) if len(parts) == 1 else {}
    return Latency(
        min_us=min(least) / 1000 if least else None,
        mean_us=sum(m * n for m, n in zip(means, ios, strict=True) if m is not None) / sum(ios) / 1000,
        max_us=max(most) / 1000 if most else None,
        percentiles_us={
            f"{float(name):g}": value / 1000 for name in shares if (value := _figure(shares, name, place)) is not None
        },
    )
