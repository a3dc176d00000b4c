# SPDX-License-Identifier: Apache-2.0
"""Mixtures: combine several datasets into one, in proportion to weights. Each dataset keeps its own order.

Owns the weights and the length of a mixture's epoch. For each position, the core computes the source and the position
in that source in closed form. Nothing is drawn at random, so the global cursor is the only state.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import ConfigError
from penstock.feed.dataset_base import DatasetBase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.feed.dataset import Dataset
    from penstock.feed.node_cache import NodeCache

__all__ = ["Mixture", "mix"]

_SCALE = 2**32
"""Weights are rounded to multiples of about 2^-32. This is exact for common ratios, and the same on every machine."""


@dataclass(frozen=True, slots=True, repr=False)
class Mixture(DatasetBase):
    """Several datasets combined into one. Immutable; a `Loader` accepts it like a `Dataset`."""

    parts: tuple[tuple[Dataset | Mixture, int], ...] = ()
    requested_samples: int | None = None

    @property
    def specs(self) -> tuple[tuple[str, Any], ...]:
        """Fields of the samples, which are the same in all parts."""
        return self.parts[0][0].specs

    def batch_fields(self) -> dict[str, Any]:
        """Return the fields of a batch, which are the same in all parts. If none are set, these are the first part's
        default fields.
        """
        return self.parts[0][0].batch_fields()

    @property
    def weights(self) -> tuple[float, ...]:
        """Each part's share of the samples."""
        total = sum(weight for _, weight in self.parts)
        return tuple(weight / total for _, weight in self.parts)

    @property
    def seed(self) -> int | None:
        """Always None, because each part has its own seed."""
        return None

    @property
    def is_shuffled(self) -> bool:
        """True if the order of any part differs from epoch to epoch."""
        return any(part.is_shuffled for part, _ in self.parts)

    @property
    def differs_by_epoch(self) -> bool:
        """Always True, because the next epoch continues at the parts' positions."""
        return True

    @property
    def window(self) -> int:
        """Largest window of the parts, in objects."""
        return max(part.window for part, _ in self.parts)

    @property
    def rung(self) -> str:
        """Sources of the record counts of all parts."""
        return ", ".join(dict.fromkeys(part.rung for part, _ in self.parts))

    @property
    def fingerprint(self) -> str:
        """Hash of the parts' identities and their weights."""
        parts = [[part.identity(), weight] for part, weight in self.parts]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def caches(self) -> list[NodeCache | None]:
        """Return the node cache of each dataset in the mixture."""
        return [cache for part, _ in self.parts for cache in part.caches()]

    def _base(self) -> _native.Sampler:
        samples = (
            sum(part.samples for part, _ in self.parts) if self.requested_samples is None else self.requested_samples
        )
        return _native.Sampler.mix([part.course() for part, _ in self.parts], [w for _, w in self.parts], samples)

    def _gets(self, batch: float, world: int) -> float:
        return sum(
            part.expected_gets(batch * share, world) for (part, _), share in zip(self.parts, self.weights, strict=True)
        )

    def __repr__(self) -> str:
        parts = ", ".join(f"{share:.3g}: {part!r}" for (part, _), share in zip(self.parts, self.weights, strict=True))
        return f"Mixture({parts}{self._steps_repr()})"


def mix(
    parts: Mapping[Dataset | Mixture, float] | Iterable[tuple[Dataset | Mixture, float]],
    *,
    samples: int | None = None,
) -> Mixture:
    """Combine several datasets into one. `mix({a: 0.7, b: 0.3})` takes 7 samples of `a` for every 3 of `b`, evenly
    spread.

    Each part keeps its own order (seed, window, shards). All samples of a part occur once before any of them repeats,
    even if that crosses the boundaries of the mixture's epochs. The weights count samples and need not sum to 1.

    Args:
        parts: Datasets with the same fields, and their weights. The order of this mapping affects the sample order.
        samples: Number of samples in an epoch of the mixture; by default the sum over its parts.
    Raises:
        ConfigError: The parts are empty, a weight is not above 0, or the parts' fields differ.
    """
    pairs = list(parts.items() if isinstance(parts, Mapping) else parts)
    if not pairs:
        raise ConfigError("mix: at least one dataset is required", where="mix")
    for part, weight in pairs:
        if not isinstance(part, DatasetBase):
            raise ConfigError(f"mix: every part must be a penstock.Dataset (got {type(part).__name__})", where="mix")
        if part.map_steps:
            raise ConfigError("mix: map() must come after mix()", where="mix", hint="write mix({a: 1, b: 1}).map(fn)")
        if not math.isfinite(weight) or weight <= 0:
            raise ConfigError(f"mix: weights must be finite and above 0 (got {weight!r})", where="mix")
        if part.specs != pairs[0][0].specs:
            raise ConfigError(
                f"mix: the fields of {part!r} differ from those of {pairs[0][0]!r}",
                where="mix",
                hint="give every part the same .fields(...)",
            )
    if samples is not None:
        samples = operator.index(samples)
        if not 1 <= samples < 2**63:
            raise ConfigError(f"samples: {samples} is not a valid epoch length", where="samples")
    total = sum(Fraction(weight) for _, weight in pairs)
    scaled = [max(1, round(Fraction(weight) / total * _SCALE)) for _, weight in pairs]
    divisor = math.gcd(*scaled)
    whole = tuple((part, weight // divisor) for (part, _), weight in zip(pairs, scaled, strict=True))
    return Mixture(parts=whole, requested_samples=samples)
