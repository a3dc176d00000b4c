# SPDX-License-Identifier: Apache-2.0
"""Mixtures: combine several datasets into one, in proportion to weights. Each dataset keeps its own order.

Owns the weights, their schedule and the length of a mixture's epoch. For each position of the mixture, the core
computes the dataset and the position in this dataset with a formula. No random numbers are drawn, so the global cursor
is the only state.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import ConfigError
from penstock.feed import defaulted_columns
from penstock.feed.dataset import Dataset
from penstock.feed.dataset_base import DatasetBase
from penstock.feed.fields import SOURCE, tensor
from penstock.feed.number_arguments import as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import NoReturn

    from penstock.feed.node_cache import NodeCache

__all__ = ["Mixture", "mix"]

_SCALE = 2**32
"""Weights are rounded to multiples of about 2^-32. Common ratios are therefore exact, and the result is the same on
every machine.
"""


def _only_of_parts(name: str) -> Callable[..., NoReturn]:
    def method(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError(
            f"{name}: not supported by a mixture, only by its parts",
            where=name,
            hint=f"call it on the parts before mixing: mix({{a.{name}(...): 1, b.{name}(...): 1}})",
        )

    return method


@dataclass(frozen=True, slots=True, repr=False)
class Mixture(DatasetBase):
    """Several datasets combined into one. Immutable; a `Loader` accepts it like a `Dataset`."""

    parts: tuple[tuple[Dataset | Mixture, int], ...] = ()
    requested_samples: int | None = None
    later_weights: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Later weights: (first position at which they apply, weight of each part)."""
    given_names: tuple[str, ...] | None = None
    has_source: bool = False

    fields, schema, shuffle, patches, select, filter, resample, local, cache = map(
        _only_of_parts,
        ("fields", "schema", "shuffle", "patches", "select", "filter", "resample", "local", "cache"),
    )

    @property
    def specs(self) -> tuple[tuple[str, Any], ...]:
        """Fields of the samples, which are the same in all parts."""
        return self.parts[0][0].specs

    def batch_fields(self) -> dict[str, Any]:
        """Return the fields of a batch, which are the same in all parts. If no fields are set, these are the first
        part's default fields. With `source=True`, the field `source` is added.
        """
        defaulted_columns.refuse_unknown(list(self.leaves()))
        fields = self.parts[0][0].batch_fields()
        if not self.has_source:
            return fields
        if SOURCE in fields:
            raise ConfigError(
                "fields: the name `source` is reserved for the number of a sample's part in this mixture",
                where="fields",
                hint='give the field another name: .fields(origin=....of("source"))',
            )
        return {**fields, SOURCE: tensor("int32", ())}

    def leaves(self) -> Iterator[Dataset]:
        """Return all datasets of the mixture, including those of nested mixtures, in the order of the sampler."""
        for part, _ in self.parts:
            yield from (part,) if isinstance(part, Dataset) else part.leaves()

    @property
    def weights(self) -> tuple[float, ...]:
        """Each part's share of the samples at the start of the first epoch."""
        return self.weights_at(0)

    def weights_at(self, position: int) -> tuple[float, ...]:
        """Return each part's share of the samples at a position, counted over all epochs."""
        weights = tuple(weight for _, weight in self.parts)
        for start, later in self.later_weights:
            weights = later if start <= position else weights
        total = sum(weights)
        return tuple(weight / total for weight in weights)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts; by default their URLs. Number i in the field `source` means `names[i]`."""
        if self.given_names is not None:
            return self.given_names
        return tuple(part.url if isinstance(part, Dataset) else " + ".join(part.names) for part, _ in self.parts)

    @property
    def source_numbers(self) -> list[int] | None:
        """For each dataset of the sampler, the number of its part; None without the field `source`."""
        if not self.has_source:
            return None
        return [number for number, (part, _) in enumerate(self.parts) for _ in part.course().sources]

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
        parts: list[Any] = [[part.identity(), weight] for part, weight in self.parts]
        parts += self.later_weights
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def caches(self) -> list[NodeCache | None]:
        """Return the node cache of each dataset in the mixture."""
        return [cache for part, _ in self.parts for cache in part.caches()]

    def _base(self) -> _native.Sampler:
        samples = (
            sum(part.samples for part, _ in self.parts) if self.requested_samples is None else self.requested_samples
        )
        schedule = [(0, [weight for _, weight in self.parts]), *self.later_weights]
        return _native.Sampler.mix([part.course() for part, _ in self.parts], schedule, samples)

    def _gets(self, batch: float, world: int) -> float:
        starts = [0, *(start for start, _ in self.later_weights)]
        return max(
            sum(
                part.expected_gets(batch * share, world)
                for (part, _), share in zip(self.parts, self.weights_at(start), strict=True)
            )
            for start in starts
        )

    def __repr__(self) -> str:
        parts = ", ".join(f"{share:.3g}: {part!r}" for (part, _), share in zip(self.parts, self.weights, strict=True))
        changes = "".join(f", other weights from position {start:,}" for start, _ in self.later_weights)
        return f"Mixture({parts}{changes}{self._steps_repr()})"


def mix(
    parts: Mapping[Dataset | Mixture, float] | Iterable[Dataset | Mixture | tuple[Dataset | Mixture, float]],
    *,
    samples: int | None = None,
    schedule: Iterable[tuple[int, Mapping[Dataset | Mixture, float] | Sequence[float]]] | None = None,
    temperature: float | None = None,
    source: bool = False,
    names: Sequence[str] | None = None,
) -> Mixture:
    """Combine several datasets into one. `mix({a: 0.7, b: 0.3})` takes 7 samples of `a` for every 3 samples of `b`,
    evenly spread.

    Each part keeps its own order (seed, window, shards). All samples of a part occur once before one of them repeats,
    even if this takes several epochs of the mixture. The weights are in samples, not bytes, and need not sum to 1.

    Args:
        parts: Datasets with the same fields, and their weights. The order of this mapping affects the sample order. If
            only datasets are given (`mix([a, b], temperature=2)`), `temperature` or `schedule` sets the weights.
        samples: Number of samples in an epoch of the mixture; by default the total number of samples in all parts.
        schedule: Weights that apply from later positions on: `[(100_000, {a: 0.5, b: 0.5})]`. Positions count the
            samples of the mixture over all its epochs. A part that is missing in a mapping has the weight 0. After a
            change of weights, each part continues at its own position.
        temperature: The weight of a part with n samples is n^(1 / temperature). With 1, weights are proportional to the
            numbers of samples; with a high temperature, weights are almost equal. With `temperature`, `mix` counts the
            records of all parts immediately.
        source: Add a field `source` to the batches: the number of each sample's part, int32. `Mixture.names` contains
            the names of the parts.
        names: Names of the parts; by default their URLs.
    Raises:
        ConfigError: The parts are empty, a weight is not above 0, or the parts' fields differ.
    """
    pairs = [_pair(item) for item in (parts.items() if isinstance(parts, Mapping) else parts)]
    if not pairs:
        raise ConfigError("mix: at least one dataset is required", where="mix")
    for part, weight in pairs:
        if not isinstance(part, DatasetBase):
            raise ConfigError(f"mix: every part must be a penstock.Dataset (got {type(part).__name__})", where="mix")
        if part.is_mapped:
            step = "decode" if part.decodes else "map" if part.map_steps else "tokenize" if part.tokenizing else "pack"
            raise ConfigError(
                f"mix: {step}() must come after mix()", where="mix", hint=f"write mix({{a: 1, b: 1}}).{step}(fn)"
            )
        if weight is not None and (not math.isfinite(weight) or weight <= 0):
            raise ConfigError(f"mix: weights must be finite and above 0 (got {weight!r})", where="mix")
        if part.specs != pairs[0][0].specs:
            raise ConfigError(
                f"mix: the fields of {part!r} differ from those of {pairs[0][0]!r}",
                where="mix",
                hint="give every part the same .fields(...)",
            )
    if samples is not None:
        samples = as_int("samples", samples)
        if not 1 <= samples < 2**63:
            raise ConfigError(f"samples: {samples} is not a valid epoch length", where="samples")
    if names is not None and len(names) != len(pairs):
        raise ConfigError(f"names: {len(names)} names were given for {len(pairs)} parts", where="names")
    sources = [part for part, _ in pairs]
    first, *later = _schedule(pairs, list(schedule or ()), temperature)
    return Mixture(
        parts=tuple(zip(sources, first[1], strict=True)),
        requested_samples=samples,
        later_weights=tuple(later),
        given_names=None if names is None else tuple(map(str, names)),
        has_source=bool(source),
    )


def _pair(item: Any) -> tuple[Any, float | None]:
    if isinstance(item, DatasetBase):
        return item, None
    part, weight = item
    return part, weight


def _schedule(
    pairs: Sequence[tuple[Any, float | None]], schedule: list[Any], temperature: float | None
) -> list[tuple[int, tuple[int, ...]]]:
    """Return (first position, integer weights of all parts) for each stage of the schedule, from position 0 on."""
    sources, given = [part for part, _ in pairs], [weight for _, weight in pairs if weight is not None]
    if 0 < len(given) < len(pairs):
        raise ConfigError(f"mix: {len(given)} of {len(pairs)} parts have weights; give all or none", where="mix")
    stages: list[tuple[int, list[float]]] = []
    if temperature is not None:
        if given:
            raise ConfigError("temperature: cannot be combined with weights", where="temperature")
        if not math.isfinite(temperature) or temperature <= 0:
            raise ConfigError(f"temperature: must be above 0 (got {temperature!r})", where="temperature")
        counts = [part.samples for part in sources]
        most = max(counts)
        if min(counts) == 0:
            raise ConfigError("temperature: a dataset without samples cannot be mixed", where="temperature")
        stages.append((0, [(count / most) ** (1 / temperature) for count in counts]))
    elif given:
        stages.append((0, given))
    for start, weights in schedule:
        stages.append((as_int("schedule", start), _weights(weights, sources, start)))
    starts = [start for start, _ in stages]
    if not stages or starts[0] != 0:
        raise ConfigError("mix: give weights, a temperature, or a schedule that starts at position 0", where="mix")
    if any(later <= earlier for earlier, later in pairwise(starts)) or starts[-1] >= 2**63:
        raise ConfigError(f"schedule: the positions must increase (got {starts})", where="schedule")
    for number, part in enumerate(sources):
        if not any(weights[number] > 0 for _, weights in stages):
            raise ConfigError(f"mix: {part!r} has the weight 0 at all positions", where="mix")
    return [(start, _whole(weights)) for start, weights in stages]


def _weights(weights: Mapping[Any, float] | Sequence[float], sources: Sequence[Any], start: int) -> list[float]:
    """Return the weights of all parts in one entry of a schedule."""
    if isinstance(weights, Mapping):
        unknown = [part for part in weights if part not in sources]
        if unknown:
            raise ConfigError(f"schedule: {unknown[0]!r} is not a part of the mixture", where="schedule")
        weights = [weights.get(part, 0) for part in sources]
    if len(weights) != len(sources):
        raise ConfigError(
            f"schedule: {len(weights)} weights were given for {len(sources)} parts at position {start}",
            where="schedule",
        )
    bad = [weight for weight in weights if not math.isfinite(weight) or weight < 0]
    if bad:
        raise ConfigError(f"schedule: weights must be finite and at least 0 (got {bad[0]!r})", where="schedule")
    if not any(weights):
        raise ConfigError(f"schedule: all weights at position {start} are 0", where="schedule")
    return list(weights)


def _whole(weights: Sequence[float]) -> tuple[int, ...]:
    """Return integer weights that are proportional to `weights`. A weight above 0 becomes at least 1."""
    total = sum(Fraction(weight) for weight in weights)
    scaled = [max(1, round(Fraction(weight) / total * _SCALE)) if weight else 0 for weight in weights]
    divisor = math.gcd(*scaled)
    return tuple(weight // divisor for weight in scaled)
