# SPDX-License-Identifier: Apache-2.0
"""Tests kinds of fields: ragged values, raw bytes, records of one size and windows of tokens."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import _native
from penstock.errors import ConfigError, Corrupt, Mismatch


def lengths(folder, per_object=4):
    """Writes objects of records: sample i has i % 5 tokens of value i, and a text of i letters."""
    folder.mkdir()
    sample = 0
    for number in range(3):
        content = b""
        for _ in range(per_object):
            content += _native.encode_tfrecord(
                {"ids": _ints(sample), "name": b"x" * sample, "x": np.full(2, sample, "<i2").tobytes()}
            )
            sample += 1
        (folder / f"part-{number}.tfrecord").write_bytes(content)
    return folder


def _ints(sample):
    return np.full(sample % 5, sample, "<f4")


@pytest.mark.parametrize("world", [1, 3])
def test_ragged_and_raw_fields_give_what_each_sample_holds(tmp_path, world):
    opened = (
        penstock.open(lengths(tmp_path / "d"), records_per_object=4)
        .fields(
            ids=penstock.ragged("float32"), text=penstock.raw().of("nothing;name"), x=penstock.tensor("int16", (2,))
        )
        .shuffle(seed=3)
    )
    seen = []
    for rank in range(world):
        for batch in penstock.Loader(opened, global_batch=5, rank=rank, world=world):
            values, offsets = batch["ids"]
            assert offsets.dtype == np.int64
            assert len(offsets) == len(batch["x"]) + 1 == len(batch["text"]) + 1
            for row, sample in enumerate(batch["x"][:, 0].tolist()):
                assert values[offsets[row] : offsets[row + 1]].tolist() == [sample] * (sample % 5)
                assert bytes(batch["text"][row]) == b"x" * sample
                seen.append(sample)
    assert sorted(seen) == list(range(12))


def test_ragged_fields_reach_torch_as_tensors(tmp_path):
    import torch

    opened = penstock.open(lengths(tmp_path / "d"), records_per_object=4).fields(ids=penstock.ragged("float32"))
    batch = next(iter(penstock.torch.Loader(opened, batch_size=4)))
    assert isinstance(batch["ids"], penstock.Ragged)
    assert torch.equal(batch["ids"].offsets, torch.tensor([0, 0, 1, 3, 6]))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (penstock.tensor("int16", (3,)).of("x"), r"4 bytes"),
        (penstock.tensor("int64", ()).of("ids"), r"float_list"),
        (penstock.ragged("int64").of("ids"), r"float_list"),
        (penstock.raw().of("ids"), r"expects bytes, but the record contains float_list of 0 values"),
        (penstock.raw().of("z"), r"read from `z`, but the record contains .*`x` \(bytes_list of 1 value of 4 bytes\)"),
    ],
)
def test_field_that_does_not_fit_says_what_the_record_holds(tmp_path, spec, words):
    opened = penstock.open(lengths(tmp_path / "d"), records_per_object=4).fields(f=spec)
    with pytest.raises(Mismatch, match=rf"part-0.*record 0.*`f`.*{words}") as caught:
        next(iter(penstock.Loader(opened, batch_size=1)))
    assert isinstance(caught.value, Corrupt)
    assert "schema()" in caught.value.hint


def test_fixed_records_are_counted_by_size_and_read_by_column(tmp_path):
    folder = tmp_path / "cifar"
    folder.mkdir()
    for number in range(3):
        rows = [bytes([10 * number + row]) + bytes([row]) * 12 for row in range(4)]
        (folder / f"data_{number}.bin").write_bytes(b"head" + b"".join(rows))
    kind = penstock.formats.fixed(
        header_bytes=4, label=penstock.tensor("uint8", ()), image=penstock.tensor("uint8", (3, 2, 2))
    )
    opened = penstock.open(folder, format=kind)
    assert (opened.samples, opened.counted().rung, opened.format) == (12, "format", "fixed")
    batch = next(iter(penstock.Loader(opened, batch_size=6)))
    assert batch["label"].tolist() == [0, 1, 2, 3, 10, 11]
    assert batch["image"].shape == (6, 3, 2, 2)
    assert (batch["image"][:, 0, 0, 0] == [0, 1, 2, 3, 0, 1]).all()
    (folder / "data_1.bin").write_bytes(b"headx")
    with pytest.raises(Corrupt, match=r"data_1\.bin has 5 bytes, but needs .* and whole records of 13 bytes"):
        penstock.open(folder, format=kind).samples  # noqa: B018


def test_tokens_are_windows_that_may_overlap_and_widen(tmp_path):
    file = tmp_path / "train.bin"
    np.arange(1000, dtype="<u2").tofile(file)
    opened = penstock.open(file, format=penstock.formats.tokens(65, stride=64))
    assert opened.samples == (1000 - 65) // 64 + 1
    narrow = next(iter(penstock.Loader(opened, batch_size=2)))["tokens"]
    assert narrow.dtype == np.uint16
    wide = next(iter(penstock.Loader(opened.fields(tokens=penstock.tensor("int64", (65,))), batch_size=2)))["tokens"]
    assert wide.dtype == np.int64
    assert wide.tolist() == narrow.tolist() == [list(range(65)), list(range(64, 129))]


def test_format_that_is_not_known_or_needs_facts_is_refused(tmp_path):
    for name in ("tokens", "orc"):
        with pytest.raises(ConfigError, match=rf"`{name}`"):
            penstock.open(tmp_path, format=name)
    with pytest.raises(ConfigError, match="at least one column"):
        penstock.formats.fixed()
    with pytest.raises(ConfigError, match="length and stride must be at least 1"):
        penstock.formats.tokens(0)


@pytest.mark.parametrize("dtype", ["bool", "uint32", "uint64"])
def test_element_types_beyond_the_first_nine_reach_both_doors(tmp_path, dtype):
    import torch

    values = np.arange(6).reshape(3, 2).astype(dtype)
    (tmp_path / "a.bin").write_bytes(values.tobytes())
    opened = penstock.open(tmp_path, format=penstock.formats.fixed(x=penstock.tensor(dtype, (2,))))
    (batch,) = penstock.Loader(opened, batch_size=3)
    assert batch["x"].dtype == values.dtype
    assert (batch["x"] == values).all()
    (batch,) = penstock.torch.Loader(opened, batch_size=3)
    assert torch.equal(batch["x"], torch.from_numpy(values))
