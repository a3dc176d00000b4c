# SPDX-License-Identifier: Apache-2.0
"""`pack(count_tokens=True)`: cuts all documents of an epoch into windows that are the same on any number of ranks.

The tokens of all documents are counted once. The counts and the order of an epoch then determine the documents of each
window, so a rank reads only the documents of its own windows. The position in a state is a number of windows.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed import sample_value_cache
from penstock.feed.pack import TokenStream, check_identity, column_of
from penstock.feed.states import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from penstock import _native
    from penstock.feed.dataset import Dataset
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.epoch import BatchRun
    from penstock.feed.pack import PackStep
    from penstock.feed.sample_value_cache import NewLoader

    Ints = np.ndarray[Any, Any]

__all__ = ["CountedPackFeed", "CountedPacking"]


def _counts(part: Dataset, tokenizing: Any, step: PackStep, on_error: str, new_loader: NewLoader) -> Ints:
    """Return the number of tokens of each document of a dataset, in stored order, as uint32. The first call reads (and
    tokenizes) all documents.
    """
    name = step.fields[0]
    known = part.batch_fields()
    read = (name,) if tokenizing is None else (*tokenizing.fields, name)
    specs = tuple((each, known[each]) for each in dict.fromkeys(read) if each in known)
    whole = replace(part, seed=None, steps=(), map_steps=(), tokenizing=tokenizing, packing=None, specs=specs)
    described = [name, [(each, spec.to_dict()) for each, spec in specs], tokenizing and tokenizing.digest, on_error]
    compute = partial(_scan, whole, name, on_error, new_loader)
    return sample_value_cache.scanned(whole, f"pack `{name}`", f"tokens:{json.dumps(described)}", compute)  # type: ignore[no-any-return]


def _scan(dataset: Dataset, name: str, on_error: str, new_loader: NewLoader) -> Ints:
    import numpy as np

    def counts(batch: dict[str, Any]) -> Ints:
        return np.diff(column_of(batch, name, np).offsets)

    return sample_value_cache.in_batches(dataset, counts, on_error, new_loader)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of an epoch's documents in the stream of all tokens: number of tokens, first token and end of each
    document.
    """

    epoch: int
    counts: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, epoch: int, counts: Ints, step: PackStep) -> _Layout:
        import numpy as np

        if step.split:
            ends = np.cumsum(counts)
            return cls(epoch, counts, ends - counts, ends)
        starts, end = np.empty(len(counts), np.int64), 0
        for at, count in enumerate(counts.tolist()):
            room = step.length - end % step.length
            if count > room and room < step.length:
                end += room
            starts[at] = end
            end += count
        return cls(epoch, counts, starts, starts + counts)

    @property
    def tokens(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


@dataclass(frozen=True, slots=True)
class _RankPlan:
    """Batches of one rank after a cursor. Each list has one element per batch."""

    layout: _Layout
    cursors: list[int]
    """Cursor after each batch: number of windows, over all ranks, from the start of the epoch."""
    firsts: list[int]
    """First window of this rank in each batch."""
    rows: list[int]
    """Number of windows of this rank in each batch."""
    documents: list[tuple[int, int]]
    """Range (start, end) of the documents in this rank's windows of each batch."""
    positions: Ints
    """Positions of all documents to read, ascending and without repetition."""


class CountedPacking:
    """State and passes of a loader whose dataset is packed with counted tokens."""

    def __init__(
        self,
        dataset: DatasetBase,
        step: PackStep,
        *,
        global_batch: int,
        rank: int,
        world: int,
        tail: str,
        min_rows: int,
        on_error: str,
        new_loader: NewLoader,
    ) -> None:
        """`new_loader` creates the loader with which the tokens are counted."""
        reason = (
            "requires counted records, but the dataset was opened with indexed=False"
            if not dataset.indexed
            else "is not supported after map() or decode(), whose results may differ from pass to pass"
            if dataset.map_steps
            else 'is not supported with on_error="skip", which would move all later windows'
            if on_error == "skip"
            else None
        )
        if reason is not None:
            raise ConfigError(
                f"pack: count_tokens {reason}",
                where="pack",
                hint="leave out count_tokens: each rank then packs its own documents",
            )
        step.check_unpadded(dataset)
        self.dataset, self.step = dataset, step
        self.batch, self._rank, self._world = global_batch, rank, world
        self._is_full = tail == "drop"
        self._min_rows, self._on_error, self._new_loader = min_rows, on_error, new_loader
        # For each dataset, the number of tokens of each document in stored order; and one digest of all these numbers.
        self._known: tuple[list[Ints], str] | None = None
        self._layout: _Layout | None = None
        self._plan: tuple[tuple[int, int], _RankPlan] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Do not pickle the counts: the process that unpickles this object reads them from the cache.
        return {**self.__dict__, "_known": None, "_layout": None, "_plan": None}

    def _counted(self) -> tuple[list[Ints], str]:
        if self._known is None:
            parts, made = sample_value_cache.leaves(self.dataset), self.dataset.tokenizing
            found = [_counts(part, made, self.step, self._on_error, self._new_loader) for part in parts]
            digest = hashlib.blake2b(digest_size=8)
            for counts in found:
                digest.update(counts.data)
            self._known = found, digest.hexdigest()
        return self._known

    def layout(self, epoch: int) -> _Layout:
        """Return the positions of the documents of an epoch."""
        import numpy as np

        if self._layout is None or self._layout.epoch != epoch:
            counts = np.frombuffer(
                self.dataset.course().values(epoch, [known.data for known in self._counted()[0]]), np.uint32
            ).astype(np.int64)
            self._layout = _Layout.of(epoch, counts + self.step.added, self.step)
        return self._layout

    def _windows(self, epoch: int) -> int:
        """Return the number of windows of an epoch. With `tail="drop"`, an incomplete last window does not count."""
        tokens, length = self.layout(epoch).tokens, self.step.length
        return tokens // length if self._is_full else -(-tokens // length)

    def _left(self, epoch: int, cursor: int) -> int:
        """Return the number of batches of an epoch after a cursor."""
        full, left = divmod(max(self._windows(epoch) - cursor, 0), self.batch)
        return full + (not self._is_full and left >= self._min_rows)

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return self._left(epoch, 0)

    def is_spent(self, cursor: int, epoch: int) -> bool:
        """True if a pass at this cursor has delivered every batch of the epoch."""
        return cursor > 0 and self._left(epoch, cursor) == 0

    def rank_plan(self, epoch: int, cursor: int) -> _RankPlan:
        """Return the batches of this rank after a cursor."""
        import numpy as np

        if self._plan is not None and self._plan[0] == (epoch, cursor):
            return self._plan[1]
        layout, length = self.layout(epoch), self.step.length
        begins = cursor + self.batch * np.arange(self._left(epoch, cursor), dtype=np.int64)
        ends = np.minimum(begins + self.batch, self._windows(epoch))
        rows = ends - begins
        firsts = begins + rows * self._rank // self._world
        lasts = begins + rows * (self._rank + 1) // self._world
        low = np.searchsorted(layout.ends, firsts * length, "right")
        high = np.maximum(np.searchsorted(layout.starts, lasts * length, "left"), low)
        high = np.where(lasts > firsts, high, low)
        # Do not read a document again if this rank has read it for an earlier batch.
        unread = np.maximum(low, np.concatenate([[0], np.maximum.accumulate(high)[:-1]])) if len(low) else low
        sizes = np.maximum(high - unread, 0)
        positions = np.repeat(unread - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        plan = _RankPlan(
            layout,
            ends.tolist(),
            firsts.tolist(),
            (lasts - firsts).tolist(),
            list(zip(low.tolist(), high.tolist(), strict=True)),
            positions.astype(np.uint64),
        )
        self._plan = ((epoch, cursor), plan)
        return plan

    def run(self, start: Callable[[int], BatchRun], cursor: int, epoch: int) -> CountedPackRun:
        """Start a pass at a cursor."""
        plan = self.rank_plan(epoch, cursor)
        return CountedPackRun(self, plan, start(cursor) if len(plan.positions) else None)

    def identity(self) -> dict[str, Any]:
        """Return the values that must be equal in a state and in this loader."""
        return {**VERSIONS, **self.dataset.identity(), "packed": self.step.digest, "tokens": self._counted()[1]}

    def state(self, epoch: int, cursor: int) -> dict[str, Any]:
        """Return the state after `cursor` windows, as JSON under 1 KB that is identical on all ranks."""
        return {**self.identity(), "epoch": epoch, "cursor": cursor}

    def cursor(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and cursor of a state.

        Raises:
            ConfigError: The state belongs to another dataset or tokenizer, or to other settings of `pack`. The message
                contains the values of the state and of this loader.
        """
        check_identity(state, self.identity())
        epoch, cursor = state.get("epoch"), state.get("cursor")
        if not isinstance(epoch, int) or not 0 <= epoch < 2**63:
            raise ConfigError(f"state: epoch {epoch!r} is not valid", where="state")
        if not isinstance(cursor, int) or not 0 <= cursor <= -(-self.layout(epoch).tokens // self.step.length):
            raise ConfigError(f"state: cursor {cursor!r} is not within the windows of the epoch", where="state")
        return epoch, cursor


class CountedPackFeed:
    """Feed of the documents of one rank's windows. Has the methods of a native feed that a loader uses."""

    def __init__(self, packing: CountedPacking, make: Callable[[_native.Sampler], _native.Feed]) -> None:
        """`make(sampler)` creates a native feed of the samples of `sampler`, all of which this rank reads."""
        self._packing, self._make = packing, make
        self._feed: _native.Feed | None = None
        self._ended: Counter[str] = Counter()

    @property
    def threads(self) -> int:
        """Number of decoding threads."""
        return 0 if self._feed is None else self._feed.threads

    @property
    def memory_bytes(self) -> int:
        """Memory budget in bytes."""
        return 0 if self._feed is None else self._feed.memory_bytes

    def metrics(self) -> Mapping[str, float]:
        """Return the request counters of all passes."""
        total: Counter[str] = Counter(self._ended)
        if self._feed is not None:
            total.update(self._feed.metrics())
        return total

    def start(self, epoch: int, cursor: int) -> _native.Run:
        """Start reading the documents of the windows after a cursor."""
        if self._feed is not None:
            self._ended.update(self._feed.metrics())
        positions = self._packing.rank_plan(epoch, cursor).positions
        self._feed = self._make(self._packing.dataset.course().listed(positions.data))
        return self._feed.start(epoch, 0)


class CountedPackRun:
    """A run whose documents are packed into the windows of a plan. Has the same interface as the native run."""

    def __init__(self, packing: CountedPacking, plan: _RankPlan, run: BatchRun | None) -> None:
        self._packing, self._plan, self._run = packing, plan, run
        self._next = self._read = 0
        # Documents that were read and are still needed: their positions, and their fields.
        self._kept: deque[tuple[Ints, dict[str, Any]]] = deque()

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch of windows, or None after the last."""
        import numpy as np

        plan, step, number = self._plan, self._packing.step, self._next
        if number == len(plan.rows):
            return None
        first, end = plan.documents[number]
        while first < end and (not self._kept or self._kept[-1][0][-1] < end - 1):
            self._add()
        stream = TokenStream(step, has_source=self._packing.dataset.source_numbers is not None)
        begin = plan.firsts[number] * step.length
        for positions, tensors in self._kept:
            low, high = np.searchsorted(positions, (first, end)).tolist()
            if low < high:
                skip = begin - int(plan.layout.starts[first]) if positions[low] == first else 0
                stream.add(tensors, high, 0, low, max(skip, 0))
        rows, self._next = plan.rows[number], number + 1
        if stream.tokens < rows * step.length:
            stream.fill_window()
        while self._kept and self._next < len(plan.rows) and self._kept[0][0][-1] < plan.documents[self._next][0]:
            self._kept.popleft()
        return stream.take(rows), rows, plan.cursors[number]

    def _add(self) -> None:
        """Read more documents, and check that their numbers of tokens equal the counted numbers."""
        import numpy as np

        step, got = self._packing.step, None if self._run is None else self._run.next()
        if got is None:
            raise MapFailed(f"pack: the feed ended after {self._read:,} of {len(self._plan.positions):,} documents")
        tensors, rows, _ = got
        positions = self._plan.positions[self._read : self._read + rows].astype(np.int64)
        self._read += rows
        found = np.diff(column_of(tensors, step.fields[0], np).offsets)
        counted = self._plan.layout.counts[positions] - step.added
        if not np.array_equal(found, counted):
            at = int(np.argmax(found != counted))
            raise MapFailed(
                f"pack: document {positions[at]:,} of the epoch has {found[at]:,} tokens, but {counted[at]:,} were counted",
                where="pack",
                hint="use a tokenizer that returns the same tokens in every pass; if the tokenizer changed, give "
                "tokenize() another key",
            )
        self._kept.append((positions, tensors))

    def timing(self) -> dict[str, float]:
        """Return the times of the run."""
        return {} if self._run is None else self._run.timing()

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the numbers of skipped and substituted samples, and the first errors."""
        return (0, 0, []) if self._run is None else self._run.error_counts()

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        if self._next == len(self._plan.rows) or self._run is None:
            return True
        first, end = self._plan.documents[self._next]
        return first == end or (bool(self._kept) and bool(self._kept[-1][0][-1] >= end - 1))

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.close()
