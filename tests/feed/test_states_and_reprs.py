# SPDX-License-Identifier: Apache-2.0
"""Tests a loader's repr, its errors for a state of another dataset, and the default of `tail`."""

from __future__ import annotations

import functools
import logging

import numpy as np
import pytest

import penstock
from tests.feed import mapped

from .conftest import dataset, write


def test_state_of_a_grown_dataset_has_both_counts_and_a_hint(made, tmp_path):
    folder = made([2] * 10)
    state = penstock.Loader(dataset(folder).shuffle(1), batch_size=2).state_dict()
    write(folder, [2] * 12)
    grown = penstock.Loader(dataset(folder).shuffle(1), batch_size=2)
    with pytest.raises(penstock.errors.ConfigError, match=r"20 samples then and 24 now \(\+4\)") as caught:
        grown.load_state_dict(state)
    assert "finish-old-then-new" in caught.value.hint
    other = penstock.Loader(dataset(write(tmp_path / "other", [4] * 5)).shuffle(1), batch_size=2)
    with pytest.raises(
        penstock.errors.ConfigError,
        match="20 samples then and now; the objects differ, or the parts or weights of a mixture differ",
    ):
        other.load_state_dict(state)
    with pytest.raises(penstock.errors.ConfigError, match="seed is 1, but this loader's seed is 2") as caught:
        penstock.Loader(dataset(write(tmp_path / "again", [2] * 10)).shuffle(2), batch_size=2).load_state_dict(state)
    assert "shuffle()" in caught.value.hint


def test_state_is_valid_for_a_dataset_that_was_moved(made, tmp_path):
    folder = made([2] * 10)
    loader = penstock.Loader(dataset(folder).shuffle(1), batch_size=3)
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    moved = penstock.Loader(dataset(write(tmp_path / "moved", [2] * 10)).shuffle(1), batch_size=3)
    moved.load_state_dict(state)
    rest = [batch["x"].tolist() for batch in moved]
    assert rest == [batch["x"].tolist() for batch in running]
    assert len(rest) == 6


def test_reprs_show_maps_loaders_and_schemas(made):
    ds = dataset(made([2] * 3)).shuffle(4).take(5)
    shaped = ds.map(mapped.plain, workers=2).map(functools.partial(mapped.waits_for_file, None))
    assert "take 5, map plain in 2 workers, map functools.partial(" in repr(shaped)
    assert "0.5: Dataset(" in repr(penstock.mix({ds: 1, ds.take(3): 1}).map(mapped.plain))
    assert repr(penstock.mix({ds: 1}).map(mapped.plain)).endswith(", map plain)")
    loader = penstock.Loader(ds, global_batch=4, rank=1, world=2)
    assert repr(loader) == f"Loader({ds!r}, global batch 4, rank 1 of 2, tail ragged, epoch 0)"
    schema = penstock.open(ds.url).schema()
    assert repr(schema) == str(schema)
    assert "float32 [4]" in repr(schema)


@pytest.mark.needs_torch
def test_map_dataset_shows_its_dataset_and_epoch(made):
    indexed = penstock.torch.MapDataset(dataset(made([2])))
    indexed.set_epoch(3)
    assert repr(indexed) == f"penstock.torch.MapDataset({indexed.dataset!r}, epoch 3)"


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "Set tail=" in record.getMessage()]


@pytest.mark.needs_torch
def test_torch_loader_of_several_ranks_gives_no_rank_an_empty_batch_of_a_shuffled_dataset(made, caplog):
    plain = dataset(made([2] * 10))
    shuffled = plain.shuffle(1)
    with caplog.at_level(logging.WARNING):
        for world, ds, want in (
            (1, shuffled, "ragged"),
            (4, shuffled, "drop"),
            (4, penstock.mix({shuffled: 1}), "drop"),
        ):
            ranks = [penstock.torch.Loader(ds, global_batch=9, rank=rank, world=world) for rank in range(world)]
            assert {loader.tail for loader in ranks} == {want}
            sizes = [[len(batch["y"]) for batch in loader] for loader in ranks]
            assert {len(each) for each in sizes} == {3 if want == "ragged" else 2}
            assert min(min(each) for each in sizes) > 0
        assert penstock.torch.Loader(shuffled, global_batch=9, rank=0, world=4, on_error="skip").tail == "ragged"
        assert penstock.torch.Loader(shuffled, global_batch=9, rank=0, world=4, tail="ragged").tail == "ragged"
        assert penstock.Loader(shuffled, global_batch=9, rank=0, world=4).tail == "ragged"
    assert warnings_of(caplog) == []


@pytest.mark.needs_torch
def test_torch_loader_warns_of_samples_that_are_left_out(made, caplog):
    plain = dataset(made([2] * 10))
    assert plain.samples == 20  # a first epoch that starts before the counts cannot warn
    with caplog.at_level(logging.WARNING):
        ranks = [penstock.torch.Loader(plain, global_batch=9, rank=rank, world=4) for rank in range(4)]
        sizes = np.array([[len(batch["y"]) for batch in loader] for loader in ranks])
        assert sizes.shape == (4, 2)
        assert (sizes.sum(), sizes.min()) == (18, 2)
        (warning,) = warnings_of(caplog)
        assert "the last 2 of 20 samples are left out, because they are fewer than the 4 ranks" in warning
        ragged = [
            len(batch["y"]) for batch in penstock.torch.Loader(plain, global_batch=9, rank=0, world=4, tail="ragged")
        ]
        assert len(ragged) == 3
        list(penstock.torch.Loader(plain, global_batch=20, rank=0, world=4))
        assert len(warnings_of(caplog)) == 1
        assert list(penstock.torch.Loader(plain.shuffle(1), global_batch=24, rank=0, world=4)) == []
    assert "an epoch has no batch: 20 samples are fewer than the global batch of 24" in warnings_of(caplog)[1]


def test_loader_with_tail_drop_warns_once_of_an_epoch_without_a_batch(made, caplog):
    plain = dataset(made([2] * 10))
    for loader in (
        penstock.Loader(plain, batch_size=24, rank=0, world=1, tail="drop"),
        penstock.Loader(plain.shuffle(1), batch_size=6, rank=0, world=4, tail="drop"),
    ):
        caplog.clear()
        assert list(loader) == list(loader) == []
        (warning,) = caplog.messages
        assert "global batch 24" in warning
        assert 'epoch 0 had no batch, because tail="drop" leaves out a batch that is not full' in warning
        assert "the epoch has 20 samples" in warning
    caplog.clear()
    assert list(penstock.Loader(plain, batch_size=6, rank=1, world=4, tail="drop")) == []  # the first rank warns
    one = penstock.Loader(plain, batch_size=20, rank=0, world=1, tail="drop")
    walk = iter(one)
    next(walk)
    again = penstock.Loader(plain, batch_size=20, rank=0, world=1, tail="drop")
    again.load_state_dict(one.state_dict())
    assert list(again) == []  # the state is at the end of the epoch
    assert list(penstock.Loader(plain.take(0), batch_size=4)) == []
    assert caplog.messages == []
    packed = plain.fields(x=penstock.tensor("int16", (3, 2))).pack(1000, fields="x", documents=4)
    assert list(penstock.Loader(packed, batch_size=1, rank=1, world=2, tail="drop")) == []
    assert "rank 1 of 2" in caplog.messages[0]
