# SPDX-License-Identifier: Apache-2.0
"""Tests that raw fields are `bytes`, so that collating, pickling, hashing and parsing work on them."""

from __future__ import annotations

import copy
import json
import pickle
import tarfile
from io import BytesIO

import pytest
import torch

import penstock
from tests.feed import mapped

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def captions(tmp_path):
    """Samples of one JSON text each; the texts have different lengths, the keys have the same length."""
    with tarfile.open(tmp_path / "captions.tar", "w") as tar:
        for number in range(4):
            content = json.dumps({"caption": "x" * number}).encode()
            member = tarfile.TarInfo(f"{number}.json")
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return penstock.open(tmp_path / "captions.tar")


WANT = [json.dumps({"caption": "x" * number}).encode() for number in range(4)]


def test_raw_values_of_a_loader_are_bytes(captions):
    for loader in (penstock.Loader, penstock.torch.Loader):
        (batch,) = loader(captions, batch_size=4)
        assert batch["json"] == WANT
        assert {type(value) for value in batch["json"] + batch["__key__"]} == {bytes}
        assert [json.loads(value)["caption"] for value in batch["json"]] == ["", "x", "xx", "xxx"]
        assert len({*batch["json"]}) == 4
        assert pickle.loads(pickle.dumps(batch)) == copy.deepcopy(batch) == batch


def test_raw_values_of_a_map_dataset_collate_as_lists(captions):
    (batch,) = torch.utils.data.DataLoader(penstock.torch.MapDataset(captions), batch_size=4)
    assert batch["json"] == WANT
    assert [len(key) for key in batch["__key__"]] == [len(batch["__key__"][0])] * 4
    assert {type(value) for value in batch["json"] + batch["__key__"]} == {bytes}
    assert (
        next(iter(torch.utils.data.DataLoader(penstock.torch.MapDataset(captions), batch_size=None)))["json"] == WANT[0]
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_raw_values_of_a_map_dataset_pass_through_data_workers(captions, method):
    """A sample that cannot be pickled ends the worker's feeder thread, and the main process would wait for ever."""
    (batch,) = torch.utils.data.DataLoader(
        penstock.torch.MapDataset(captions),
        batch_size=4,
        collate_fn=list,
        num_workers=1,
        multiprocessing_context=method,
        timeout=60,
    )
    assert [sample["json"] for sample in batch] == WANT


@pytest.mark.parametrize("workers", [0, 1])
def test_raw_values_in_a_mapped_sample_are_bytes(captions, workers):
    ds = captions.map(mapped.parses, workers)
    (batch,) = penstock.Loader(ds, batch_size=4)
    assert batch["caption"] == ["", "x", "xx", "xxx"]
    assert {type(value) for value in batch["json"]} == {bytes}
    if not workers:
        sample = penstock.torch.MapDataset(ds)[2]
        assert (sample["caption"], sample["json"]) == ("xx", WANT[2])
