# SPDX-License-Identifier: Apache-2.0
"""Tests padded fields: rectangular arrays and masks, in the batches of every adapter, and bad lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Mismatch

from .test_adapters import run
from .tfrecords import example, frame

TOKENS = penstock.ragged("int64")

JAX = """
import sys
import numpy as np
import jax
from jax.sharding import NamedSharding, PartitionSpec as P
import penstock as ps

tokens = ps.ragged("int32")
ds = ps.open(sys.argv[1])
(batch,) = ps.jax.Loader(ds.fields(tokens=tokens.padded(4, mask="m")), batch_size=2)
assert isinstance(batch["tokens"], jax.Array) and batch["m"].dtype == bool
assert np.asarray(batch["tokens"]).tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
assert np.asarray(batch["m"]).sum(axis=1).tolist() == [3, 1]
sharding = NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))
(batch,) = ps.jax.Loader(ds.fields(tokens=tokens.padded(4)), global_batch=2, sharding=sharding)
assert batch["tokens"].shape == (2, 4)
rule = ps.buckets("tokens", [2, 4], [1, 1])
by_length = ps.jax.Loader(ds.fields(tokens=tokens.padded("bucket")), batch_by=rule, sharding=sharding)
assert [np.asarray(batch["tokens"]).tolist() for batch in by_length] == [[[1, 2, 3, 0]], [[4, 0]]]
try:
    list(ps.jax.Loader(ds.fields(tokens=tokens.padded()), global_batch=2, sharding=sharding))
except ps.errors.ConfigError as error:
    assert "a sharded array has one shape" in str(error)
    print("ok")
"""


def write(path, rows):
    """One TFRecord file whose sample i has the tokens rows[i], and the id i."""
    path.write_bytes(b"".join(frame(example(tokens=row, id=[at])) for at, row in enumerate(rows)))
    return path


def opened(path, field):
    return penstock.open(path).fields(tokens=field, id=penstock.tensor("int64", ()))


def padded(rows, width, value=0):
    """The expected array and mask."""
    array = np.full((len(rows), width), value, dtype=np.int64)
    for at, row in enumerate(rows):
        array[at, : len(row)] = row
    return array, np.arange(width) < np.array([len(row) for row in rows])[:, None]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    size=st.integers(1, 5),
    multiple=st.integers(1, 9),
    value=st.integers(-(2**40), 2**40),
)
def test_padding_to_the_longest_gives_items_values_and_masks(tmp_path, lengths, size, multiple, value):
    rows = [list(range(1, length + 1)) for length in lengths]
    dataset = opened(
        write(tmp_path / "a.tfrecord", rows), TOKENS.padded(multiple_of=multiple, value=value, mask="tokens_mask")
    )
    for number, batch in enumerate(penstock.Loader(dataset, batch_size=size)):
        mine = rows[number * size : (number + 1) * size]
        longest = max(map(len, mine))
        array, mask = padded(mine, -(-longest // multiple) * multiple, value)
        assert (batch["tokens"].dtype, batch["tokens_mask"].dtype) == (np.int64, np.bool_)
        assert np.array_equal(batch["tokens"], array)
        assert np.array_equal(batch["tokens_mask"], mask)


def test_padding_to_a_length_refuses_or_cuts_longer_samples(tmp_path):
    rows = [[1, 2], [], [1, 2, 3, 4, 5]]
    path = write(tmp_path / "a.tfrecord", rows)
    with pytest.raises(
        Mismatch, match=r"a\.tfrecord record 2: field `tokens` has 5 items, but its row is padded to 4"
    ) as caught:
        list(penstock.Loader(opened(path, TOKENS.padded(4)), batch_size=3))
    assert "padded(truncate=True)" in str(caught.value.hint)
    (batch,) = penstock.Loader(opened(path, TOKENS.padded(4)), batch_size=3, on_error="skip")
    assert batch["id"].tolist() == [0, 1]
    (batch,) = penstock.Loader(opened(path, TOKENS.padded(4, mask="m", truncate=True)), batch_size=3)
    assert batch["tokens"].tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]]
    assert batch["m"].sum(axis=1).tolist() == [2, 0, 4]


def test_padding_keeps_item_shapes_and_fills_whole_elements(tmp_path):
    path = write(tmp_path / "a.tfrecord", [[1, 2, 3, 4], [5, 6]])
    (batch,) = penstock.Loader(opened(path, penstock.ragged("int64", (2,)).padded(value=258, mask="m")), batch_size=2)
    assert batch["tokens"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [258, 258]]]
    assert batch["m"].tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("indexed", [True, False])
def test_padding_of_absent_and_empty_samples_is_all_padding(tmp_path, indexed):
    (tmp_path / "a.tfrecord").write_bytes(frame(example(id=[0])) + frame(example(id=[1], tokens=[])))
    dataset = penstock.open(tmp_path / "a.tfrecord", indexed=indexed)
    dataset = dataset.fields(id=penstock.tensor("int64", ()), tokens=TOKENS.padded(3, value=7, mask="m"))
    (batch,) = penstock.Loader(dataset, batch_size=2)
    assert batch["tokens"].tolist() == [[7, 7, 7]] * 2
    assert not batch["m"].any()
    (batch,) = penstock.Loader(dataset.fields(tokens=TOKENS.padded(mask="m")), batch_size=2)
    assert batch["tokens"].shape == batch["m"].shape == (2, 0)


def test_padding_of_a_padded_tail_has_weights_and_repeats(tmp_path):
    dataset = opened(write(tmp_path / "a.tfrecord", [[1], [2, 2], [3]]), TOKENS.padded(mask="m"))
    *_, last = penstock.Loader(dataset, batch_size=2, tail="pad")
    assert (last["weight"].tolist(), last["tokens"].tolist()) == ([1.0, 0.0], [[3], [1]])


@pytest.mark.needs_torch
def test_padding_reaches_torch_and_map(tmp_path):
    rows = [[1, 2, 3], [4], []]
    path = write(tmp_path / "a.tfrecord", rows)
    array, mask = padded(rows, 4)
    dataset = opened(path, TOKENS.padded(multiple_of=4, mask="m"))
    import torch

    (batch,) = penstock.torch.Loader(dataset, batch_size=3)
    assert (batch["tokens"].dtype, batch["m"].dtype) == (torch.int64, torch.bool)
    assert np.array_equal(batch["tokens"].numpy(), array)
    assert np.array_equal(batch["m"].numpy(), mask)
    assert penstock.torch.MapDataset(dataset)[0]["tokens"].tolist() == [1, 2, 3, 0]
    (batch,) = penstock.Loader(
        dataset.map(lambda sample: {"n": sample["m"].sum(), "t": sample["tokens"]}), batch_size=3
    )
    assert (batch["n"].tolist(), batch["t"].tolist()) == ([3, 1, 0], array.tolist())


@pytest.mark.needs_adapters
def test_padding_reaches_jax(tmp_path):
    assert run(JAX, tmp_path, write(tmp_path / "a.tfrecord", [[1, 2, 3], [4]]), JAX_PLATFORMS="cpu") == "ok\n"


@pytest.mark.needs_tf
def test_padding_reaches_tensorflow(tmp_path):
    import tensorflow as tf

    rows = [[1, 2, 3], [4]]
    path = write(tmp_path / "a.tfrecord", rows)
    for field, width in ((TOKENS.padded(mask="m"), 3), (TOKENS.padded(4, mask="m"), 4)):
        made = penstock.tf.dataset(opened(path, field), batch=2)
        assert made.element_spec["m"] == tf.TensorSpec((None, None if width == 3 else 4), tf.bool)
        (batch,) = made
        array, mask = padded(rows, width)
        assert np.array_equal(batch["tokens"].numpy(), array)
        assert np.array_equal(batch["m"].numpy(), mask)
    rule = penstock.buckets("tokens", [1, 3], [1, 1])
    (short, long) = penstock.tf.dataset(opened(path, TOKENS.padded("bucket")), batch_by=rule)
    assert (long["tokens"].numpy().tolist(), short["tokens"].numpy().tolist()) == ([[4]], [[1, 2, 3]])


def test_padding_beyond_the_memory_budget_is_an_error(tmp_path):
    path = write(tmp_path / "a.tfrecord", [[1]] * 400)
    with pytest.raises(BudgetExceeded, match=r"field `tokens` \(padded to 100000 items in 200 rows\)"):
        list(penstock.Loader(opened(path, TOKENS.padded(100_000)), batch_size=200, memory_bytes=8 << 20))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"to": 0}, "to: must be longest, bucket or a length"),
        ({"to": "short"}, "to: must be longest, bucket"),
        ({"to": 8, "multiple_of": 8}, "multiple_of: must be at least 1, or exactly 1 if `to` is a number"),
        ({"multiple_of": 0}, "multiple_of: must be at least 1"),
        ({"value": 0.5}, "value: 0.5 is not a value of type int64"),
        ({"mask": ""}, "mask: must be the name of a column"),
    ],
)
def test_padding_with_bad_arguments_is_an_error(arguments, text):
    with pytest.raises(ConfigError, match=text):
        TOKENS.padded(**arguments)


def test_padding_with_a_mask_of_a_taken_name_is_an_error(tmp_path):
    path = write(tmp_path / "a.tfrecord", [[1]])
    with pytest.raises(ConfigError, match="two columns of a batch have the name `id`"):
        list(penstock.Loader(opened(path, TOKENS.padded(mask="id")), batch_size=1))
    with pytest.raises(ConfigError, match="`weight` is reserved"):
        list(penstock.Loader(opened(path, TOKENS.padded(mask="weight")), batch_size=1, tail="pad"))
    with pytest.raises(ConfigError, match="bucket"):
        list(penstock.Loader(opened(path, TOKENS.padded("bucket")), batch_size=1))
