# SPDX-License-Identifier: Apache-2.0
"""Tier book: limits of stores, indexed by name and year. Each number has a source. Does not enforce the limits."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = ["Limit", "Number", "Observation", "Throttle", "Tier", "TierLatency", "find", "load"]

Confidence = Literal["published", "derived", "unverified", "ours", "measured"]
_UNITS = {"bytes": "bytes/s", "requests": "requests/s"}


class _Sourced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`uncertainty` is half the width of a measured number's 95 % interval, as a share of the number."""

    source: str
    as_of: str
    confidence: Confidence
    note: str = ""
    uncertainty: float | None = None

    def __post_init__(self) -> None:
        if not self.source.strip() or not self.as_of.strip():
            raise ValueError("a number has no source or date")
        if self.uncertainty is not None and not 0 <= self.uncertainty < float("inf"):
            raise ValueError(f"uncertainty {self.uncertainty} is negative or infinite")


def _positive(value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"numbers must be finite and above 0 (got {value})")


class Limit(_Sourced, frozen=True, kw_only=True):
    """A rate limit of `value` bytes/s or requests/s, shared by all requests within `scope`."""

    what: Literal["read-bytes", "write-bytes", "read-requests", "write-requests", "requests"]
    scope: Literal["account", "bucket", "prefix", "connection"]
    value: float
    unit: Literal["bytes/s", "requests/s"]

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self.value)
        if self.unit != _UNITS[self.what.rpartition("-")[2]]:
            raise ValueError(f"unit `{self.unit}` is not a unit of {self.what}")


class TierLatency(_Sourced, frozen=True, kw_only=True):
    """Time to first byte, in milliseconds: a lognormal distribution, given by its median and 99th percentile.

    If the tier has a separate tail, `tail_share` is the share of requests in the tail, and `tail_ms` is their time.
    """

    what: Literal["read", "write"]
    p50_ms: float
    p99_ms: float
    tail_share: float = 0.0
    tail_ms: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self.p50_ms)
        if not self.p50_ms <= self.p99_ms < float("inf"):
            raise ValueError(f"p99_ms {self.p99_ms} is below p50_ms {self.p50_ms}")
        if not (0 <= self.tail_share <= 1 and 0 <= self.tail_ms < float("inf")):
            raise ValueError(
                f"tail_share {self.tail_share} is not between 0 and 1, or tail_ms {self.tail_ms} is negative or infinite"
            )


class Number(_Sourced, frozen=True, kw_only=True):
    """A time in seconds: the maximum delay of queued bytes, or the size of a request burst (in seconds at the tier's
    rate).
    """

    value: float
    unit: Literal["s"]

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self.value)


class Observation(_Sourced, frozen=True, kw_only=True):
    """A study's measurement through its own path, such as a mount. An observation is not a limit of the store, and is
    never enforced.
    """

    what: str
    scope: str
    value: float
    unit: str


class Throttle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the response to a throttled request (503)."""

    message: str = "Please reduce your request rate."
    retry_after_s: int | None = None


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A store's entry in the book."""

    name: str
    year: int
    title: str
    limits: tuple[Limit, ...] = msgspec.field(default=(), name="limit")
    latency: tuple[TierLatency, ...] = ()
    queue: Number | None = None
    burst: Number | None = None
    throttle: Throttle = msgspec.field(default_factory=Throttle)
    observed: tuple[Observation, ...] = ()

    @property
    def label(self) -> str:
        """Name with year, such as `azure-hot@2021`."""
        return f"{self.name}@{self.year}"

    def rate(self, what: str, scope: str) -> float | None:
        """Return the limit per second on `what` within `scope`, before scaling by the factor F. None if the tier has no
        such limit.
        """
        return next((limit.value for limit in self.limits if (limit.what, limit.scope) == (what, scope)), None)

    def first_byte_s(self, what: str = "read") -> float:
        """Return the median time to first byte in seconds; 0 if the tier has no latency."""
        return next((one.p50_ms / 1000 for one in self.latency if one.what == what), 0.0)

    def observation(self, what: str) -> Observation | None:
        """Return a study's measurement with this name; None if the tier does not have it."""
        return next((one for one in self.observed if one.what == what), None)


class _Book(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    tier: tuple[Tier, ...]


def load(path: str | Path | None = None) -> dict[str, Tier]:
    """Load all tiers. The keys are `name@year`, and for the latest year also `name`.

    Args:
        path: Path of a tier book; by default the bundled one.
    Raises:
        ConfigError: The file cannot be read, or breaks the book's rules.
    """
    place = "the bundled tier book" if path is None else str(path)
    try:
        if path is None:
            raw = resources.files("penstock").joinpath("tiers.toml").read_bytes()
        else:
            raw = Path(path).read_bytes()
        book = msgspec.toml.decode(raw, type=_Book)
    except OSError as error:
        raise ConfigError(f"tier book {place} cannot be read: {error.strerror}", where=place) from error
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"tier book {place}: {error}", where=place) from error
    tiers: dict[str, Tier] = {}
    for tier in book.tier:
        if tier.label in tiers:
            raise ConfigError(f"tier book {place}: {tier.label} occurs twice", where=place)
        tiers[tier.label] = tier
    for tier in book.tier:
        latest = tiers.get(tier.name)
        if latest is None or latest.year < tier.year:
            tiers[tier.name] = tier
    return tiers


def find(name: str, path: str | Path | None = None) -> Tier:
    """Return the tier with this name, which may contain the year. `FILE#NAME` is a tier in another tier book, such as
    the card of a probe.

    Raises:
        ConfigError: The tier is unknown; the error lists the known tiers.
    """
    if path is None and "#" in name:
        path, _, name = name.rpartition("#")
    tiers = load(path)
    if name not in tiers:
        raise ConfigError(f"tier: `{name}` is not one of {', '.join(sorted(tiers))}", where="tier")
    return tiers[name]
