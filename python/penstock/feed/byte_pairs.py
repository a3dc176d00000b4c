# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE in the core: returns the same tokens as the `tokenizers` package, at a lower cost per word.

Used only if the core supports the tokenizer's JSON, and returns the same tokens for a few test texts. Texts that the
core does not support, such as texts with added tokens, are passed to the tokenizer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from penstock import _native
from penstock.feed.batch_columns import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BytePairEncoder", "Utf8", "of"]

_PROBE = (
    "It's we'LL they'd  'S \t tab\n\n  lines \r\n\r\n 12345 ½ x9y ... !?\u00a0\u2003end",
    "\n naïve café Ærø Привет Ελλάς 日本語テキスト 한국어 \u201cquotes\u201d \u2014 €100 \U0001f600!",
    "\x00\x1f\x7f 0x00 __init__(self) -> {'a': [1, 2]}  # done   ",
)
"""Texts on which the core and a tokenizer must return the same tokens before the core replaces the tokenizer."""


@dataclass(frozen=True, slots=True)
class Utf8:
    """Texts of a batch: text i is `values[offsets[i]:offsets[i + 1]]` in UTF-8."""

    values: bytes
    offsets: Any

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.offsets) - 1

    @classmethod
    def of(cls, column: _native.RaggedTensor) -> Utf8:
        """Copy a column of texts from a batch."""
        import numpy as np

        return cls(memoryview(cast("Any", column.values)).tobytes(), np.array(column.offsets[-1], np.int64))

    @classmethod
    def of_list(cls, texts: Sequence[str]) -> Utf8:
        """Encode a list of texts in UTF-8."""
        import numpy as np

        encoded = [text.encode() for text in texts]
        return cls(b"".join(encoded), np.cumsum([0, *map(len, encoded)], dtype=np.int64))

    def text(self, number: int) -> str:
        """Return one text."""
        return self.values[self.offsets[number] : self.offsets[number + 1]].decode()


@dataclass(frozen=True, slots=True)
class BytePairEncoder:
    """A tokenizer of the core, and the special tokens to add before and after each text."""

    core: _native.BytePairs
    before: tuple[int, ...]
    after: tuple[int, ...]

    def encode(self, texts: Utf8, tokenizer: Callable[[list[str]], list[list[int]]]) -> Any:
        """Return the tokens as a `Ragged` of uint32. If `tokenizer` encodes some of the texts, return one array per
        text.
        """
        import numpy as np

        threads = len(os.sched_getaffinity(0))
        tokens, lengths, left = self.core.encode(texts.values, texts.offsets, self.before, self.after, threads)
        values = np.frombuffer(tokens, np.uint32)
        offsets = np.zeros(len(texts.offsets), np.int64)
        np.cumsum(np.frombuffer(lengths, np.uint32), out=offsets[1:])
        if not left:
            return Ragged(values, offsets)
        rows = [values[start:end] for start, end in pairwise(offsets.tolist())]
        for number, row in zip(left, tokenizer([texts.text(number) for number in left]), strict=True):
            rows[number] = np.array(row, np.uint32)
        return rows


def of(tokenizer: Any, described: str, special_tokens: bool) -> BytePairEncoder | None:  # noqa: FBT001 - two callers
    """Return an encoder that replaces `tokenizer`, or None if the core does not support it. `described` is its JSON."""
    core = _native.BytePairs.of_json(described)
    if core is None:
        return None
    bare, full = (tokenizer.encode("a", add_special_tokens=added).ids for added in (False, special_tokens))
    at = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
    made = BytePairEncoder(core, tuple(full[:at]), tuple(full[at + len(bare) :]))

    def encoded(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=special_tokens)]

    found = made.encode(Utf8.of_list(_PROBE), encoded)
    rows = found.to_list() if isinstance(found, Ragged) else [row.tolist() for row in found]
    return made if rows == encoded(list(_PROBE)) else None
