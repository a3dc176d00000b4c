# SPDX-License-Identifier: Apache-2.0
"""Tests the iterable-style dataset: the order of a loader, epochs, workers of a DataLoader, and its states."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import DataLoader

import penstock
from penstock.errors import ConfigError
from penstock.feed import stream_dataset
from penstock.torch import MapDataset, StreamDataset

from . import mapped
from .conftest import batches, dataset

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


@pytest.fixture
def shuffled(made):
    return dataset(made([3] * 7)).shuffle(17)


def ids(batch):
    return [int(y) for y in batch["y"][:, 0]]


def rows_of_epoch(shuffled, epoch):
    loader = penstock.Loader(shuffled, batch_size=2)
    loader.set_epoch(epoch)
    return [row for batch in batches(loader) for row in batch]


def number(sample):
    return int(sample["y"][0])


def test_stream_dataset_in_a_data_loader_gives_the_batches_of_a_loader_and_the_next_epoch(shuffled):
    stream = StreamDataset(shuffled, batch_size=4)
    loader = DataLoader(stream, batch_size=4)
    want = penstock.Loader(shuffled, batch_size=4)
    first, second = batches(want), batches(want)
    assert [ids(batch) for batch in loader] == first
    assert [ids(batch) for batch in loader] == second != first
    stream.set_epoch(0)
    assert [ids(batch) for batch in loader] == first


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.system)])
def test_stream_dataset_with_workers_gives_each_sample_once_and_other_epochs(shuffled, start):
    workers = 2 if start == "fork" else 1
    loader = DataLoader(
        StreamDataset(shuffled, batch_size=2), batch_size=2, num_workers=workers, multiprocessing_context=start
    )
    epochs = [[row for batch in loader for row in ids(batch)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(21))] * 2
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("seed", [None, 5])
def test_stream_dataset_with_changing_numbers_of_workers_gives_each_sample_once_in_every_pass(shuffled, seed):
    stream = StreamDataset(shuffled, batch_size=2)
    next(iter(DataLoader(stream, batch_size=2)))  # an unfinished pass in this process only
    for epoch, workers in enumerate((2, 0, 2, 1, 3, 0, 3, 2, 2), start=1):
        if seed is not None:
            torch.manual_seed(seed)  # gives the workers of all these passes the same seed
        got = [row for batch in DataLoader(stream, batch_size=2, num_workers=workers) for row in ids(batch)]
        assert sorted(got) == list(range(21)), (epoch, workers)
        if workers == 0:
            assert got == rows_of_epoch(shuffled, epoch)


def test_stream_dataset_with_persistent_workers_goes_on_after_unfinished_passes(shuffled):
    stream = StreamDataset(shuffled, batch_size=2)
    loaders = [DataLoader(stream, batch_size=2, num_workers=n, persistent_workers=True) for n in (3, 2)]
    for loader in [*loaders, *loaders]:
        next(iter(loader))
        for _ in range(2):
            assert sorted(row for batch in loader for row in ids(batch)) == list(range(21))
    assert [number(sample) for sample in stream] == rows_of_epoch(shuffled, 12)


def test_stream_dataset_with_two_groups_at_one_place_of_the_table_keeps_their_passes_apart(shuffled):
    def place(seed, workers):
        torch.manual_seed(seed)
        return hash((torch.empty((), dtype=torch.int64).random_().item(), workers)) % stream_dataset._GROUPS

    other = next(seed for seed in range(1, 10_000) if place(seed, 2) == place(0, 3))
    stream = StreamDataset(shuffled, batch_size=2)
    loaders = [DataLoader(stream, batch_size=2, num_workers=n, persistent_workers=True) for n in (3, 2)]
    for number, seed in ((0, 0), (0, None), (1, other), (0, None), (0, None), (1, None)):
        if seed is not None:
            torch.manual_seed(seed)
        assert sorted(row for batch in loaders[number] for row in ids(batch)) == list(range(21))


def test_stream_dataset_read_twice_at_the_same_time_gives_each_sample_once_to_each_reader(shuffled):
    loader = DataLoader(StreamDataset(shuffled, batch_size=2), batch_size=2, num_workers=2)
    pairs = [(ids(one), ids(two)) for one, two in zip(loader, loader, strict=True)]
    for reader in (0, 1):
        assert sorted(row for pair in pairs for row in pair[reader]) == list(range(21))


def test_stream_dataset_of_several_ranks_gives_equally_many_samples(shuffled):
    ranks = [
        [number(sample) for sample in StreamDataset(shuffled, batch_size=3, rank=rank, world=2)] for rank in (0, 1)
    ]
    assert [len(rank) for rank in ranks] == [9, 9]
    assert len({*ranks[0], *ranks[1]}) == 18


def test_stream_dataset_resumes_after_every_sample(shuffled):
    whole = [number(sample) for sample in StreamDataset(shuffled, batch_size=4)]
    for count in range(22):
        stream = StreamDataset(shuffled, batch_size=4)
        walk = iter(stream)
        seen = [number(next(walk)) for _ in range(count)]
        state = json.loads(json.dumps(stream.state_dict()))
        assert len(json.dumps(state)) < 1000
        other = StreamDataset(shuffled, batch_size=4)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert seen + [number(sample) for sample in other] == whole
        assert len(list(other)) == 21  # the next epoch is whole
    stream = StreamDataset(shuffled, batch_size=4)
    start = stream.state_dict()
    assert start["loader"]["epoch"] == start["row"] == 0
    stream.load_state_dict(state)
    stream.set_epoch(0)  # as a loop over epochs does
    assert list(stream) == []
    stream.load_state_dict(state)
    stream.set_epoch(1)
    assert len(list(stream)) == 21


def test_stream_dataset_refuses_what_it_cannot_do(shuffled):
    state = StreamDataset(shuffled, batch_size=4).state_dict()
    with pytest.raises(ConfigError, match="state: batch_size is 4, but this dataset's batch_size is 5") as caught:
        StreamDataset(shuffled, batch_size=5).load_state_dict(state)
    assert "penstock.torch.Loader" in caught.value.hint
    with pytest.raises(ConfigError, match="state: `row` or `loader` is missing or invalid"):
        StreamDataset(shuffled, batch_size=4).load_state_dict({**state, "row": -1})
    with pytest.raises(ConfigError, match="collate: not supported"):
        StreamDataset(shuffled, batch_size=4, collate=list)
    with pytest.raises(ConfigError, match="epoch"):
        StreamDataset(shuffled, batch_size=4).set_epoch(-1)
    assert repr(StreamDataset(shuffled, batch_size=4, rank=1, world=2)).endswith("rank 1 of 2)")
    workers = StreamDataset(shuffled.map(mapped.plain, workers=1), batch_size=4)
    with pytest.raises(ConfigError, match="cannot start worker processes"):
        next(iter(DataLoader(workers, batch_size=4, num_workers=1)))
    plain = DataLoader(StreamDataset(shuffled.map(mapped.plain), batch_size=4), batch_size=None, num_workers=1)
    assert len(list(plain)) == 21


def test_map_dataset_state_keeps_the_epoch_and_refuses_another_dataset(made, shuffled):
    indexed = MapDataset(shuffled)
    indexed.set_epoch(3)
    state = json.loads(json.dumps(indexed.state_dict()))
    other = MapDataset(shuffled)
    other.load_state_dict(state)
    assert (other.epoch, other[0]["y"].tolist()) == (3, indexed[0]["y"].tolist())
    chosen = MapDataset(shuffled)
    chosen.set_epoch(5)
    chosen.load_state_dict(state)  # the caller's own choice stays
    assert chosen.epoch == 5
    with pytest.raises(ConfigError, match="seed is 17"):
        MapDataset(dataset(made([3] * 7)).shuffle(18)).load_state_dict(state)


def test_stream_dataset_state_that_workers_cannot_follow_is_refused(shuffled):
    stream = StreamDataset(shuffled, batch_size=4)
    samples = iter(stream)
    next(samples)
    again = StreamDataset(shuffled, batch_size=4)
    again.load_state_dict(stream.state_dict())
    with pytest.raises(ConfigError, match="is not the process that loaded the state"):
        list(DataLoader(again, batch_size=4, num_workers=1))


def test_stream_dataset_of_packed_documents_keeps_a_state_of_the_same_epoch(tmp_path):
    (tmp_path / "0.jsonl").write_text("\n".join(json.dumps({"ids": list(range(7))}) for _ in range(14)))
    packed = penstock.open(tmp_path).fields(ids=penstock.ragged("int64")).pack(4, fields="ids")
    stream = StreamDataset(packed, batch_size=2)
    samples = iter(stream)
    seen = [next(samples)["ids"].tolist() for _ in range(6)]
    again = StreamDataset(packed, batch_size=2)
    again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    again.set_epoch(0)
    whole = [sample["ids"].tolist() for sample in StreamDataset(packed, batch_size=2)]
    assert seen + [sample["ids"].tolist() for sample in again] == whole
    again.load_state_dict(stream.state_dict())
    again.set_epoch(3)
    assert again.state_dict()["row"] == 0
