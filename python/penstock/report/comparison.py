# SPDX-License-Identifier: Apache-2.0
"""Schema of a comparison of paths: the JSON document that `penstock demo` writes, and from which reports are made.

Old documents must stay readable. Therefore, fields can only be added, and each new field needs a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.atomic_file import atomic_file
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
    """Prediction of the step model for the published job over one path."""

    epoch_min: float
    run_h: float
    stage_h: float
    usd: float
    samples_per_s: float
    limited_by: str
    terms_s: dict[str, float]

    @property
    def total_h(self) -> float:
        """Billed hours."""
        return self.run_h + self.stage_h


class PublishedFacts(msgspec.Struct, frozen=True):
    """Published results of one path, as printed texts and as numbers (`…_value`)."""

    path: str
    epoch_min: str
    run_h: str
    usd: str
    run_h_value: float
    usd_value: float


class PathFacts(msgspec.Struct, frozen=True):
    """Measurements of one path. Times in seconds, sizes in bytes.

    Attributes:
        step_parts_s: Mean seconds per step of each part; their sum is the mean duration of a step.
        limited_by: Bottleneck of the rehearsal, as text.
        model_samples_per_s: Prediction of the step model for the rehearsal, computed before the rehearsal ran.
        missed: Reason why the rehearsal differs from that prediction by more than 20 %; empty if it does not.
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
    """Results of the real training, which ran over every path. `identical`: the losses are equal on all paths."""

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
    """The scaled-down job that emulates the published job on one machine."""

    voxels: int
    samples: int
    distinct: int
    epochs: int
    batch: int
    step_s: float
    sample_bytes: int
    stored_bytes: float


class TierRow(msgspec.Struct, frozen=True):
    """One limit of a tier: the value that its source states, and the scaled value in the rehearsal."""

    tier: str
    limit: str
    scope: str
    stated: str
    rehearsed: str
    source: str
    as_of: str


class PriceRow(msgspec.Struct, frozen=True):
    """One price that the predictions used."""

    item: str
    price: str
    region: str
    source: str
    as_of: str


class ScalePoint(msgspec.Struct, frozen=True):
    """Predicted samples/s of one path for one number of nodes."""

    path: str
    nodes: int
    samples_per_s: float
    limited_by: str


class Comparison(msgspec.Struct, frozen=True):
    """Content of the report. `invalid` is the reason why its rates are not valid measurements; empty if they are."""

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
        """Return the path with the lowest predicted cost."""
        return min(self.paths, key=lambda p: p.predicted.usd)

    def misses(self) -> list[str]:
        """Return one sentence for each path whose rehearsal differs from the model by more than 20 %."""
        return [
            f"{p.label}: {rate(p.samples_per_s)} samples/s, predicted {rate(p.model_samples_per_s)} ({p.missed})."
            for p in self.paths
            if p.missed
        ]


def read(file: Path) -> Comparison:
    """Read a comparison.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not a comparison, or this build does not support its schema version.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{file} does not exist", hint="run `penstock demo` to write one") from error
    try:
        version = msgspec.json.decode(text, type=dict).get("schema_version")
        if version != SCHEMA_VERSION:
            raise ConfigError(f"{file} has schema_version {version}, but this build reads {SCHEMA_VERSION}")
        return msgspec.json.decode(text, type=Comparison)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is not a valid comparison: {error}") from error


def write(facts: Comparison, file: Path) -> None:
    """Write a comparison atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as out:
        out.write(msgspec.json.format(msgspec.json.encode(facts), indent=1))
