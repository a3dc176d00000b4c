# SPDX-License-Identifier: Apache-2.0
"""Batches by length: `buckets` of samples of similar length, or a `budget` of tokens per batch. Checks lengths and
rules.

The core plans the batches. The samples of a batch depend only on the order, the lengths and the rule, not on ranks.
"""

from __future__ import annotations

import hashlib
import json
import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import ConfigError
from penstock.feed import lengths as sample_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.feed.dataset_base import DatasetBase

__all__ = ["BatchBy", "BatchPlan", "Buckets", "Budget", "buckets", "budget"]

_MAX_RULE_CHARS = 160
"""Maximum number of characters of a rule that a state contains verbatim. Longer rules are hashed, so that a state stays
under 1 KB."""

_NO_LIMIT = 2**32


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A rule that was applied to a dataset: the native rule, and the text that identifies the rule in states."""

    native: _native.BatchBy
    identity: str


@dataclass(frozen=True, slots=True, eq=False)
class BatchBy:
    """Base class of `Buckets` and `Budget`. `length` is the name of a field, or an array of one length per sample."""

    length: Any
    window: int | None

    @property
    def advice(self) -> str:
        """Hint for an error: how to change the rule so that longer samples fit."""
        raise NotImplementedError

    @property
    def ranks_advice(self) -> str:
        """Hint for an error: how to change the rule so that each rank gets a sample of each batch."""
        raise NotImplementedError

    def rule(self, world: int) -> dict[str, Any]:
        """Return the rule in the form that the core reads, with batch sizes over all ranks."""
        raise NotImplementedError

    def max_rows(self, world: int) -> int:
        """Return the maximum number of samples in a batch over all ranks."""
        raise NotImplementedError

    def is_even(self, world: int) -> bool:
        """True if all ranks have the same number of samples in a full batch."""
        raise NotImplementedError

    def plan(self, dataset: DatasetBase, world: int, on_error: str) -> BatchPlan:
        """Apply the rule to the samples of a dataset. The first call can read all samples, to find their lengths.

        Raises:
            ConfigError: A length is invalid, or a sample fits no bucket or budget.
        """
        if not dataset.indexed:
            raise ConfigError(
                "batch_by: requires counted records, but the dataset was opened with indexed=False", where="batch_by"
            )
        arrays = sample_lengths.of(dataset, self.length, on_error)
        rule = self.rule(world)
        try:
            native = _native.BatchBy(dataset.course(), json.dumps(rule), arrays, window=self.window)
        except ConfigError as error:  # a sample is too long
            shorter = "filter(fn)" if isinstance(self.length, str) else "select(lengths <= longest)"
            error.add_note(f"{self.advice}, or leave out longer samples: ds.{shorter}")
            raise
        digest = hashlib.blake2b(digest_size=8)
        for array in arrays:
            digest.update(array.data)
        text = json.dumps({**rule, "window": native.window}, separators=(",", ":"))
        if len(text) > _MAX_RULE_CHARS:
            text = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return BatchPlan(native, f"{text} of lengths {digest.hexdigest()}")


@dataclass(frozen=True, slots=True, eq=False)
class Buckets(BatchBy):
    """Batches of a fixed number of samples per bucket. Created by `penstock.buckets`."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    is_global: bool

    @property
    def advice(self) -> str:
        name = "global_batch_sizes" if self.is_global else "batch_sizes"
        return f"raise the last boundary, or add one size to {name} for a bucket without a bound"

    @property
    def ranks_advice(self) -> str:
        return "raise each of global_batch_sizes to at least the number of ranks, or give batch_sizes (per rank)"

    def rule(self, world: int) -> dict[str, Any]:
        sizes = [size * (1 if self.is_global else world) for size in self.sizes]
        return {"buckets": {"boundaries": list(self.boundaries), "sizes": sizes}}

    def max_rows(self, world: int) -> int:
        return max(self.sizes) * (1 if self.is_global else world)

    def is_even(self, world: int) -> bool:
        return not self.is_global or all(size % world == 0 for size in self.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Budget(BatchBy):
    """Batches of as many samples as fit into a budget. Created by `penstock.budget`."""

    tokens: int
    max_samples: int | None
    is_global: bool

    @property
    def advice(self) -> str:
        return f"raise {'global_tokens' if self.is_global else 'tokens'} to at least the length of the longest sample"

    @property
    def ranks_advice(self) -> str:
        return "raise global_tokens to at least the length of the longest sample times the ranks, or give tokens (per rank)"

    def rule(self, world: int) -> dict[str, Any]:
        most = _NO_LIMIT if self.max_samples is None else self.max_samples
        return {"budget": {"tokens": self.tokens, "max_samples": most, "shares": 1 if self.is_global else world}}

    def max_rows(self, world: int) -> int:
        most = self.tokens if self.max_samples is None else min(self.tokens, self.max_samples)
        return most * (1 if self.is_global else world)

    def is_even(self, world: int) -> bool:
        return not self.is_global or world == 1


def _whole(name: str, value: Any, most: int = 2**31 - 1) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = -1
    if not 1 <= whole <= most:
        raise ConfigError(f"{name}: must be a whole number from 1 to {most:,} (got {value!r})", where="batch_by")
    return whole


def _all_whole(name: str, values: Any) -> tuple[int, ...]:
    if not hasattr(values, "__iter__"):
        raise ConfigError(f"{name}: must be a list of whole numbers (got {values!r})", where="batch_by")
    return tuple(_whole(name, value) for value in values)


def _one_of(per_rank: Any, all_ranks: Any, names: tuple[str, str]) -> tuple[Any, bool]:
    """Return the value that is given, and whether it is a total over all ranks."""
    if (per_rank is None) == (all_ranks is None):
        raise ConfigError(f"batch_by: give exactly one of {names[0]} (per rank) and {names[1]}", where="batch_by")
    return (per_rank, False) if all_ranks is None else (all_ranks, True)


def buckets(
    length: Any,
    boundaries: Sequence[int],
    batch_sizes: Sequence[int] | None = None,
    *,
    global_batch_sizes: Sequence[int] | None = None,
    window: int | None = None,
) -> Buckets:
    """Group samples of similar length into batches: `Loader(ds, batch_by=buckets("tokens", [128, 512], [64, 16]))`.

    Each sample is added to the bucket of its length, and a bucket with enough samples becomes the next batch, as in
    `tf.data`'s `bucket_by_sequence_length`. All ranks get parts of the same batch, so a step takes about the same time
    on all ranks.

    Args:
        length: Name of a field. The length is the number of items of a `ragged` or `padded` field, the number of bytes
            of a `raw` field, or the value of an integer field of shape (). Boxes and keypoints are counted as stored,
            before a crop removes some. With `decode` and `map`, the lengths are those of the stored field, not of a
            field that the function returns. Alternatively, give an array of one length per sample of the dataset, in
            stored order (before `shuffle`, `take` and so on). For a mixture, give a list of such arrays, one per
            dataset.
        boundaries: Largest length of each bucket, ascending. A sample whose length is equal to a boundary belongs to
            the bucket that ends there. (In `tf.data`, the sample belongs to the next bucket.)
        batch_sizes: Number of samples in this rank's batch, for each bucket. If there is one size more than boundaries,
            the last bucket has no bound. Otherwise, a sample above the last boundary is an error.
        global_batch_sizes: Alternatively, number of samples over all ranks, for each bucket. A state is then valid on
            any number of ranks.
        window: Number of samples that are planned together, by default 131,072 or four shuffle windows. Batches do not
            cross windows. At the end of a window, each bucket can have one smaller batch. The loader's `tail` applies
            to such batches.
    Raises:
        ConfigError: A number is invalid.
    """
    given, is_global = _one_of(batch_sizes, global_batch_sizes, ("batch_sizes", "global_batch_sizes"))
    bounds, sizes = _all_whole("boundaries", boundaries), _all_whole("batch_sizes", given)
    if any(a >= b for a, b in pairwise(bounds)):
        raise ConfigError(f"boundaries: must be ascending (got {list(bounds)})", where="batch_by")
    if not sizes or len(sizes) - len(bounds) not in (0, 1):
        raise ConfigError(
            f"batch_sizes: must contain one size per boundary or one more, and at least 1 size (got {len(sizes)} sizes "
            f"for {len(bounds)} boundaries)",
            where="batch_by",
        )
    return Buckets(length, None if window is None else _whole("window", window), bounds, sizes, is_global)


def budget(
    tokens: int | None = None,
    *,
    length: Any,
    global_tokens: int | None = None,
    max_samples: int | None = None,
    window: int | None = None,
) -> Budget:
    """Fill batches up to a budget: `Loader(ds, batch_by=budget(8192, length="tokens"))`.

    The size of each rank's padded batch (number of samples x longest sample) is at most `tokens`, as with fairseq's
    `--max-tokens`. The lengths in a batch differ by about a tenth at most, so there is little padding. All ranks get
    parts of the same batch, with equal numbers of samples.

    Args:
        tokens: Budget of this rank's batch, in the unit of `length` (for example tokens, pixels or frames).
        length: As in `buckets`.
        global_tokens: Alternatively, the budget over all ranks. A state is then valid on any number of ranks, and the
            numbers of samples of two ranks can differ by one.
        max_samples: Maximum number of samples in a batch: of one rank with `tokens`, of all ranks with `global_tokens`.
        window: As in `buckets`. At most one batch per window is not full.
    Raises:
        ConfigError: A number is invalid.
    """
    given, is_global = _one_of(tokens, global_tokens, ("tokens", "global_tokens"))
    most = None if max_samples is None else _whole("max_samples", max_samples)
    span = None if window is None else _whole("window", window)
    return Budget(length, span, _whole("tokens", given, 2**32 - 1), most, is_global)
