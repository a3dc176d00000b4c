# SPDX-License-Identifier: Apache-2.0
"""`pack`: joins the documents of a feed and cuts them into windows of equal length.

Tokens are not counted in advance here (`counted_pack` does that). Each rank packs the documents of its own slices, in
order. The end of a window is known only after all earlier documents are read and tokenized. Therefore, a state contains
the position of one rank: a batch of the feed, a document of this batch, and a token of this document. The state is
valid only for the same rank and number of ranks.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed import states
from penstock.feed.batch_columns import Ragged, ragged
from penstock.feed.fields import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.unindexed import Unindexed

__all__ = ["PackRun", "PackStep", "Packing", "TokenStream", "check_identity", "column_of"]

VERSION = 1
"""Version of the state format and of the rule by which documents are packed."""

NOTICE = "packed: a position in this rank's own documents, valid only for the same rank and world"

_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

_TOKENS, _ROWS = 1 << 40, 1 << 24
"""Factors of a loader's cursor: ((feed cursor) x `_ROWS` + document) x `_TOKENS` + token."""


@dataclass(frozen=True, slots=True)
class PackStep:
    """Settings with which documents are packed into windows."""

    length: int
    fields: tuple[str, ...]
    bos: int | None
    eos: int | None
    pads: tuple[int, ...]
    dtype: str
    split: bool
    documents: int
    count_tokens: bool = False

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        for name, most in (("length", _TOKENS), ("documents", _ROWS)):
            value = getattr(self, name)
            if not 1 <= value < most:
                raise ConfigError(f"pack: {name} must be 1 to {most - 1:,} (got {value:,})", where="pack")
        if not self.fields or len(set(self.fields)) < len(self.fields):
            raise ConfigError(f"pack: fields must be one or more distinct names (got {self.fields})", where="pack")
        if self.dtype not in _DTYPES:
            raise ConfigError(f"pack: dtype `{self.dtype}` is not one of {', '.join(_DTYPES)}", where="pack")
        if len(self.fields) > 1 and (self.bos is not None or self.eos is not None):
            raise ConfigError(
                "pack: bos and eos cannot be added to several fields",
                where="pack",
                hint="add them in the function that makes the tokens",
            )
        if {"segment_ids", "position_ids", "mask"} & set(self.fields):
            raise ConfigError(
                "pack: fields cannot contain segment_ids, position_ids or mask, because pack adds these fields",
                where="pack",
            )

    def check_unpadded(self, dataset: DatasetBase) -> None:
        """Raise ConfigError if a stored field of documents is padded, because the padding would be packed as tokens."""
        made = dataset.tokenizing.into if dataset.tokenizing is not None else None
        for name, spec in dataset.specs:
            if name in self.fields and name != made and not dataset.map_steps and spec.unpadded != spec:
                raise ConfigError(
                    f"pack: `{name}` is padded ({spec}), so its padding would be packed as tokens",
                    where="pack",
                    hint=f"leave out .padded(...) in the field: .fields({name}=penstock.ragged(...))",
                )

    @property
    def digest(self) -> str:
        """Hash of all settings that determine which tokens a window contains."""
        values = astuple(self)[:-1]
        if self.count_tokens:
            values = (*astuple(replace(self, documents=1)), "counted")
        return hashlib.blake2b(repr((VERSION, *values)).encode(), digest_size=8).hexdigest()

    @property
    def added(self) -> int:
        """Number of tokens (bos and eos) that are added to each document."""
        return (self.bos is not None) + (self.eos is not None)


class Packing:
    """State and passes of a loader whose dataset is packed."""

    def __init__(
        self,
        dataset: DatasetBase,
        step: PackStep,
        unindexed: Unindexed | None,
        *,
        global_batch: int,
        rank: int,
        world: int,
        tail: str,
    ) -> None:
        if global_batch % world:
            raise ConfigError(
                f"global_batch: must be a multiple of the number of ranks for a packed dataset (got {global_batch} for "
                f"{world} ranks)",
                where="global_batch",
            )
        step.check_unpadded(dataset)
        self.dataset, self.step, self.rank, self.world, self.tail = dataset, step, rank, world, tail
        self.batch, self._unindexed = global_batch // world, unindexed

    def is_spent(self, cursor: int, epoch: int) -> bool:  # noqa: ARG002 - the same in every epoch
        """True if this rank has packed all its documents at this cursor."""
        place = cursor // (_ROWS * _TOKENS)
        return self.is_end(place) and cursor % (_ROWS * _TOKENS) == 0

    def is_end(self, place: int) -> bool:
        """True if this cursor of the feed is at the end of the epoch."""
        if self._unindexed is not None:
            return self._unindexed.is_spent(place)
        return place > 0 and self.dataset.is_counted and place >= self.dataset.samples

    def run(self, start: Any, cursor: int, epoch: int) -> PackRun:  # noqa: ARG002 - the feed knows it
        """Start a pass at a cursor. `start` starts a pass of the feed at a cursor of the feed."""
        place, row, token = cursor // (_ROWS * _TOKENS), cursor // _TOKENS % _ROWS, cursor % _TOKENS
        return PackRun(self, start(place), place, (row, token))

    def identity(self) -> dict[str, Any]:
        """Return the values that must be equal in a state and in this loader."""
        known = self.dataset.identity() if self._unindexed is None else self._unindexed.identity()
        return {**states.VERSIONS, **known, "packed": self.step.digest, "world": self.world, "rank": self.rank}

    def state(self, epoch: int, cursor: int) -> dict[str, Any]:
        """Return the state of this rank, as JSON under 1 KB. States of other ranks are different."""
        place, row, token = cursor // (_ROWS * _TOKENS), cursor // _TOKENS % _ROWS, cursor % _TOKENS
        return {**self.identity(), "epoch": epoch, "cursor": place, "document": row, "token": token, "promise": NOTICE}

    def cursor(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and cursor of a state.

        Raises:
            ConfigError: The state belongs to another rank, world, dataset or tokenizer, or to other settings of `pack`.
                The message contains the values of the state and of this loader.
        """
        check_identity(state, self.identity())
        limits = {"epoch": 2**63, "cursor": 2**64, "document": _ROWS, "token": _TOKENS}
        numbers = {}
        for name, most in limits.items():
            number = state.get(name)
            if not isinstance(number, int) or not 0 <= number < most:
                raise ConfigError(f"state: {name} {number!r} is not valid", where="state")
            numbers[name] = number
        return numbers["epoch"], (numbers["cursor"] * _ROWS + numbers["document"]) * _TOKENS + numbers["token"]


_ADVICE = {
    "rank": "resume every rank from its own state, on the same number of ranks",
    "world": "resume every rank from its own state, on the same number of ranks",
    "packed": "give pack() the same arguments as before",
    "tokens": "the tokenizer returns other tokens than before; use the same version of it",
}


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise ConfigError if a state belongs to other data or windows than `identity`. The message contains the value in
    the state and the value in `identity`.
    """
    if "packed" not in state:
        raise ConfigError("state: saved from a dataset that was not packed, but this dataset is packed", where="state")
    for name, value in identity.items():
        if state.get(name, 1 if name == "order" else None) != value:
            raise ConfigError(
                f"state: {name} is {state.get(name)!r}, but this loader's {name} is {value!r}",
                where="state",
                hint=_ADVICE.get(name) or states.advice(name),
            )


class PackRun:
    """A run whose documents are packed into windows. Has the same interface as the native run."""

    def __init__(self, packing: Packing, run: Any, place: int, skip: tuple[int, int]) -> None:
        self._packing, self._run, self._place = packing, run, place
        # Documents of the first feed batch to skip, and tokens of the next document to skip: earlier windows contain
        # them.
        self._skip = skip
        self._stream = TokenStream(packing.step, has_source=packing.dataset.source_numbers is not None)
        self._is_exhausted = False

    @property
    def _has_ended(self) -> bool:
        """True if all documents of this rank are in the stream."""
        return self._is_exhausted or self._packing.is_end(self._place)

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch of windows, or None after the last."""
        packing, stream = self._packing, self._stream
        while stream.windows < packing.batch and not self._is_exhausted:
            self._read()
        if stream.windows < packing.batch:
            if packing.tail == "drop":
                return None
            stream.fill_window()
        rows = min(packing.batch, stream.windows)
        if rows == 0:
            return None
        return stream.take(rows), rows, self._cursor()

    def _cursor(self) -> int:
        """Cursor after the windows that were taken."""
        packing, stream = self._packing, self._stream
        is_last = stream.windows < packing.batch if packing.tail == "drop" else stream.tokens == 0
        at = stream.position()
        # After the last batch, the epoch is complete even if the consumer does not request another batch.
        if at is None or (is_last and self._has_ended):
            at = (self._place, 0, 0)
        return (at[0] * _ROWS + at[1]) * _TOKENS + at[2]

    def _read(self) -> None:
        """Add the documents of the feed's next batch to the stream."""
        got = self._run.next()
        if got is None:
            self._is_exhausted = True
            return
        tensors, rows, cursor = got
        self._stream.add(tensors, rows, self._place, *self._skip)
        self._place, self._skip = cursor, (0, 0)

    def timing(self) -> dict[str, float]:
        """Return the times of the run."""
        times: dict[str, float] = self._run.timing()
        return times

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the numbers of skipped and substituted samples, and the first errors."""
        counts: tuple[int, int, list[str]] = self._run.error_counts()
        return counts

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        return self._stream.windows >= self._packing.batch

    def close(self) -> None:
        """End the run."""
        self._run.close()


class TokenStream:
    """Tokens of documents that are not in a window yet, with the index of each token in its document. With
    `has_source`, each token also has the number of its part of the mixture.
    """

    def __init__(self, step: PackStep, *, has_source: bool) -> None:
        import numpy as np

        self._np, self._step = np, step
        self._pads = dict(zip(step.fields, step.pads, strict=True))
        self._has_source = has_source and SOURCE not in step.fields
        if self._has_source:
            self._pads[SOURCE] = -1
        self._values: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in self._pads}
        # Index of each token in its document, or -1 for padding.
        self._indices: list[np.ndarray[Any, Any]] = []
        self._ascending = np.arange(step.length, dtype=np.int32)
        self._has_padding = False
        self.tokens = 0
        # `_taken` is the number of tokens in earlier windows. For each document, `_starts` is the index of its first
        # token in the stream of all added tokens, and `_places` is its origin: batch, document and token.
        self._taken = 0
        self._starts: list[int] = []
        self._places: list[tuple[int, int, int]] = []

    @property
    def windows(self) -> int:
        """Number of complete windows."""
        return self.tokens // self._step.length

    def position(self) -> tuple[int, int, int] | None:
        """Return the batch, document and token of the next window's first token, or None at the end."""
        if self.tokens == 0:
            return None
        # Padding counts as a part of the document before it. It ends at the end of a window, so no window begins with
        # padding.
        at = bisect_right(self._starts, self._taken) - 1
        place, row, token = self._places[at]
        return place, row, token + self._taken - self._starts[at]

    def add(self, tensors: Mapping[str, Any], rows: int, place: int, first: int, token: int) -> None:
        """Add the documents `first` to `rows` - 1 of a batch. The first `token` tokens of document `first` are left
        out.
        """
        np, step = self._np, self._step
        columns = {name: column_of(tensors, name, np) for name in step.fields}
        offsets = columns[step.fields[0]].offsets
        if self._has_source and _is_replaced(tensors.get(SOURCE)):
            self._has_source = False
            del self._values[SOURCE], self._pads[SOURCE]
        for name, column in columns.items():
            if not np.array_equal(column.offsets, offsets):
                raise MapFailed(
                    f"pack: `{name}` and `{step.fields[0]}` have different lengths in the same documents", where="pack"
                )
        bounds = offsets.tolist()
        before, behind = int(step.bos is not None), int(step.eos is not None)
        # For each document: index of the first token to copy, and start and end in the new part of the stream.
        layout: list[tuple[int, int, int]] = []
        end = 0
        for row in range(first, rows):
            skip = token if row == first else 0
            count = bounds[row + 1] - bounds[row] + before + behind - skip
            if count < 0:
                raise ConfigError(
                    f"state: continues after token {skip:,} of document {row}, but the document has fewer tokens",
                    where="state",
                )
            if not step.split:
                room = step.length - (self.tokens + end) % step.length
                end += room if count > room and room < step.length else 0
            layout.append((skip, end, end + count))
            self._starts.append(self._taken + self.tokens + end)
            self._places.append((place, row, skip))
            end += count
        indices = np.full(end, -1, np.int32)
        most = max((skip + stop - start for skip, start, stop in layout), default=0)
        if most > len(self._ascending):
            self._ascending = np.arange(2 * most, dtype=np.int32)
        for skip, start, stop in layout:
            indices[start:stop] = self._ascending[skip : skip + stop - start]
        self._has_padding |= bool(layout) and sum(stop - start for _, start, stop in layout) < end
        self._indices.append(indices)
        for name, column in columns.items():
            made = np.full(end, self._pads[name], self._dtype(name, column.values))
            for row, (skip, start, stop) in enumerate(layout, first):
                if before and skip == 0:
                    made[start] = step.bos
                made[start + max(before - skip, 0) : stop - behind if stop > start else stop] = column.values[
                    bounds[row] + max(skip - before, 0) : bounds[row + 1]
                ]
                if behind and stop > start:
                    made[stop - 1] = step.eos
            self._values[name].append(made)
        if self._has_source:
            numbers = np.asarray(tensors[SOURCE]).tolist()
            sources = np.full(end, self._pads[SOURCE], np.int32)
            for row, (_, start, stop) in enumerate(layout, first):
                sources[start:stop] = numbers[row]
            self._values[SOURCE].append(sources)
        self.tokens += end

    def _dtype(self, name: str, values: np.ndarray[Any, Any]) -> Any:
        """Return the type of a packed field: the `dtype` of the step for integers, otherwise the stored type.

        Raises:
            ConfigError: A value, the padding, bos or eos does not fit.
        """
        np, step, want = self._np, self._step, self._np.dtype(self._step.dtype)
        if values.dtype.kind not in "iu":
            return values.dtype
        limits = np.iinfo(want)
        added = [value for value in (self._pads[name], step.bos, step.eos) if value is not None]
        if not np.can_cast(values.dtype, want) and values.size:
            added += [int(values.min()), int(values.max())]
        if min(added) < limits.min or max(added) > limits.max:
            raise ConfigError(
                f"pack: `{name}` (with padding, bos and eos) has values from {min(added)} to {max(added)}, which do not fit "
                f"{want}",
                where="pack",
                hint='give pack() another dtype, such as "int64"',
            )
        return want

    def fill_window(self) -> None:
        """Fill the last window with padding."""
        count = -self.tokens % self._step.length
        if count:
            self._has_padding = True
            self._indices.append(self._np.full(count, -1, self._np.int32))
            for name, parts in self._values.items():
                parts.append(self._np.full(count, self._pads[name], parts[0].dtype))
            self.tokens += count

    def take(self, rows: int) -> dict[str, Any]:
        """Remove the first `rows` windows and return them as a batch."""
        np, length = self._np, self._step.length
        if not self._indices:
            self._indices.append(np.empty(0, np.int32))
            for name, parts in self._values.items():
                parts.append(np.empty(0, np.int32 if name == SOURCE and self._has_source else self._step.dtype))
        need = rows * length
        made: dict[str, Any] = {
            name: self._cut(parts, need).reshape(rows, length) for name, parts in self._values.items()
        }
        indices = self._cut(self._indices, need).reshape(rows, length)
        # In a document that began in an earlier window, positions count from the start of this window.
        positions = np.minimum(indices, np.arange(length, dtype=np.int32))
        padding = indices < 0 if self._has_padding else None
        starts = positions == 0
        made["segment_ids"] = np.cumsum(starts, axis=1, dtype=np.int32)
        made["position_ids"] = positions
        made["mask"] = np.ones((rows, length), np.bool_)
        if padding is not None:
            made["segment_ids"][padding] = made["position_ids"][padding] = 0
            made["mask"] = ~padding
        self.tokens -= need
        self._taken += need
        done = max(bisect_right(self._starts, self._taken) - 1, 0)
        del self._starts[:done], self._places[:done]
        return made

    def _cut(self, parts: list[np.ndarray[Any, Any]], need: int) -> np.ndarray[Any, Any]:
        """Remove the first `need` elements of consecutive arrays, and return them in an array that shares no memory
        with other windows.
        """
        if len(parts) > 1:
            parts[:] = [self._np.concatenate(parts)]
        (whole,) = parts
        parts[0] = whole[need:]
        return whole[:need]


def _is_replaced(source: Any) -> bool:
    """True if a function removed the field `source` of a mixture, or replaced its values."""
    return getattr(source, "dtype", None) != "int32" or len(source.shape) != 1


def column_of(tensors: Mapping[str, Any], name: str, np: Any) -> Ragged:
    """Return a field of tokens as values and offsets. If the field has a fixed length, each row is a document."""
    column = tensors.get(name)
    if isinstance(column, Ragged):
        return column
    if column is None or isinstance(column, list) or getattr(column, "is_bytes", False):
        known = ", ".join(tensors)
        raise ConfigError(
            f"pack: `{name}` is not a field of numbers (the fields are {known})",
            where="pack",
            hint="return lists from tokenize(fn, key=...); for lists from map() or decode(), add a step: "
            f'tokenize(lambda lists: lists, "{name}", into="{name}", key="lists-1")'
            if isinstance(column, list)
            else 'call tokenize() first, or name the field of tokens: pack(length, fields="input_ids")',
        )
    if hasattr(column, "offsets"):
        made = ragged(column, np.asarray)
        if isinstance(made.values, Ragged):
            raise ConfigError(f"pack: `{name}` is a list of lists, not of numbers", where="pack")
        return made
    rows = np.asarray(column)
    rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))  # `reshape(0, -1)` would raise an error
    return Ragged(rows.reshape(-1), np.arange(len(rows) + 1) * rows.shape[1])
