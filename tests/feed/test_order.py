# SPDX-License-Identifier: Apache-2.0
"""Tests the order guarantee: each sample is delivered once, in a sequence that does not depend on how it is read.

The sequence is the same for any ranks, batch sizes, paths and restarts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock

from .conftest import batches, dataset, samples, write
from .sequences import check_one_sequence, flat, merged

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("order")

    def folder(counts: list[int], codec: str) -> Path:
        place = root / f"{'-'.join(map(str, counts))}.{codec}"
        return place if place.exists() else write(place, counts, codec)

    return folder


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=COUNTS,
    codec=st.sampled_from(["gzip", "none"]),
    seed=st.integers(0, 2**64 - 1),
    window=st.none() | st.integers(1, 5),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
    stop=st.integers(0, 12),
    later=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    epoch=st.integers(0, 5),
)
def test_prop_any_ranks_and_any_restart_give_one_sequence(
    folders, counts, codec, seed, window, batch, world, stop, later, epoch
):
    shuffled = dataset(folders(counts, codec)).shuffle(seed, window)
    found = check_one_sequence(shuffled, batch, world, stop, later, epoch)
    assert sorted(found) == list(range(sum(counts)))


@pytest.mark.parametrize("tail", ["ragged", "drop", "pad"])
def test_tail_policy_says_what_becomes_of_the_last_samples(made, tail):
    shuffled = dataset(made([1] * 11)).shuffle(3)
    reference = flat(batches(penstock.Loader(shuffled, global_batch=1)))
    parts = []
    for rank in range(2):
        loader = penstock.Loader(shuffled, batch_size=2, rank=rank, world=2, tail=tail)
        got = list(loader)
        assert len(got) == len(loader) == (2 if tail == "drop" else 3)
        parts.append([samples(batch) for batch in got])
        if tail == "pad":
            weights = [batch["weight"].tolist() for batch in got]
            assert weights == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0] if rank == 0 else [1.0, 0.0]]
    want = {"ragged": reference, "drop": reference[:8], "pad": [*reference, reference[0]]}[tail]
    assert flat(merged(parts)) == want


def test_more_ranks_than_samples_all_make_equal_steps(made):
    shuffled = dataset(made([1] * 3)).shuffle(3)
    parts = [batches(penstock.Loader(shuffled, global_batch=8, rank=rank, world=8)) for rank in range(8)]
    assert [len(part) for part in parts] == [1] * 8
    assert sorted(flat(merged(parts))) == [0, 1, 2]


def test_order_is_of_storage_without_a_shuffle(made):
    assert batches(penstock.Loader(dataset(made([2, 1, 3])), batch_size=4, rank=0, world=1)) == [[0, 1, 2, 3], [4, 5]]


def test_order_differs_between_epochs_and_seeds_and_is_the_same_on_all_paths(made):
    gz, plain = made([1] * 24), made([1] * 24, codec="none", name="plain")

    def order(folder: Path, seed: int, epoch: int) -> list[list[int]]:
        loader = penstock.Loader(dataset(folder).shuffle(seed), batch_size=5)
        loader.set_epoch(epoch)
        return batches(loader)

    assert order(gz, 1, 0) == order(plain, 1, 0)
    assert dataset(gz).fingerprint == dataset(plain).fingerprint
    assert len({str(order(gz, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
