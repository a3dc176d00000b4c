# SPDX-License-Identifier: Apache-2.0
"""Tests epochs of a MapDataset: each epoch has new augmentation, in any kind of worker.

Also tests the warning if no epoch is ever set.
"""

from __future__ import annotations

import copy
import logging
import pickle

import numpy as np
import pytest
import torch

import penstock
from tests.feed import mapped

from .conftest import dataset
from .test_formats import gradient

pytestmark = pytest.mark.needs_torch

SAMPLES = 24
RANDOM = penstock.image(16, crop="random", flip=True)


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(SAMPLES):
        (tmp_path / "pictures" / f"{number:02d}.png").write_bytes(gradient())
    return penstock.open(tmp_path / "pictures")


def of_loader(ds, epoch):
    """All samples of an epoch, as a Loader delivers them."""
    loader = penstock.Loader(ds, batch_size=ds.samples, rank=0, world=1)
    loader.set_epoch(epoch)
    (batch,) = loader
    return batch["image"]


def of_map_dataset(ds, epoch):
    ds.set_epoch(epoch)
    return np.stack([sample["image"].numpy() for sample in ds.__getitems__(range(len(ds)))])


def test_map_dataset_gives_the_loaders_samples_and_fresh_crops_each_epoch(pictures):
    ds = pictures.fields(image=RANDOM)
    shaped = [ds, ds.shuffle(3), ds.shuffle(3).take(10), ds.take(8).repeat(2), penstock.mix({ds: 2, ds.shuffle(1): 1})]
    for each in shaped:
        indexed = penstock.torch.MapDataset(each)
        seen = [of_map_dataset(indexed, epoch) for epoch in range(3)]
        for epoch in range(3):
            assert (seen[epoch] == of_loader(each, epoch)).all()
        assert not (seen[0] == seen[1]).all()
        assert not (seen[1] == seen[2]).all()
    assert len({row.tobytes() for row in seen[0]}) > SAMPLES // 2


def test_map_dataset_refuses_a_negative_epoch(pictures):
    with pytest.raises(penstock.errors.ConfigError, match="epoch: -1"):
        penstock.torch.MapDataset(pictures).set_epoch(-1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_set_epoch_reaches_persistent_workers(pictures, method, is_shuffled):
    ds = pictures.fields(image=RANDOM)
    ds = ds.shuffle(seed=1) if is_shuffled else ds
    indexed = penstock.torch.MapDataset(ds)
    loader = torch.utils.data.DataLoader(
        indexed,
        batch_size=8,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        timeout=60,
    )
    for epoch in (0, 1, 5):
        indexed.set_epoch(epoch)
        got = np.concatenate([batch["image"].numpy() for batch in loader])
        assert (got == of_loader(ds, epoch)).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("copied", [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy])
def test_copy_of_a_map_dataset_has_an_epoch_of_its_own_that_its_workers_share(pictures, copied):
    ds = pictures.fields(image=RANDOM)
    indexed = penstock.torch.MapDataset(ds)
    indexed.set_epoch(3)
    other = copied(indexed)
    assert other.epoch == 3
    loader = torch.utils.data.DataLoader(
        other, batch_size=SAMPLES, num_workers=1, persistent_workers=True, multiprocessing_context="fork", timeout=60
    )
    for epoch in (3, 4):
        other.set_epoch(epoch)
        (batch,) = loader
        assert (batch["image"].numpy() == of_loader(ds, epoch)).all()
    assert indexed.epoch == 3


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "Call set_epoch(n)" in record.getMessage()]


def two_passes(indexed, *, sets_epoch=False):
    for epoch in range(2):
        if sets_epoch:
            indexed.set_epoch(epoch)
        sampler = torch.utils.data.DistributedSampler(indexed, num_replicas=1, rank=0)
        sampler.set_epoch(epoch)
        for _ in torch.utils.data.DataLoader(indexed, batch_size=4, sampler=sampler):
            pass


def test_second_pass_of_random_crops_without_set_epoch_warns_once(pictures, caplog):
    indexed = penstock.torch.MapDataset(pictures.fields(image=RANDOM))
    assert indexed[0]["image"].shape == indexed[0]["image"].shape  # reading one sample does not count as a pass
    with caplog.at_level(logging.WARNING):
        for _ in torch.utils.data.DataLoader(indexed, batch_size=4, shuffle=True):
            pass
        assert warnings_of(caplog) == []
        two_passes(indexed)
    (warning,) = warnings_of(caplog)
    assert "pictures" in warning
    assert "epoch 0" in warning


@pytest.mark.parametrize(
    ("function", "warns"),
    [(mapped.plain, False), (mapped.seeded, True), (mapped.unseeded, True), (mapped.draws_by_torch, True)],
)
def test_second_pass_of_a_map_warns_if_its_function_is_random(made, caplog, function, warns):
    indexed = penstock.torch.MapDataset(dataset(made([2] * 12)).map(function))
    with caplog.at_level(logging.WARNING):
        two_passes(indexed)
    assert len(warnings_of(caplog)) == warns


def test_second_pass_is_silent_if_the_epoch_is_set_or_nothing_is_random(pictures, caplog):
    with caplog.at_level(logging.WARNING):
        two_passes(penstock.torch.MapDataset(pictures.fields(image=RANDOM)), sets_epoch=True)
        two_passes(penstock.torch.MapDataset(pictures.fields(image=penstock.image(16, flip=1.0))))
    assert warnings_of(caplog) == []


def test_second_pass_is_noticed_over_all_workers(pictures, capfd):
    indexed = penstock.torch.MapDataset(pictures.fields(image=RANDOM))
    loader = torch.utils.data.DataLoader(
        indexed, batch_size=4, num_workers=2, multiprocessing_context="spawn", timeout=60
    )
    assert len(list(loader)) == SAMPLES // 4
    assert "set_epoch" not in capfd.readouterr().err
    assert len(list(loader)) == SAMPLES // 4  # new worker processes
    assert "Call set_epoch(n)" in capfd.readouterr().err
