# SPDX-License-Identifier: Apache-2.0
"""Tests the torch adapter: it keeps the order, does not copy, allows empty slices, and uses the process group."""

from __future__ import annotations

import gc

import pytest
import torch

import penstock
from penstock.errors import ConfigError

from .conftest import batches, dataset

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def shuffled(made):
    return dataset(made([1] * 20)).shuffle(17)


def test_torch_loader_gives_the_order_of_the_numpy_loader_without_a_copy(shuffled):
    loader = penstock.torch.Loader(shuffled, batch_size=6)
    kept = list(loader)
    want = batches(penstock.Loader(shuffled, batch_size=6))
    assert [[int(y) for y in batch["y"][:, 0]] for batch in kept] == want
    assert all(batch["x"].data_ptr() % 256 == 0 and batch["x"].dtype == torch.int16 for batch in kept)
    kept[0]["x"].fill_(-1)
    del loader
    gc.collect()
    assert [[int(x) for x in batch["x"][:, 0, 0]] for batch in kept[1:]] == want[1:]


def test_torch_loader_empty_slice_has_its_shape(shuffled):
    (batch,) = penstock.torch.Loader(shuffled, global_batch=40, rank=0, world=40, tail="ragged")
    assert batch["x"].shape == (0, 3, 2)
    assert batch["y"].dtype == torch.float32


def test_torch_loader_on_a_device_gives_copies(shuffled):
    loader = penstock.torch.Loader(shuffled, batch_size=6, device="cpu")
    assert loader.device == torch.device("cpu")
    assert len(list(loader)) == 4


@pytest.mark.parametrize("device", ["nope", "cpu:x", object()])
def test_torch_loader_unknown_device_is_a_config_error(shuffled, device):
    with pytest.raises(ConfigError, match=r"device: .* is not a torch device"):
        penstock.torch.Loader(shuffled, batch_size=6, device=device)


def test_torch_loader_takes_rank_and_world_from_the_process_group(shuffled, tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        loader = penstock.torch.Loader(shuffled, batch_size=4)
    finally:
        torch.distributed.destroy_process_group()
    assert (loader.rank, loader.world) == (0, 1)


def test_torch_loader_is_imported_as_a_module_too():
    from penstock.torch import Loader

    assert Loader is penstock.torch.Loader


def rows(batch):
    return [int(y) for y in batch["y"][:, 0]]


def test_torch_loader_iterator_without_a_request_keeps_the_loaded_state_and_follows_set_epoch(shuffled):
    """Lightning makes iterators before it sets the epoch, and more than one after a state was loaded."""
    whole = penstock.torch.Loader(shuffled, batch_size=6)
    first, second = ([rows(batch) for batch in whole] for _ in range(2))
    loader = penstock.torch.Loader(shuffled, batch_size=6)
    walk = iter(loader)
    loader.set_epoch(1)
    assert [rows(batch) for batch in walk] == second
    loader.set_epoch(0)
    walk = iter(loader)
    assert rows(next(walk)) == first[0]
    state = loader.state_dict()
    loader.set_epoch(1)
    with pytest.raises(penstock.errors.ConfigError, match="set_epoch"):
        next(walk)
    loader.load_state_dict(state)
    kept = [iter(loader), iter(loader)]
    with pytest.raises(penstock.errors.ConfigError, match="newer iterator"):
        next(kept[0])
    assert [rows(batch) for batch in kept[1]] == first[1:]
    assert [rows(batch) for batch in loader] == second


def test_torch_loader_follows_a_trainers_epochs_relative_to_a_loaded_state(shuffled):
    loader = penstock.torch.Loader(shuffled, batch_size=6)
    set_epoch = loader.batch_sampler.sampler.set_epoch
    walk = iter(loader)
    set_epoch(2)
    assert (len(next(walk)["y"]), loader.epoch) == (6, 2)
    state = {**loader.state_dict(), "epoch": 0}
    loader.load_state_dict(state)
    walk = iter(loader)
    set_epoch(1)  # the trainer counts the epoch of the state as complete
    assert (loader.epoch, len(list(walk))) == (0, 3)
    set_epoch(2)
    assert loader.epoch == 1
    loader.load_state_dict({**state, "cursor": 20})
    walk = iter(loader)
    set_epoch(1)  # after the last batch of epoch 0
    assert (loader.epoch, len(list(walk))) == (1, 4)
    unindexed = penstock.torch.Loader(dataset(shuffled.url, indexed=False), batch_size=6)
    assert not hasattr(unindexed, "batch_sampler")
