# SPDX-License-Identifier: Apache-2.0
"""Selections: choose samples of a dataset before it is shuffled, by position (`select`) or by a function (`filter`).

Computes which stored samples remain after `take`, `shard`, `select` and `filter`. From one bit per stored sample, the
core computes the order of the remaining samples. `resample` draws from the remaining samples.
"""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from penstock import _native
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.feed import sample_value_cache
from penstock.feed.dataset_base import cut, stored_steps
from penstock.feed.fields import to_json
from penstock.feed.function_digest import function_digest
from penstock.feed.function_values import readable_values_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.feed.dataset import Dataset
    from penstock.feed.dataset_base import Step

__all__ = ["Filter", "Select", "add", "before", "check_indexed", "digest_of", "positions", "sampler"]

_LOG = logging.getLogger("penstock.feed")

Positions = Any
"""Stored positions of the chosen samples, in the order in which the samples are read: a `range` or an int64 array."""


def digest_of(*parts: bytes | memoryview) -> str:
    """Return a short digest of bytes, for the identity of a dataset."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def add(dataset: Dataset, name: str, payload: Any) -> Dataset:
    """Return `dataset` with another step in stored order. If the dataset is already shuffled, the step is inserted
    before the shuffle.

    Raises:
        ConfigError: Another step follows the shuffle or a `repeat`.
    """
    if dataset.map_steps:
        raise ConfigError(f"{name}: must come before map() and decode()", where=name)
    steps = dataset.steps
    names = [step for step, _, _ in steps]
    if "resample" in names:
        raise ConfigError(f"{name}: must come before resample()", where=name)
    marker: tuple[Step, ...] = ()
    if dataset.seed is not None:
        if steps and names[-1] != "shuffle":
            raise ConfigError(
                f"{name}: chooses samples in stored order, so it must come before {names[-1]}()",
                where=name,
                hint=f"write .{name}(...) before .shuffle(...)",
            )
        steps, marker = steps[:-1], (("shuffle", 0, 0),)
    elif "repeat" in names:
        raise ConfigError(f"{name}: must come before repeat()", where=name)
    return replace(dataset, steps=(*steps, (name, payload, 0), *marker))


def check_indexed(dataset: Dataset, name: str) -> None:
    """Raise ConfigError for an unindexed dataset."""
    if not dataset.indexed:
        raise ConfigError(
            f"{name}: requires sample positions, which an unindexed dataset does not have",
            where=name,
            hint="open the dataset without indexed=False",
        )


def before(dataset: Dataset) -> Dataset:
    """Return the dataset in stored order, with its selections so far."""
    steps = dataset.steps if dataset.seed is None else dataset.steps[: stored_steps(dataset.steps)]
    return replace(dataset, steps=steps, seed=None, requested_window=None)


class Select:
    """Positions for `select`: a slice, a boolean mask or integers. Immutable."""

    def __init__(self, index: Any) -> None:
        """Check `index`.

        Raises:
            ConfigError: `index` is neither a slice nor a one-dimensional array or sequence of booleans or integers.
        """
        if isinstance(index, slice):
            parts = (index.start, index.stop, index.step)
            self._index: Any = slice(*(None if part is None else operator.index(part) for part in parts))
            self._text = ":".join("" if part is None else str(operator.index(part)) for part in parts)
            self._count: int | None = None
            if self._index.step == 0:
                raise ConfigError("select: the step of a slice must not be 0", where="select")
            return
        require("select", "numpy")
        import numpy as np

        if isinstance(index, range):
            array = np.arange(index.start, index.stop, index.step)
        else:
            array = np.array(list(index) if isinstance(index, Iterator) else index)
        if array.size == 0 and array.dtype != bool:
            array = array.astype(np.int64)
        if array.ndim != 1 or array.dtype.kind not in "biu":
            raise ConfigError(
                "select: must be a slice, a boolean mask, or a one-dimensional array of integers "
                f"(got {array.dtype} of shape {array.shape})",
                where="select",
            )
        if array.dtype != bool:
            if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
                raise ConfigError(f"select: {array.max()} is not a valid position", where="select")
            array = array.astype(np.int64)
        array.setflags(write=False)
        self._index = array
        self._count = int(array.sum()) if array.dtype == bool else len(array)
        data = np.packbits(array) if array.dtype == bool else array
        self._text = f"{self._count}@{digest_of(str(len(array)).encode(), data.tobytes())}"

    def __repr__(self) -> str:
        return self._text if self._count is None else f"{self._count:,} samples"

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Select) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def of(self, chosen: Positions) -> Positions:
        """Return the selected positions out of `positions`.

        Raises:
            ConfigError: A mask has another length, or a position does not exist.
        """
        count = len(chosen)
        if isinstance(self._index, slice):
            return chosen[self._index]
        import numpy as np

        index = self._index
        if index.dtype == bool and len(index) != count:
            raise ConfigError(
                f"select: the mask has {len(index):,} values, but there are {count:,} samples", where="select"
            )
        if index.dtype != bool and len(index):
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= count:
                bad = low if low < 0 else high
                raise ConfigError(
                    f"select: position {bad:,} does not exist (the dataset has {count:,} samples)", where="select"
                )
        if isinstance(chosen, range):
            chosen = np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)
        return chosen[index]


@dataclass(slots=True)
class _Predicate:
    """Function that a scan calls for each sample. It returns whether the sample is kept."""

    penstock_step: ClassVar = "filter"
    """Name of the step in messages."""
    function: Callable[[dict[str, Any]], Any]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        keep = self.function(sample)
        if not isinstance(keep, bool | np.bool_) and getattr(keep, "shape", None) != ():
            raise TypeError(f"the function of filter() must return True or False (got {type(keep).__name__})")
        return {"value": np.bool_(keep)}


@dataclass(slots=True, eq=False)
class Filter:
    """Function for `filter`, and its result for all samples of `dataset` after it is computed."""

    dataset: Dataset
    function: Callable[[dict[str, Any]], Any]
    workers: int
    key: str | None
    skips: bool = False
    """Whether samples that cannot be read are left out. If False, such a sample is an error."""
    _kept: list[Any] = field(default_factory=list)

    def __reduce__(self) -> Any:
        # Pickle only the result: another process does not need the function, and some functions cannot be pickled.
        return (_restored, (self.dataset, self.kept().tobytes(), repr(self)))

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    def __str__(self) -> str:
        kept = self.kept()
        return f"{int(kept.sum())}@{digest_of(str(len(kept)).encode(), kept.tobytes())}"

    def kept(self) -> Any:
        """Return whether each sample is kept. The result is computed once.

        Raises:
            ConfigError: No sample is kept.
        """
        if not self._kept:
            key = self.key if self.key is not None else function_digest(self.function)
            if key is None:
                _LOG.warning(
                    "%s: filter: the result is not stored, because the function uses values or modules that cannot be "
                    "hashed. Set filter(key=...) to a text that identifies the function.",
                    self.dataset.url,
                )
            else:
                fields = to_json(self.dataset.batch_fields().items())
                key = f"filter:{key}:{fields}" + (":skip" if self.skips else "")
            predicate = _Predicate(self.function)
            if self.skips:
                compute = partial(readable_values_of, self.dataset, predicate)
            else:
                compute = partial(values_of, self.dataset, predicate, self.workers)
            with sample_value_cache.advice_about_damage("a filter", 'filter(fn, on_error="skip")'):
                kept = sample_value_cache.scanned(self.dataset, f"filter {self!r}", key, compute)
            if len(kept) and not kept.any():
                raise ConfigError(f"filter: {self!r} keeps none of the {len(kept):,} samples", where="filter")
            self._kept.append(kept)
        return self._kept[0]

    def of(self, chosen: Positions) -> Positions:
        """Return the positions out of `positions` whose samples are kept."""
        import numpy as np

        if isinstance(chosen, range):
            chosen = np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)
        return chosen[self.kept()]


def _restored(dataset: Dataset, kept: bytes, name: str) -> Filter:
    import numpy as np

    def function(_: dict[str, Any]) -> bool:
        raise AssertionError("the result of a filter is pickled with it")

    function.__qualname__ = name
    return Filter(dataset, function, 0, None, _kept=[np.frombuffer(kept, dtype=bool)])


def positions(steps: Sequence[Step], samples: int) -> Positions:
    """Return the stored positions that remain after steps in stored order."""
    chosen: Positions = range(samples)
    for name, a, b in steps:
        chosen = chosen[slice(*cut(len(chosen), name, a, b))] if name in ("take", "shard") else a.of(chosen)
    return chosen


def sampler(dataset: Dataset, steps: Sequence[Step]) -> _native.Sampler:
    """Return the sampler of a dataset after its steps in stored order.

    Raises:
        ConfigError: A shuffled selection contains a sample twice, or a step follows `resample`.
    """
    names = [name for name, _, _ in steps]
    if "resample" in names:
        if names[-1] != "resample":
            raise ConfigError(f"{names[-1]}: must come before resample() or after shuffle()", where=names[-1])
        return steps[-1][1].sampler(dataset)  # type: ignore[no-any-return]
    counted = dataset.counted()
    source, samples, seed, window = dataset.source, counted.samples, dataset.seed, dataset.window
    chosen = positions(steps, samples)
    if isinstance(chosen, range) and chosen.step == 1:
        return _native.Sampler.leaf(source, counted, seed=seed, window=window, select=(chosen.start, chosen.stop))
    import numpy as np

    chosen = np.asarray(chosen, dtype=np.int64)
    is_ascending = bool((np.diff(chosen) > 0).all())
    if not is_ascending and seed is None:
        stored = _native.Sampler.leaf(source, counted, seed=None, window=1)
        return stored.listed(chosen.astype(np.uint64).data)
    if not is_ascending and len(np.unique(chosen)) < len(chosen):
        twice = len(chosen) - len(np.unique(chosen))
        raise ConfigError(
            f"select: {twice:,} of {len(chosen):,} positions are repeated, which shuffle() does not support",
            where="select",
            hint="use resample(weights) with the number of repeats of each sample as its weight",
        )
    return _native.Sampler.subset(source, counted, packed(chosen, samples), seed=seed, window=window)


def packed(chosen: Positions, samples: int) -> Any:
    """Return one bit per stored sample, as an array of uint64."""
    import numpy as np

    mask = np.zeros(-(-samples // 64) * 64, dtype=bool)
    mask[chosen] = True
    return np.packbits(mask, bitorder="little").view(np.uint64)
