# SPDX-License-Identifier: Apache-2.0
"""Tests that the core's byte-level BPE gives the tokens of the `tokenizers` package, or leaves a text to it."""

from __future__ import annotations

import json
import pickle
import unicodedata
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.feed import byte_pairs
from penstock.feed.batch_columns import Ragged
from penstock.feed.byte_pairs import Utf8

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = (
    "the then there these it's they'll we've I'm she'd 1234 567 don't  two   spaces\n\nlines\r\n\ttab "
    "naïve café Привет мир 日本語 한국어 “quotes” — €100 x = [1, 2, 3]; // done !!! ??? ... THE IT'S 'S 'LL "
) * 20
KINDS = ("gpt2", "prefix", "llama3", "qwen", "template")
PIECES = st.sampled_from(
    [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'", "the", "there", "X", "é", "мир", "日本", "한", "1", "2345", "½", "!", "...",
     "\u00a0", "\u2028", "\u0301", "e\u0301", "\U0001f600", "\U0001f9ff", "\u017f", "'\u017f", "<end>", "<", "\x00", "ǅ", "ª", "〇", "Ω"]
)  # fmt: skip


def trained(kind: str) -> Any:
    """A tokenizer of 600 tokens, whose pre-tokenizer is that of a known family."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

    made = tokenizers.Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind in ("llama3", "qwen"):
        pattern = LLAMA3 if kind == "llama3" else LLAMA3.replace("{1,3}", "")
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        made.normalizer = normalizers.NFC() if kind == "qwen" else None
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefix")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<end>", "<begin>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([CORPUS], trainer)
    if kind == "template":
        made.post_processor = processors.TemplateProcessing(
            single="<begin> $A <end> <end>", special_tokens=[("<end>", 0), ("<begin>", 1)]
        )
    return made


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return {kind: trained(kind) for kind in KINDS}


def both(tokenizer: Any, texts: list[str]) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """Tokens by the core, tokens by the tokenizer, and the texts that the core left to it."""
    encoder = byte_pairs.of(tokenizer, tokenizer.to_str(), True)
    assert encoder is not None
    left: list[str] = []

    def encode(given: list[str]) -> list[list[int]]:
        left.extend(given)
        return [found.ids for found in tokenizer.encode_batch(given)]

    found = encoder.encode(Utf8.of_list(texts), encode)
    rows = found.to_list() if isinstance(found, Ragged) else [row.tolist() for row in found]
    return rows, [tokenizer.encode(text).ids for text in texts], left


@settings(max_examples=20, deadline=None)
@given(texts=st.lists(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join), max_size=5))
@pytest.mark.parametrize("kind", KINDS)
def test_core_bpe_gives_the_tokens_of_the_tokenizer(known: dict[str, Any], kind: str, texts: list[str]) -> None:
    ours, theirs, _left = both(known[kind], texts)
    assert ours == theirs


@pytest.mark.system
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen"])
def test_core_bpe_splits_at_every_known_character_as_the_tokenizer_does(known: dict[str, Any], kind: str) -> None:
    letters = [chr(code) for code in range(0x11000) if not 0xD800 <= code < 0xE000]
    letters += [chr(code) for code in range(0x1F000, 0x1F800)]
    texts = ["".join(f"a{c}1{c} {c}!" for c in letters[at : at + 8]) for at in range(0, len(letters), 8)]
    tokenizer = known[kind]
    encoder = byte_pairs.of(tokenizer, tokenizer.to_str(), False)
    assert encoder is not None
    utf8 = Utf8.of_list(texts)
    tokens, lengths, left = encoder.core.encode(utf8.values, utf8.offsets, (), (), 1)
    rows = np.split(np.frombuffer(tokens, np.uint32), np.cumsum(np.frombuffer(lengths, np.uint32))[:-1])
    done = sorted(set(range(len(texts))) - set(left))
    assert len(done) > 3800
    theirs = tokenizer.encode_batch([texts[at] for at in done], add_special_tokens=False)
    differing = [texts[at] for at, found in zip(done, theirs, strict=True) if rows[at].tolist() != found.ids]
    assert not differing, [unicodedata.name(c, hex(ord(c))) for c in differing[0]]


def test_core_bpe_leaves_added_tokens_and_unknown_characters_to_the_tokenizer(known: dict[str, Any]) -> None:
    texts = ["plain", "an <end> token", "", "e\u0301", "also plain", "\U0001f9ff"]
    ours, theirs, left = both(known["gpt2"], texts)
    assert ours == theirs
    assert left == [texts[1], "", texts[3], texts[5]]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("normalizer",), {"type": "Lowercase"}),
        (("model", "dropout"), 0.1),
        (("model", "end_of_word_suffix"), "</w>"),
        (("model", "byte_fallback"), True),
        (("pre_tokenizer",), {"type": "Whitespace"}),
        (("truncation",), {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}),
    ],
)
def test_core_bpe_refuses_a_tokenizer_with_a_step_that_it_does_not_know(
    known: dict[str, Any], path: tuple[str, ...], value: Any
) -> None:
    described = json.loads(known["gpt2"].to_str())
    at = described
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert byte_pairs.of(known["gpt2"], json.dumps(described), False) is None


def test_core_bpe_is_not_used_for_a_tokenizer_that_differs_from_its_description(known: dict[str, Any]) -> None:
    assert byte_pairs.of(known["prefix"], known["gpt2"].to_str(), False) is None


def test_tokenize_with_core_bpe_reads_the_tokens_of_the_tokenizer(known: dict[str, Any], tmp_path: Any) -> None:
    texts = ["there's the", "<end>", "", "the 日本語 e\u0301", "x" * 70_000, *([CORPUS] * 30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = known["template"]
    opened = penstock.open(tmp_path).fields(text=penstock.text())
    for special in (False, True):
        dataset = pickle.loads(pickle.dumps(opened.tokenize(tokenizer, special_tokens=special, dtype="uint16")))
        (batch,) = penstock.Loader(dataset, batch_size=64)
        want = [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=special)]
        assert batch["tokens"].values.dtype == np.uint16
        assert batch["tokens"].to_list() == want
