# SPDX-License-Identifier: Apache-2.0
"""The Hot tier as seen through the article's mount: the tier, with each reader limited to the rate in the study.

No limit of the store explains that rate, so it is not part of the tier. It is an observation in the tier book, and
applies only to this path.
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
    """`tier` with a connection limit at which one reader needs as long for a whole file as in the study.

    Args:
        tier: A tier with the observation `fuse-reader-bytes`. The observation includes latency. The latency of
            one request is subtracted, because the tier adds its own.
        file_bytes: Size of the files in the study.
    Raises:
        ConfigError: The tier lacks that observation.
    """
    seen = tier.observation(OBSERVED)
    if seen is None:
        raise ConfigError(f"tier {tier.label} has no observation `{OBSERVED}`", where="tier")
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
    """A tier book with one tier, in the emulator's format."""
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
    # JSON's strings and numbers are valid TOML, and no value here is null.
    return [f"{name} = {json.dumps(value)}" for name, value in row.items() if value is not None]
