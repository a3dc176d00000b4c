# SPDX-License-Identifier: Apache-2.0
"""Schema of a comparison of paths: the document that a run writes and every page is made from.

Old documents must stay readable, so fields are only added, each with a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError, NotFound
from penstock.report.number_format import rate

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Comparison",
    "Learning",
    "PathFacts",
    "Predicted",
    "PriceRow",
    "PublishedFacts",
    "Rehearsal",
    "ScalePoint",
    "TierRow",
    "read",
    "write",
]

SCHEMA_VERSION = 1


class Predicted(msgspec.Struct, frozen=True):
    """The model's word on the published job over one path."""

    epoch_min: float
    run_h: float
    stage_h: float
    usd: float
    samples_per_s: float
    limited_by: str
    terms_s: dict[str, float]

    @property
    def total_h(self) -> float:
        """Hours that are paid."""
        return self.run_h + self.stage_h


class PublishedFacts(msgspec.Struct, frozen=True):
    """The published figure that stands beside, as printed and as a number."""

    path: str
    epoch_min: str
    run_h: str
    usd: str
    run_h_value: float
    usd_value: float


class PathFacts(msgspec.Struct, frozen=True):
    """One path, measured. Times in seconds, sizes in bytes.

    Attributes:
        step_parts_s: Mean seconds of a step by what they went to; sums to the mean step.
        limited_by: In words, from the rehearsal.
        model_samples_per_s: The step model's prediction of the rehearsal, made before it ran.
        missed: Why the rehearsal was more than 20 % away from that prediction; empty where it was not.
    """

    name: str
    label: str
    how: str
    losses: list[float]
    samples_per_s: float
    wait_share: float
    first_batch_s: float
    bytes: int
    throttles: int
    stage_s: float
    limited_by: str
    predicted: Predicted
    requests: int = 0
    step_parts_s: dict[str, float] = {}
    model_samples_per_s: float = 0.0
    missed: str = ""
    published: PublishedFacts | None = None
    run: str = ""


class Learning(msgspec.Struct, frozen=True):
    """The real training that every path carried."""

    mae: float
    mae_constant: float
    identical: bool
    digest: str
    samples: int
    held_out: int
    voxels: int
    epochs: int
    batch: int
    parameters: int = 0


class Rehearsal(msgspec.Struct, frozen=True):
    """How the laptop stood in for the cluster."""

    voxels: int
    samples: int
    distinct: int
    epochs: int
    batch: int
    step_s: float
    sample_bytes: int
    stored_bytes: float


class TierRow(msgspec.Struct, frozen=True):
    """One limit of a tier, as its source states it and as it was rehearsed."""

    tier: str
    limit: str
    scope: str
    stated: str
    rehearsed: str
    source: str
    as_of: str


class PriceRow(msgspec.Struct, frozen=True):
    """One price in use."""

    item: str
    price: str
    region: str
    source: str
    as_of: str


class ScalePoint(msgspec.Struct, frozen=True):
    """Predicted samples/s of one path on one number of nodes."""

    path: str
    nodes: int
    samples_per_s: float
    limited_by: str


class Comparison(msgspec.Struct, frozen=True):
    """Everything that the report shows. `invalid` says why its rates are no measurement, where they are none."""

    created: str
    scale: float
    headline: list[str]
    lead: str
    paths: list[PathFacts]
    learning: Learning
    rehearsal: Rehearsal
    tiers: list[TierRow]
    prices: list[PriceRow]
    prices_line: str
    notes: list[str]
    machine: dict[str, str]
    scaling: list[ScalePoint] = []
    seconds: float = 0.0
    invalid: str = ""
    schema_version: int = SCHEMA_VERSION

    def best(self) -> PathFacts:
        """The path of the lowest predicted cost."""
        return min(self.paths, key=lambda p: p.predicted.usd)

    def misses(self) -> list[str]:
        """A sentence for each path whose rehearsal was more than 20 % away from the model."""
        return [
            f"{p.label}: {rate(p.samples_per_s)} samples/s, predicted {rate(p.model_samples_per_s)} ({p.missed})."
            for p in self.paths
            if p.missed
        ]


def read(file: Path) -> Comparison:
    """Read a comparison.

    Raises:
        NotFound: There is no such file.
        ConfigError: It is not a comparison, or of a later version than this build reads.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{file} is not there", hint="`penstock demo` writes one") from error
    try:
        version = msgspec.json.decode(text, type=dict).get("schema_version")
        if version != SCHEMA_VERSION:
            raise ConfigError(f"{file} has schema_version {version}, this build reads {SCHEMA_VERSION}")
        return msgspec.json.decode(text, type=Comparison)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is no comparison: {error}") from error


def write(facts: Comparison, file: Path) -> None:
    """Write a comparison, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1))
    part.replace(file)
