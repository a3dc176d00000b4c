# SPDX-License-Identifier: Apache-2.0
"""Tests `tokenize().padded()`: against the padding of the `tokenizers` package, on several ranks, and bad arguments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, MapFailed

from .test_pack import Bytes, write

TEXTS = ["one", "", "four and five", "x" * 40, "six six", "seven", "eight!", "ninety-nine"]


def opened(folder, texts=TEXTS):
    return penstock.open(write(folder, texts)).fields(text=penstock.text())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text("abc ", max_size=30), min_size=2, max_size=12),
    batch=st.integers(1, 5),
    multiple=st.integers(1, 9),
    cut=st.none() | st.integers(1, 20),
)
def test_padded_tokens_are_those_of_the_tokenizers_package(tmp_path, texts, batch, multiple, cut):
    import tokenizers

    vocabulary = {"[UNK]": 7, "a": 1, "b": 2, "c": 3, "ab": 4, "ba": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    text = opened(tmp_path, texts).tokenize(tokenizer, dtype="int32")
    made = text.padded(multiple_of=multiple, value=9) if cut is None else text.padded(cut, value=9, truncate=True)
    batches = list(penstock.Loader(made, batch_size=batch))
    if cut is None:
        tokenizer.enable_padding(pad_id=9, pad_to_multiple_of=multiple)
    else:
        tokenizer.enable_padding(pad_id=9, length=cut)
        tokenizer.enable_truncation(cut)
    for number, found in enumerate(batches):
        want = tokenizer.encode_batch(texts[number * batch : (number + 1) * batch])
        assert found["tokens"].dtype == np.int32
        assert found["mask"].dtype == np.bool_
        assert found["tokens"].tolist() == [each.ids for each in want]
        assert found["mask"].tolist() == [[bool(bit) for bit in each.attention_mask] for each in want]
    assert sum(len(found["tokens"]) for found in batches) == len(texts)


def test_padded_fields_of_one_tokenizer_have_one_mask_and_their_own_padding(tmp_path):
    def chat(texts):
        rows = [list(text.encode()) for text in texts]
        return {"input_ids": rows, "labels": [[-100, *row[1:]] if row else [] for row in rows]}

    made = opened(tmp_path).tokenize(chat, key="chat-1").padded(value={"labels": -100}, mask="attention_mask")
    (batch,) = penstock.Loader(made, batch_size=8)
    assert list(batch) == ["input_ids", "attention_mask", "labels"]
    assert batch["input_ids"][0].tolist() == [*b"one", *[0] * 37]
    assert batch["labels"][0].tolist() == [-100, *b"ne", *[-100] * 37]
    assert batch["attention_mask"].sum(axis=1).tolist() == [len(text) for text in TEXTS]
    (batch,) = penstock.Loader(opened(tmp_path).tokenize(Bytes()).padded(mask=None), batch_size=8)
    assert list(batch) == ["tokens"]


def test_padded_tokens_resume_on_another_number_of_ranks(tmp_path):
    def rows(batch):
        return [bytes(row[mask].tolist()) for row, mask in zip(batch["tokens"], batch["mask"], strict=True)]

    dataset = opened(tmp_path, [str(number) * (number % 5) for number in range(24)]).shuffle(3)
    ragged, padded = dataset.tokenize(Bytes()), dataset.tokenize(Bytes()).padded()
    want = [row for batch in penstock.Loader(padded, global_batch=6) for row in rows(batch)]
    loaders = [penstock.Loader(padded, global_batch=6, rank=rank, world=2) for rank in range(2)]
    first = [rows(next(iter(loader))) for loader in loaders]
    # Padding is not a part of the state: the tokens may be padded otherwise, or not at all, after a restart.
    state = loaders[0].state_dict()
    again = penstock.Loader(padded, global_batch=6, rank=0, world=1)
    again.load_state_dict(state)
    assert [*first[0], *first[1], *(row for batch in again for row in rows(batch))] == want
    unpadded = penstock.Loader(ragged, global_batch=6, rank=0, world=1)
    unpadded.load_state_dict(state)
    assert [bytes(row) for batch in unpadded for row in batch["tokens"].to_list()] == want[6:]


@pytest.mark.needs_torch
def test_padded_tokens_reach_torch_and_a_padded_tail(tmp_path):
    import torch

    made = opened(tmp_path).tokenize(Bytes()).padded(multiple_of=8)
    first, last = penstock.torch.Loader(made, batch_size=5, tail="pad")
    assert first["tokens"].shape == first["mask"].shape == (5, 40)
    assert last["tokens"].shape == (5, 16)
    assert last["tokens"].dtype == torch.int64
    assert last["weight"].tolist() == [1, 1, 1, 0, 0]


@pytest.mark.needs_tf
def test_padded_tokens_reach_tensorflow(tmp_path):
    import tensorflow as tf

    made = penstock.tf.dataset(opened(tmp_path).tokenize(Bytes()).padded(), batch=5)
    assert made.element_spec["tokens"] == tf.TensorSpec((None, None), tf.int64)
    assert [batch["mask"].shape for batch in made] == [(5, 40), (3, 11)]


def test_padded_refuses_what_it_cannot_do(tmp_path):
    text = opened(tmp_path)
    tokens = text.tokenize(Bytes(), dtype="int32")
    for call, match in (
        (lambda: text.padded(), "the dataset is not tokenized"),
        (lambda: tokens.padded().padded(), "the dataset is already padded"),
        (lambda: tokens.pack(8).padded(), "the dataset is packed"),
        (lambda: tokens.padded().pack(8), r"pack: cannot be combined with padded\(\)"),
        (lambda: tokens.padded(0), "to: must be longest or a length"),
        (lambda: tokens.padded("bucket"), "to: must be longest or a length"),
        (lambda: tokens.padded(8, multiple_of=8), "multiple_of: must be at least 1, or exactly 1"),
        (lambda: tokens.padded(multiple_of=0), "multiple_of: must be at least 1"),
        (lambda: tokens.padded(value=2**31), "value: 2147483648 is not a value of int32"),
        (lambda: tokens.padded(value={"tokens": 0.5}), "value: must be an integer"),
        (lambda: tokens.padded(mask=""), "mask: must be the name of a column"),
    ):
        with pytest.raises(ConfigError, match=match):
            call()
    with pytest.raises(MapFailed, match="mask `tokens` is also the name of a field of tokens"):
        list(penstock.Loader(tokens.padded(mask="tokens"), batch_size=8))
    with pytest.raises(
        MapFailed, match=r"record 3 of .*0\.jsonl \(position 3 .*: `tokens` has 40 tokens, more than 16"
    ) as caught:
        list(penstock.Loader(tokens.padded(16), batch_size=8))
    assert caught.value.hint == "cut longer samples: padded(16, truncate=True)"
    with pytest.raises(
        MapFailed, match=r"value contains `labels`, which is not a field of tokens \(the fields are tokens\)"
    ):
        list(penstock.Loader(tokens.padded(value={"labels": -100}), batch_size=8))
    numbered = text.fields(text=penstock.text(), n=penstock.text().of("text"))
    for made in (numbered.tokenize(Bytes()).padded(mask="n"), numbered.tokenize(Bytes(), into="n")):
        with pytest.raises(ConfigError, match="`n` is already a field of the dataset"):
            list(penstock.Loader(made, batch_size=8))
