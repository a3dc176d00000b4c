# SPDX-License-Identifier: Apache-2.0
"""`tokenize`: converts the texts of a feed's batches to tokens, in a separate thread. Sample order and state do not
change.

While the consumer works on a batch, the next batches are tokenized. Hugging Face's tokenizers release the GIL, and
choose their number of threads. For common byte-level BPE tokenizers, the core computes the same tokens faster
(`byte_pairs`).
"""

from __future__ import annotations

import hashlib
import operator
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed import byte_pairs
from penstock.feed.batch_columns import Ragged, string_rows
from penstock.feed.byte_pairs import Utf8
from penstock.feed.fields import dtype_name
from penstock.feed.map_step import record_place, row_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from penstock.feed.byte_pairs import BytePairEncoder
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.loader import BaseLoader
    from penstock.feed.token_padding import TokenPadding

__all__ = ["TokenizeRun", "TokenizeStep"]

_AHEAD = 2
"""Number of batches that are tokenized in advance, while the consumer works on an earlier batch."""

_DIGEST_BYTES = 16


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class TokenizeStep:
    """A tokenizer, the fields that it reads, and the digest that a state must contain. The digest does not cover
    padding, because padding does not change which samples a batch has.
    """

    encode: Callable[..., Any]
    fields: tuple[str, ...]
    into: str
    dtype: str
    digest: str
    padding: TokenPadding | None = None

    @classmethod
    def of(
        cls, tokenizer: Any, fields: Sequence[str], into: str, dtype: object, *, special_tokens: bool, key: str | None
    ) -> TokenizeStep:
        """Check a tokenizer and compute its digest.

        Raises:
            ConfigError: The tokenizer is not callable, or it has no digest and no key is given.
        """
        named = dtype_name(dtype)
        if named not in ("uint16", "int32", "uint32", "int64"):
            raise ConfigError(f"tokenize: dtype `{named}` is not one of uint16, int32, uint32, int64", where="tokenize")
        fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(fast, "encode_batch") and hasattr(fast, "to_str"):
            if len(fields) != 1:
                raise ConfigError(
                    f"tokenize: a tokenizer reads one field (got {len(fields)})",
                    where="tokenize",
                    hint="give a function of several lists instead",
                )
            described = fast.to_str()
            encode: Callable[..., Any] = _Encode(fast, special_tokens, byte_pairs.of(fast, described, special_tokens))
            text = f"{described}\n{special_tokens}"
        elif callable(tokenizer):
            encode, text = tokenizer, str(getattr(tokenizer, "digest", ""))
        else:
            raise ConfigError(
                f"tokenize: {tokenizer!r} is neither a tokenizer nor callable",
                where="tokenize",
                hint="load it: tokenizers.Tokenizer.from_file(...) or from_pretrained(...)",
            )
        text = text if key is None else key
        if not text:
            raise ConfigError(
                f"tokenize: {tokenizer!r} has no digest, so a state cannot identify the function",
                where="tokenize",
                hint='name the function and its version: tokenize(fn, key="my-tokenizer-1")',
            )
        return cls(encode, tuple(fields), into, named, _digest(f"{text}\n{fields}\n{into}\n{named}"))


class _Encode:
    """Encodes a list of texts with a tokenizer of the `tokenizers` package."""

    def __init__(self, tokenizer: Any, special_tokens: bool, pairs: BytePairEncoder | None) -> None:  # noqa: FBT001
        self._tokenizer, self._special_tokens, self.pairs = tokenizer, special_tokens, pairs

    def __reduce__(self) -> tuple[Any, ...]:
        return _encode_of, (self._tokenizer, self._special_tokens)

    def __call__(self, texts: list[str] | Utf8) -> Any:
        if self.pairs is not None and isinstance(texts, Utf8):
            return self.pairs.encode(texts, self)
        # `encode_batch_fast` returns the same tokens, but does not compute their offsets in the text.
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=self._special_tokens)]


def _encode_of(tokenizer: Any, special_tokens: bool) -> _Encode:  # noqa: FBT001 - called by pickle
    return _Encode(tokenizer, special_tokens, byte_pairs.of(tokenizer, tokenizer.to_str(), special_tokens))


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts of a batch for each field, and the positions of the samples in the epoch, if the positions are known."""

    columns: list[Any]
    dataset: DatasetBase
    epoch: int
    positions: Sequence[int] | None

    def __len__(self) -> int:
        return len(self.columns[0])

    def of_row(self, row: int) -> list[Any]:
        """Return the text of one sample, as a list for each field."""
        return [[rows.text(row) if isinstance(rows, Utf8) else rows[row]] for rows in self.columns]

    def failed(self, step: str, why: str, row: int | None = None, hint: str | None = None) -> MapFailed:
        """Return the error of a step for this batch or, with `row`, for one sample of this batch."""
        facts: dict[str, Any] = {"where": step, "epoch": self.epoch, "hint": hint}
        if row is None or self.positions is None:
            sample = "" if row is None else f"sample {row} of "
            return MapFailed(f"{step}: {sample}a batch of {len(self):,} in epoch {self.epoch}: {why}", **facts)
        position = self.positions[row] % self.dataset.samples
        place = record_place(self.dataset, self.epoch, position)
        return MapFailed(f"{step}: {place}: {why}", position=position, **facts)


_Job = tuple["Future[dict[str, Any]]", _Texts]
"""A batch to tokenize: the future result, and the texts."""


def _work(queue: SimpleQueue[_Job | None], step: TokenizeStep) -> None:
    while (job := queue.get()) is not None:
        made, texts = job
        if made.set_running_or_notify_cancel():
            try:
                made.set_result(_tokenized(step, texts))
            except BaseException as error:  # also SystemExit; without a result, the consumer would wait forever
                made.set_exception(error)
        del job, made, texts


class TokenizeRun:
    """A run that replaces the texts in the batches of another run by tokens. Has the same interface as the native
    run.
    """

    def __init__(self, loader: BaseLoader[Any], run: Any, step: TokenizeStep, epoch: int, cursor: int) -> None:
        self._loader, self._run, self._step, self._epoch, self._read = loader, run, step, epoch, cursor
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._under_way: deque[tuple[Future[dict[str, Any]], dict[str, Any], int, int]] = deque()
        self._is_exhausted = self._is_closed = False
        self._is_utf8 = isinstance(step.encode, _Encode) and step.encode.pairs is not None
        self._wait_s = 0.0
        # A daemon thread, because a tokenizer that hangs must not prevent the program from ending.
        threading.Thread(target=_work, args=(self._queue, step), name="penstock-tokenize", daemon=True).start()

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch in order, or None after the last."""
        self._fill()
        if not self._under_way:
            return None
        made, passed, rows, cursor = self._under_way.popleft()
        began = time.perf_counter()
        try:
            columns = made.result()
        except CancelledError:  # another thread has closed the run
            raise ConfigError("iterator: already ended", where="iterator") from None
        self._wait_s += time.perf_counter() - began
        if taken := passed.keys() & columns.keys():
            raise ConfigError(
                f"tokenize: `{min(taken)}` is already a field of the dataset",
                where="tokenize",
                hint="give the tokens and the mask other names: tokenize(into=...), padded(mask=...)",
            )
        return {**passed, **columns}, rows, cursor

    def _fill(self) -> None:
        while not self._is_exhausted and len(self._under_way) <= _AHEAD:
            if self._under_way and not self._run.is_ready():
                return
            got = self._run.next()
            if got is None:
                self._is_exhausted = True
                return
            tensors, rows, cursor = got
            columns = [_texts(tensors, name, self._is_utf8) for name in self._step.fields]
            texts = _Texts(columns, self._loader.dataset, self._epoch, self._positions(rows, cursor))
            passed = {name: column for name, column in tensors.items() if name not in self._step.fields}
            made: Future[dict[str, Any]] = Future()
            self._under_way.append((made, passed, rows, cursor))
            self._queue.put((made, texts))
            if self._is_closed:  # `close` may have run before this batch was queued
                made.cancel()

    def _positions(self, rows: int, cursor: int) -> Sequence[int] | None:
        """Return the positions of a batch's samples; None if the positions are unknown."""
        start, self._read = self._read, cursor
        dataset = self._loader.dataset
        is_counted_pack = dataset.packing is not None and dataset.packing.count_tokens
        if not dataset.indexed or dataset.decodes or is_counted_pack:
            return None
        is_mapped = bool(dataset.map_steps)
        found = self._run.positions() if is_mapped else row_positions(self._loader, self._run, start, cursor)
        return found if len(found) == rows else None  # fewer rows if samples were skipped

    def timing(self) -> dict[str, float]:
        """Return the times of the run, and the time spent waiting for the tokenizer."""
        times = self._run.timing()
        return {**times, "wait_map_s": times.get("wait_map_s", 0.0) + self._wait_s}

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the numbers of skipped and substituted samples, and the first errors."""
        counts: tuple[int, int, list[str]] = self._run.error_counts()
        return counts

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        return bool(self._under_way) and self._under_way[0][0].done()

    def close(self) -> None:
        """End the run and the thread."""
        self._is_closed = True
        for made, *_ in list(self._under_way):
            made.cancel()
        self._queue.put(None)
        self._run.close()


def _texts(tensors: Mapping[str, Any], name: str, is_utf8: bool) -> list[Any] | Utf8:  # noqa: FBT001 - one caller
    """Return a copy of the texts of a field, so that they do not keep the batch in memory."""
    column = tensors.get(name)
    if isinstance(column, list):
        return column
    if column is None or not getattr(column, "is_bytes", False):
        known = ", ".join(tensors)
        raise ConfigError(
            f"tokenize: `{name}` is not a field of text (the fields are {known})",
            where="tokenize",
            hint=f"set it: .fields({name}=penstock.text())",
        )
    return Utf8.of(column) if is_utf8 and column.is_text else string_rows(column)


def _tokenized(step: TokenizeStep, texts: _Texts) -> dict[str, Any]:
    """Run the tokenizer over the texts of a batch. Returns a `Ragged` per field of tokens, or padded arrays and a mask."""
    try:
        results = step.encode(*texts.columns)
    except Exception as error:
        columns = zip(step.fields, texts.columns, strict=True)
        raw = [name for name, rows in columns if isinstance(rows, list) and rows and isinstance(rows[0], bytes)]
        raise texts.failed(
            "tokenize",
            f"the tokenizer raised {type(error).__name__}: {error}",
            _first_failing(step, texts, type(error)),
            hint=f"read it as text: .fields({raw[0]}=penstock.text())" if raw else None,
        ) from error
    named: Mapping[str, Any] = results if isinstance(results, Mapping) else {step.into: results}
    joined = {name: _joined(rows, texts, step.dtype, name) for name, rows in named.items()}
    return joined if step.padding is None else step.padding.apply(joined, texts.failed)


def _first_failing(step: TokenizeStep, texts: _Texts, kind: type[Exception]) -> int | None:
    """Return the first row whose text alone makes the tokenizer raise an error of class `kind`; None if no row does."""
    for row in range(len(texts)):
        try:
            step.encode(*texts.of_row(row))
        except kind:
            return row
        except Exception:  # noqa: S112 - not the error to find
            continue
    return None


def _joined(rows: Sequence[Any], texts: _Texts, dtype: str, name: str) -> Ragged:
    """Convert one sequence of numbers per sample to a `Ragged` of the given type.

    Raises:
        MapFailed: There is not one sequence for each text, or a value does not fit the type.
    """
    try:
        if isinstance(rows, Ragged):  # result of byte_pairs
            return Ragged(_fitted(rows.values, dtype), rows.offsets)
        if len(rows) != len(texts):
            raise texts.failed(
                "tokenize", f"the function returned {len(rows):,} lists of `{name}` for {len(texts):,} texts"
            )
        return _ragged(rows, dtype)
    except _NOT_TOKENS as error:
        row = _first_other(rows, dtype)
        raise texts.failed("tokenize", f"`{name}` is not a list of {dtype} for each text: {error}", row) from None


_NOT_TOKENS = (OverflowError, TypeError, ValueError)
"""Errors that the conversion of values to tokens raises."""


def _ragged(rows: Sequence[Any], dtype: str) -> Ragged:
    import numpy as np

    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    if len(rows) and isinstance(rows[0], np.ndarray):
        joined: np.ndarray[Any, Any] = np.concatenate(list(rows))
        return Ragged(
            joined.astype(dtype, casting="safe") if joined.dtype.kind == "f" else _fitted(joined, dtype), offsets
        )
    # `operator.index` rejects fractions and digits in text, which NumPy would convert.
    return Ragged(np.fromiter(map(operator.index, chain.from_iterable(rows)), dtype, int(offsets[-1])), offsets)


def _first_other(rows: Any, dtype: str) -> int | None:
    """Return the first row that is not a sequence of numbers of the given type; None if `rows` is not a sequence."""
    rows = rows.to_list() if isinstance(rows, Ragged) else rows
    for number, row in enumerate(rows if hasattr(rows, "__len__") else ()):
        try:
            _ragged([row], dtype)
        except _NOT_TOKENS:
            return number
    return None


def _fitted(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    made = values.astype(dtype)
    if made.ndim != 1 or not (made == values).all():
        raise ValueError("a value does not fit the type")
    return made
