# SPDX-License-Identifier: Apache-2.0
"""Manifest of a written dataset: its objects with record counts and checksums, the default fields and the statistics.

The manifest is written last, so a dataset with a manifest is complete.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.errors import Changed
from penstock.feed.fields import TensorSpec, to_json
from penstock.writer.destination import OWN
from penstock.writer.journal import MANIFEST
from penstock.writer.settings import shard_names

if TYPE_CHECKING:
    from penstock.feed.fields import FieldSpec
    from penstock.writer.destination import Destination
    from penstock.writer.journal import ShardRecord
    from penstock.writer.values import Field

__all__ = ["LEFT_OUT", "write_manifest"]

LEFT_OUT = "its arrays differ in more than their first dimension"
"""Reason why a loader cannot read a stored field."""

_OFFSETS = f"{OWN}/records-0-of-1.bin"


def write_manifest(
    at: Destination,
    settings: dict[str, Any],
    shards: list[ShardRecord],
    specs: dict[str, FieldSpec],
    fields: list[Field],
) -> None:
    """Check that all shards exist, and write the manifest and the log of record offsets.

    Raises:
        Changed: A shard is missing, or its size has changed since it was written.
    """
    known = {shard.name: shard for shard in shards}
    listed = at.listed()
    # Delete the remaining shards of an earlier attempt that had more samples. Keep all other objects, because another
    # program may have written them during this write.
    pattern = shard_names(settings["name"])
    at.delete(name for name in listed if pattern.fullmatch(name) and name not in known)
    for shard in shards:
        if listed.get(shard.name) != shard.bytes:
            raise Changed(
                f"{at.url}{shard.name} has {listed.get(shard.name, 0):,} bytes, but {shard.bytes:,} were written",
                where=f"{at.url}{shard.name}",
                hint="run the same write again: it writes the missing shards",
            )
    if at.path is not None:
        offsets = b"".join(_native.record_offsets(at.path / shard.name, shard.name) for shard in shards)
        if offsets:
            at.put(_OFFSETS, offsets)
    document = json.loads(_native.Source.open(at.url, None, dict(env.read()), accepts_incomplete=True).manifest())
    objects = [entry for entry in document.pop("objects") if entry.get("key") in known]
    for entry in objects:
        shard = known[entry["key"]]
        entry["records"] = shard.samples
        digest = f"crc32c:{shard.crc32c}"
        entry["digests"] = sorted({*entry.get("digests", ()), digest})
    document["fields"] = json.loads(to_json(specs.items()))
    # The fields of these values are ragged, because some samples lack the value.
    numbers = [
        field.name
        for field in fields
        if field.is_absent and isinstance(field.spec, TensorSpec) and field.spec.shape == ()
    ]
    samples = sum(shard.samples for shard in shards)
    left_out = {field.name: LEFT_OUT for field in fields if field.name not in specs}
    document["written"] = {"settings": settings, "samples": samples, "numbers": numbers, "left_out": left_out}
    document["statistics"] = {field.name: _merged(shards, number) for number, field in enumerate(fields)}
    head = json.dumps(document)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in objects)
    at.put(MANIFEST, f'{head[:-1]},"objects":[\n{lines}\n]}}\n'.encode())


def _merged(shards: list[ShardRecord], field: int) -> dict[str, Any]:
    """Return the statistics of a field over all shards: first of the sizes in bytes, then of the values."""
    sizes = _merge([shard.statistics[field][0] for shard in shards])
    values = _merge([shard.statistics[field][1] for shard in shards])
    return {"bytes": sizes} | ({"values": values} if values["count"] or values["nan"] else {})


def _merge(parts: list[list[float | None]]) -> dict[str, Any]:
    count, nan = (int(sum(part[at] or 0 for part in parts)) for at in (0, 1))
    least = [part[2] for part in parts if part[2] is not None]
    most = [part[3] for part in parts if part[3] is not None]
    is_finite = all(part[4] is not None for part in parts)
    total = math.fsum(part[4] or 0.0 for part in parts)
    return {
        "count": count,
        "nan": nan,
        "min": min(least, default=None),
        "max": max(most, default=None),
        "mean": total / count if count and is_finite else None,
    }
