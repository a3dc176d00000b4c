# SPDX-License-Identifier: Apache-2.0
"""Files of tokens as nanoGPT and Megatron-LM write them, and unsigned integers of 32 and 64 bits."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def megatron(
    stem: Path, sequences: Sequence[Sequence[float]], bounds: Sequence[int] | None = None, dtype: str = "uint16"
) -> bytes:
    """Writes `stem`.bin and `stem`.idx as Megatron-LM's IndexedDatasetBuilder does, and returns the index."""
    arrays = [np.array(sequence, dtype) for sequence in sequences]
    stem.with_suffix(".bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    lengths = np.array([len(array) for array in arrays], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) * np.dtype(dtype).itemsize
    documents = np.array(range(len(arrays) + 1) if bounds is None else bounds, np.int64)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(arrays), len(documents))
    index += lengths.tobytes() + offsets[: len(arrays)].tobytes() + documents.tobytes()
    stem.with_suffix(".idx").write_bytes(index)
    return index


def documents(dataset: penstock.Dataset) -> list[list[float]]:
    return [
        row.tolist()
        for batch in penstock.Loader(dataset, batch_size=4)
        for row in np.split(batch["tokens"].values, batch["tokens"].offsets[1:-1])
    ]


@pytest.mark.parametrize("dtype", CODES)
def test_megatron_documents_are_those_of_the_index(tmp_path: Path, dtype: str) -> None:
    sequences = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    megatron(tmp_path / "a", sequences, [0, 1, 3, 4], dtype)
    megatron(tmp_path / "b", [[11], [12, 13]], dtype=dtype)
    dataset = penstock.open(tmp_path, format="megatron")
    assert (dataset.format, dataset.samples, dataset.rung) == ("megatron", 5, "existing")
    assert str(dataset.schema()["tokens"]) == f"ragged {dtype} []"
    assert documents(dataset) == [[1, 2, 3], [4, 5, 6], [7, 8, 9, 10], [11], [12, 13]]
    assert sorted(documents(dataset.shuffle(1))) == sorted(documents(dataset))
    # One file by name: its index is not in the listing.
    assert documents(penstock.open(tmp_path / "b.bin", format="megatron")) == [[11], [12, 13]]


def test_megatron_windows_cross_documents_and_take_their_type_from_the_index(tmp_path: Path, caplog) -> None:
    megatron(tmp_path / "a", [[1, 2, 0], [3, 0], [4, 5, 6, 0], [7]], dtype="int32")
    dataset = penstock.open(tmp_path, format=penstock.formats.megatron(length=5, stride=4, eos=0))
    (batch,) = penstock.Loader(dataset, batch_size=8)
    assert batch["tokens"].dtype == np.int32
    assert batch["tokens"].tolist() == [[1, 2, 0, 3, 0], [0, 4, 5, 6, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2], [1, 2, 2, 2, 2]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]
    assert not caplog.records
    with pytest.raises(ConfigError, match="stride and eos require length"):
        penstock.formats.megatron(eos=0)


def test_megatron_index_that_does_not_match_is_refused(tmp_path: Path) -> None:
    index = megatron(tmp_path / "a", [[1, 2, 3], [4, 5]])
    (tmp_path / "a.bin").write_bytes(bytes(8))
    with pytest.raises(Corrupt, match=r"a\.bin cannot be divided .* because no index \(\.idx\) matches it"):
        documents(penstock.open(tmp_path, format="megatron"))
    (tmp_path / "a.idx").write_bytes(b"TNTIDX\0\0" + index)
    with pytest.raises(PenstockError, match=r"the legacy index .*a\.idx"):
        penstock.open(tmp_path, format="megatron")
    (tmp_path / "a.idx").unlink()
    with pytest.raises(NotFound, match=r"a\.idx"):
        penstock.open(tmp_path, format="megatron")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 200))
def test_megatron_damaged_index_is_refused_or_reads_inside_the_file(tmp_path_factory, at, value, length):
    folder = tmp_path_factory.mktemp("idx")
    index = bytearray(megatron(folder / "a", [[1, 2], [3], [4, 5, 6]]))
    index[at % len(index)] = value
    (folder / "a.idx").write_bytes(index[: length or None])
    try:
        found = documents(penstock.open(folder, format="megatron"))
    except (PenstockError, ValueError):
        return
    assert all(len(document) <= 12 for document in found)  # the file has 12 bytes


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_nanogpt_windows_have_segments_of_documents(tmp_path: Path, dtype: str) -> None:
    big = np.iinfo(dtype).max
    np.array([1, big, 0, 2, 3, 0, 0, 4], dtype).tofile(tmp_path / "train.bin")
    dataset = penstock.open(tmp_path / "train.bin", format=penstock.formats.tokens(4, dtype=dtype, eos=0))
    (batch,) = penstock.Loader(dataset, batch_size=8)
    assert batch["tokens"].dtype == dtype
    assert batch["tokens"].tolist() == [[1, big, 0, 2], [3, 0, 0, 4]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2], [1, 1, 2, 3]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    plain = penstock.open(tmp_path / "train.bin", format=penstock.formats.tokens(4, dtype=dtype))
    assert list(next(iter(penstock.Loader(plain, batch_size=8)))) == ["tokens"]
    with pytest.raises(ConfigError, match="eos requires tokens of an integer type"):
        penstock.open(tmp_path / "train.bin", format=penstock.formats.tokens(4, dtype="float32", eos=0))


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.needs_torch
def test_unsigned_integers_reach_torch_unchanged(tmp_path: Path, dtype: str) -> None:
    import torch

    values = np.array([[0, np.iinfo(dtype).max], [1, 2**31]], dtype)
    (tmp_path / "a.bin").write_bytes(values.tobytes())
    declared = penstock.formats.fixed(x=penstock.tensor(dtype, (2,)))
    (batch,) = penstock.torch.Loader(penstock.open(tmp_path / "a.bin", format=declared), batch_size=2)
    assert batch["x"].dtype == getattr(torch, dtype)
    assert batch["x"].numpy().tolist() == values.tolist()
