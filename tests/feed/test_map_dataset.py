# SPDX-License-Identifier: Apache-2.0
"""Tests `MapDataset` in torch's own DataLoader, with any start method of workers and any sampler."""

from __future__ import annotations

import pickle

import pytest
import torch

import penstock
from tests.feed import mapped

from .conftest import batches, dataset

pytestmark = pytest.mark.needs_torch


def ids(batch) -> list[int]:
    return [int(value) for value in batch["y"][:, 0]]


def test_map_dataset_gives_samples_by_index(made):
    plain = dataset(made([3, 1, 2] * 2))
    mapped_set = penstock.torch.MapDataset(plain)
    assert len(mapped_set) == 12
    assert [int(mapped_set[index]["y"][0]) for index in (0, 11, -1, -12)] == [0, 11, 11, 0]
    assert [int(sample["y"][0]) for sample in mapped_set.__getitems__([7, 7, 0, 3])] == [7, 7, 0, 3]
    assert mapped_set[4]["x"].dtype == torch.int16
    for bad in (12, -13):
        with pytest.raises(IndexError):
            mapped_set[bad]
    shuffled = plain.shuffle(3)
    order = penstock.torch.MapDataset(shuffled)
    order.set_epoch(2)
    loader = penstock.Loader(shuffled, batch_size=12)
    loader.set_epoch(2)
    assert [[int(sample["y"][0]) for sample in order.__getitems__(range(12))]] == batches(loader)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_map_dataset_feeds_a_data_loader_after_it_was_used_here(made, method):
    mapped_set = penstock.torch.MapDataset(dataset(made([2] * 10)))
    assert int(mapped_set[3]["y"][0]) == 3  # starts threads and a runtime before the workers start
    loader = torch.utils.data.DataLoader(
        mapped_set, batch_size=6, num_workers=2, multiprocessing_context=method, timeout=60
    )
    assert [ids(batch) for batch in loader] == [[*range(6)], [*range(6, 12)], [*range(12, 18)], [18, 19]]


def test_map_dataset_works_with_a_distributed_sampler_and_a_map(made):
    mapped_set = penstock.torch.MapDataset(dataset(made([2] * 10)).map(mapped.seeded))
    seen = {}
    for rank in range(2):
        sampler = torch.utils.data.DistributedSampler(mapped_set, num_replicas=2, rank=rank, seed=4)
        for batch in torch.utils.data.DataLoader(mapped_set, batch_size=4, sampler=sampler):
            seen.update(zip(batch["y"].tolist(), batch["draw"].tolist(), strict=True))
    assert sorted(seen) == list(range(20))
    assert len(set(seen.values())) == 20
    whole = next(iter(penstock.Loader(dataset(mapped_set.dataset.url).map(mapped.seeded), batch_size=20)))
    assert seen == dict(zip(whole["y"].tolist(), whole["draw"].tolist(), strict=True))


def test_map_dataset_pickles_and_names_a_failing_sample(made):
    mapped_set = penstock.torch.MapDataset(dataset(made([1] * 9)).map(mapped.raises_at_7))
    copy = pickle.loads(pickle.dumps(mapped_set))
    assert int(copy[6]["y"]) == 6
    with pytest.raises(penstock.errors.MapFailed, match="part-0007"):
        copy[7]


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["itself", "wrapped"])
def test_loader_inside_a_data_loader_is_refused_by_name_of_what_to_use(made, kind):
    loader = penstock.torch.Loader(dataset(made([1] * 4)), batch_size=2)
    inside = loader if kind == "itself" else Wrapped(loader)
    with pytest.raises(penstock.errors.Unsupported, match="MapDataset"):
        list(torch.utils.data.DataLoader(inside, batch_size=None, num_workers=1, timeout=60))
