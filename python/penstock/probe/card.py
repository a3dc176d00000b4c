# SPDX-License-Identifier: Apache-2.0
"""Card of a probe: what was measured, what could not be seen, and what is missing. Converts it to a tier book entry."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.machine_card import MachineCard  # noqa: TC001 - msgspec reads the annotations
from penstock.bench.results import finite, whole_file
from penstock.bench.rows import write_results
from penstock.errors import Corrupt, NotFound, SystemFault, redact
from penstock.probe.estimates import LatencyFit  # noqa: TC001 - msgspec reads the annotations
from penstock.tiers import Limit, Number, Observation, Tier, TierLatency

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.bench.results import Provenance
    from penstock.bench.rows import Row

__all__ = [
    "SCHEMA_VERSION",
    "Burst",
    "Card",
    "CpuRates",
    "FoundLimit",
    "PhaseLine",
    "read",
    "tier_name",
    "to_toml",
    "write",
]

SCHEMA_VERSION = 1


class FoundLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that the probe reached or, if it did not find the limit, the highest rate that it reached.

    Attributes:
        what, scope: As in `tiers.Limit`.
        value: Bytes or requests per second.
        uncertainty: Half the width of the 95 % interval, as a share of the value.
        is_limit: False if the probe, its machine or its network was the limit: the store allows at least this rate.
        throttled: Share of the attempts that the store refused (429, 503) while the limit was measured.
    """

    what: str
    scope: str
    value: float
    uncertainty: float
    is_limit: bool
    throttled: float = 0.0
    note: str = ""


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """Requests or bytes that passed above a limit before the limit applied.

    Attributes:
        error: Half the width of the 95 % interval, in the same units.
        regained: Units that passed again after a pause of `pause_s`; None if no pause was measured.
    """

    what: str
    units: float
    error: float
    pause_s: float | None = None
    regained: float | None = None


class PhaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """One phase. `latency_*` is the time of the successful attempt, `first_byte_*` until its first byte, in ms."""

    part: str
    operation: str
    concurrency: int
    size_bytes: int | None
    seconds: float
    requests_per_s: float | None
    bytes_per_s: float | None
    first_byte_p50_ms: float | None
    first_byte_p99_ms: float | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    throttled: float
    cpu: float | None


class CpuRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one core on the dataset's own objects, in decoded bytes per second, which is the unit in plan files.

    Attributes:
        inflate_bytes_per_s: Rate of inflating; None if the objects are not compressed.
        decode_bytes_per_s: Rate of checking and decoding records.
        samples_per_s: Samples per second of all `threads` threads together, read from memory.
    """

    objects: int
    stored_bytes: int
    decoded_bytes: int
    format: str
    threads: int
    samples_per_s: float | None
    inflate_bytes_per_s: float | None
    decode_bytes_per_s: float | None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a probe.

    Attributes:
        kind: `objects` or `disk`.
        spent: Seconds, requests, bytes, and USD as far as the prices are known.
        latency: Latencies of `read` (first byte of a small read), `write`, `list` and `head`.
        knee: Smallest measured concurrency that reaches 90 % of the highest rate, for `bytes` and `requests`.
        unseen: Properties that this probe cannot see, or did not see, one sentence each.
        missing: Parts that were not measured, with the reason. A card with missing parts is partial.
    """

    schema_version: int = SCHEMA_VERSION
    name: str
    kind: str
    url: str
    created: str
    machine: MachineCard
    version: str
    cache: str = ""
    spent: dict[str, Any] = {}
    prices: tuple[str, ...] = ()
    objects: dict[str, Any] = {}
    limits: tuple[FoundLimit, ...] = ()
    bursts: tuple[Burst, ...] = ()
    latency: dict[str, LatencyFit] = {}
    knee: dict[str, int] = {}
    rates: dict[str, float] = {}
    cpu: CpuRates | None = None
    step: dict[str, Any] = {}
    phases: tuple[PhaseLine, ...] = ()
    unseen: tuple[str, ...] = ()
    missing: dict[str, str] = {}
    interrupted: bool = False

    @property
    def is_partial(self) -> bool:
        return bool(self.missing) or self.interrupted

    def limit(self, what: str) -> FoundLimit | None:
        """The found limit, or the highest rate, of `read-bytes`, `read-requests`, `write-bytes` or `write-requests`. Of
        several limits, the limit with the widest scope is returned.
        """
        found = [one for one in self.limits if one.what == what]
        return max(found, key=lambda one: one.scope != "connection", default=None)

    def tier(self) -> Tier:
        """The card as an entry of a tier book, which `penstock emulate --tier FILE#NAME` serves."""
        host = f"{self.machine.cpu}, {self.machine.cores} cores"
        facts: dict[str, Any] = {
            "source": f"penstock probe {self.url}, from {host}",
            "as_of": self.created[:10],
            "confidence": "measured",
        }
        requests = [one for one in self.limits if one.is_limit and one.what.endswith("requests")]
        burst = next((one for one in self.bursts if one.what == "read-requests"), None)
        of_burst = next((one for one in requests if burst and one.what == burst.what), None)
        return Tier(
            name=self.name,
            year=int(self.created[:4]),
            title=f"Probe of {self.url} on {self.created[:10]}" + (" (partial)" if self.is_partial else ""),
            limits=tuple(
                Limit(
                    what=one.what,  # type: ignore[arg-type] # checked when the book is read
                    scope=one.scope,  # type: ignore[arg-type]
                    value=float(f"{one.value:.6g}"),
                    unit=_unit(one.what),  # type: ignore[arg-type]
                    uncertainty=round(one.uncertainty, 4),
                    note=one.note,
                    **facts,
                )
                for one in self.limits
                if one.is_limit
            ),
            latency=tuple(
                TierLatency(
                    what=what,  # type: ignore[arg-type]
                    p50_ms=float(f"{fit.p50_ms:.4g}"),
                    p99_ms=float(f"{max(fit.p50_ms, fit.p99_ms):.4g}"),
                    uncertainty=round(max(fit.p50_error, fit.p99_error), 4),
                    note=f"{fit.count:,} requests; distribution: {fit.shape}",
                    **facts,
                )
                for what, fit in self.latency.items()
                if what in ("read", "write")
            ),
            burst=None
            if burst is None or of_burst is None
            else Number(
                value=float(f"{burst.units / of_burst.value:.4g}"),
                unit="s",
                uncertainty=round(burst.error / burst.units, 4),
                **facts,
            ),
            observed=(
                *(
                    Observation(
                        what=f"{one.what}-reached",
                        scope="client",
                        value=float(f"{one.value:.6g}"),
                        unit=_unit(one.what),
                        uncertainty=round(one.uncertainty, 4),
                        note=one.note,
                        **facts,
                    )
                    for one in self.limits
                    if not one.is_limit
                ),
                *(
                    Observation(what=what, scope="client", value=float(f"{value:.6g}"), unit="1/s", **facts)
                    for what, value in self.rates.items()
                ),
            ),
        )


class _Head(msgspec.Struct, frozen=True):
    schema_version: int


def tier_name(url: str) -> str:
    """A name for the card of a URL: letters, digits and dashes of its host or bucket and the last part of its path."""
    shown = redact(url)  # the patterns of `redact` need the scheme, which the next line removes
    place = (shown.partition("://")[2] or shown).partition("?")[0]
    words = [word for word in re.split(r"[^A-Za-z0-9]+", place) if word]
    return "-".join(["probe", *words[:1], *words[1:][-1:]]).lower()


def _unit(what: str) -> str:
    """Unit of `read-bytes`, `write-requests` and so on."""
    return f"{what.rpartition('-')[2]}/s"


def _value(value: Any) -> str:
    # JSON strings and numbers are valid TOML, except that TOML forbids the raw DEL character, which JSON keeps.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_toml(tier: Tier) -> str:
    """Write a tier as a tier book with one entry, which `tiers.load` reads."""
    plain: dict[str, Any] = msgspec.to_builtins(tier)
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Tier book entry measured by `penstock probe`. Serve it with: penstock emulate DIR --tier THIS_FILE#"
        + tier.name,
        "schema_version = 1",
        "",
        "[[tier]]",
    ]

    def table(name: str, fields: dict[str, Any], *, many: bool) -> None:
        lines.extend(["", f"[[tier.{name}]]" if many else f"[tier.{name}]"])
        lines.extend(f"{key} = {_value(value)}" for key, value in fields.items() if value is not None and value != "")

    lines += [f"{name} = {_value(plain[name])}" for name in ("name", "year", "title")]
    for name in ("limit", "latency", "observed"):
        for fields in plain.get(name, ()):
            table(name, fields, many=True)
    for name in ("queue", "burst", "throttle"):
        if plain.get(name):
            table(name, plain[name], many=False)
    return "\n".join(lines) + "\n"


def write(folder: Path, card: Card, rows: Sequence[Row], *, spec: dict[str, Any], provenance: Provenance) -> Path:
    """Write `card.json`, `tier.toml` and the rows of the phases. Each file is written atomically.

    Returns:
        Path of `tier.toml`.
    Raises:
        Denied, NoSpace, SystemFault: The folder cannot be written.
    """
    plain = msgspec.to_builtins(card)
    finite(plain, "card")
    if rows:
        write_results(folder, rows, spec=spec, provenance=provenance)
    with whole_file(folder / "card.json") as out:
        out.write(msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n")
    with whole_file(folder / "tier.toml") as out:
        out.write(to_toml(card.tier()).encode())
    return folder / "tier.toml"


def read(path: Path) -> Card:
    """Read `card.json`, or the card in a folder.

    Raises:
        NotFound: The file does not exist.
        Corrupt: The file is not a card, or has a newer schema.
    """
    file = path / "card.json" if path.is_dir() else path
    try:
        raw = file.read_bytes()
        # Check the version first, because the remaining fields of a newer card can be incompatible.
        version = msgspec.json.decode(raw, type=_Head).schema_version
        card = msgspec.json.decode(raw, type=Card) if version <= SCHEMA_VERSION else None
    except FileNotFoundError:
        raise NotFound(f"{file} does not exist", where=str(file)) from None
    except OSError as error:
        raise SystemFault(f"{file} cannot be read: {error.strerror}", where=str(file)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{file} is not a card of a probe: {error}", where=str(file)) from None
    if card is None:
        raise Corrupt(
            f"{file} has schema version {version}, but this build reads up to {SCHEMA_VERSION}",
            where=str(file),
            hint="update penstock",
        )
    return card
