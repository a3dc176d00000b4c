# SPDX-License-Identifier: Apache-2.0
"""Tests lists of byte strings and feature lists: their boundaries are preserved, or the read fails."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.errors import BudgetExceeded, Mismatch, Unsupported

from .tfrecords import example, frame, sequence_example

WORDS = [[b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"", b"abc", b""]]


def write(tmp_path, *payloads):
    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(payload) for payload in payloads))
    return penstock.open(tmp_path / "a.tfrecord")


def batches(dataset, size=4, **fields):
    return list(penstock.Loader(dataset.fields(**fields) if fields else dataset, batch_size=size))


def test_bytes_lists_keep_their_boundaries_by_default(tmp_path):
    dataset = write(tmp_path, *(example(words=words, id=[number]) for number, words in enumerate(WORDS)))
    assert dataset.schema()["words"] == penstock.raw_list()
    (batch,) = batches(dataset)
    assert batch["words"] == WORDS
    assert batch["id"].tolist() == [0, 1, 2, 3]
    loader = penstock.torch.MapDataset(dataset)
    assert loader[1]["words"] == WORDS[1]


@pytest.mark.parametrize("indexed", [True, False])
def test_bytes_lists_are_shuffled_like_other_fields(tmp_path, indexed):
    records = [example(words=words, id=[number]) for number, words in enumerate(WORDS)]
    write(tmp_path, *records, example(id=[4]), *records)
    dataset = penstock.open(tmp_path / "a.tfrecord", indexed=indexed)
    dataset = dataset.fields(words=penstock.raw_list(), id=penstock.tensor("int64", ())).shuffle(seed=2)
    found = [
        (int(number), words)
        for batch in penstock.Loader(dataset, batch_size=3)
        for number, words in zip(batch["id"], batch["words"], strict=True)
    ]
    # For a record without the feature, the list is empty.
    assert sorted(found) == sorted([*2 * list(enumerate(WORDS)), (4, [])])


@pytest.mark.parametrize("field", [penstock.raw(), penstock.ragged("uint8")])
def test_byte_strings_are_not_joined(tmp_path, field):
    dataset = write(tmp_path, example(words=[b"ab"]), example(words=[b"a", b"b"]))
    (one,) = batches(dataset.shard(0, 2), words=field)
    assert bytes(one["words"].values if isinstance(one["words"], tuple) else one["words"][0]) == b"ab"
    with pytest.raises(Mismatch, match=r"record 1: field `words` .* bytes_list of 2 values: use raw_list\(\)"):
        batches(dataset, words=field)


def test_values_of_byte_lists_are_counted_in_the_budget(tmp_path):
    dataset = write(tmp_path, example(words=[b""] * 200_000))
    with pytest.raises(BudgetExceeded, match=r"field `words` \(all its variable-length values in one batch"):
        list(penstock.Loader(dataset.fields(words=penstock.raw_list()), batch_size=1, memory_bytes=1_500_000))


def test_a_step_of_a_feature_list_is_one_item(tmp_path):
    steps = {"frame": [[b"x"], [b"yz"]], "pair": [[1, 2], [3, 4]], "one": [[1.0], [2.0]], "odd": [[0], [1, 1], [2]]}
    dataset = write(tmp_path, sequence_example({"id": [7]}, **steps, several=[[b"x", b"y"]], empty=[[]]))
    schema = dataset.schema()
    assert schema["frame"] == penstock.raw_list()
    assert (schema["pair"], schema["one"]) == (penstock.ragged("int64", (2,)), penstock.ragged("float32"))
    reasons = dict(schema.left_out)
    assert sorted(reasons) == ["empty"]
    assert (str(schema["odd"]), str(schema["several"])) == ("list of list of int64 []", "list of list of bytes")
    (batch,) = batches(dataset)
    assert batch["frame"] == [[b"x", b"yz"]]
    assert batch["pair"].values.tolist() == [[1, 2], [3, 4]]
    assert batch["id"].tolist() == [7]

    (tensor,) = batches(dataset, pair=penstock.tensor("int64", (2, 2)))
    assert np.array_equal(tensor["pair"], [[[1, 2], [3, 4]]])
    for field in (penstock.ragged("int64"), penstock.tensor("int64", (4,))):
        with pytest.raises(Mismatch, match=r"the record contains a feature_list of 3 steps"):
            batches(dataset, odd=field)
    with pytest.raises(Mismatch, match="step 0 has 2 values, but a step must be exactly one item"):
        batches(dataset, pair=penstock.ragged("int64"))
    with pytest.raises(Mismatch, match=r"step 0 is not exactly one byte string; .* use list\(raw_list"):
        batches(dataset, several=penstock.raw_list())


def test_a_record_of_empty_steps_alone_is_unsupported_by_default(tmp_path):
    dataset = write(tmp_path, sequence_example({}, empty=[[]]))
    with pytest.raises(Unsupported, match=r"\(all steps are empty\) is not supported by typed fields"):
        dataset.schema()
