# SPDX-License-Identifier: Apache-2.0
"""Derives a tier that emulates the published study's FUSE mount: each reader is limited to the observed rate.

No limit of the store explains the observed rate, so the tier itself does not contain it. The tier book contains it as
an observation, which applies only to this path.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError
from penstock.tiers import Limit

if TYPE_CHECKING:
    from penstock.tiers import Tier

__all__ = ["OBSERVED", "as_toml", "mounted"]

OBSERVED = "fuse-reader-bytes"


def mounted(tier: Tier, file_bytes: int) -> Tier:
    """Return `tier` with a connection limit, so that one reader reads a file in the same time as in the study.

    Args:
        tier: A tier with the observation `fuse-reader-bytes`. The observed time includes latency. The latency of
            one request is subtracted, because the tier adds its own latency.
        file_bytes: Size of the files in the study.
    Raises:
        ConfigError: The tier lacks that observation.
    """
    seen = tier.observation(OBSERVED)
    if seen is None:
        raise ConfigError(f"tier: {tier.label} does not contain the observation `{OBSERVED}`", where="tier")
    file_s = file_bytes / seen.value
    rate = file_bytes / (file_s - tier.first_byte_s())
    own = Limit(
        what="read-bytes",
        scope="connection",
        value=rate,
        unit="bytes/s",
        source=seen.source,
        as_of=seen.as_of,
        confidence=seen.confidence,
        note=seen.note,
    )
    return msgspec.structs.replace(
        tier, name=f"{tier.name}-mount", title=f"{tier.title}, through its mount", limits=(*tier.limits, own)
    )


def as_toml(tier: Tier) -> str:
    """Serialize one tier as a tier book, in the emulator's TOML format."""
    page: dict[str, Any] = msgspec.to_builtins(tier)
    lines = ["schema_version = 1", "[[tier]]"]
    tables: list[str] = []
    for name, value in page.items():
        if value is None:
            continue
        if isinstance(value, dict):
            tables += [f"[tier.{name}]", *_pairs(value)]
        elif isinstance(value, list | tuple):
            for row in value:
                tables += [f"[[tier.{name}]]", *_pairs(row)]
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _pairs(row: dict[str, Any]) -> list[str]:
    # JSON strings and numbers are valid TOML. TOML has no null, so null values are left out.
    return [f"{name} = {json.dumps(value)}" for name, value in row.items() if value is not None]
