# SPDX-License-Identifier: Apache-2.0
"""Tests states of a dataset that has more objects now: the old part of the epoch, then all objects; or an error."""

from __future__ import annotations

import json
import os

import pytest

import penstock
from penstock.errors import ConfigError
from tests.feed.conftest import batches, dataset, record, samples

GROWN = "finish-old-then-new"


def add(folder, name, first, count, age_s=0):
    path = folder / f"{name}.tfrecord"
    path.write_bytes(b"".join(record(first + at) for at in range(count)))
    if age_s:
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)


@pytest.fixture
def folder(tmp_path):
    """Four objects of 6, 5, 4 and 3 samples, an hour old."""
    first = 0
    for number, count in enumerate((6, 5, 4, 3)):
        add(tmp_path, f"m-{number}", first, count, age_s=3600)
        first += count
    return tmp_path


def stopped(folder, batches_done):
    """Run some batches of epoch 2, and return what they had and the state after them."""
    loader = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    loader.set_epoch(2)
    running = iter(loader)
    seen = [samples(next(running)) for _ in range(batches_done)]
    return seen, json.loads(json.dumps(loader.state_dict()))


def test_state_of_a_mixture_whose_part_grew_says_that_no_rule_applies(folder):
    state = penstock.Loader(penstock.mix({dataset(folder).shuffle(seed=3): 1}), batch_size=4).state_dict()
    add(folder, "z-new", 100, 7)
    loader = penstock.Loader(penstock.mix({dataset(folder).shuffle(seed=3): 1}), batch_size=4)
    with pytest.raises(ConfigError, match=r"18 samples then and 25 now \(\+7\)") as caught:
        loader.load_state_dict(state, grown=GROWN)
    assert caught.value.hint.startswith("a mixture cannot be resumed after its parts grew")


@pytest.mark.parametrize("name", ["z-new", "a-new"])  # behind the old objects by name, and before them
def test_state_of_a_grown_dataset_finishes_the_old_epoch_then_uses_all(folder, name):
    whole = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    whole.set_epoch(2)
    want = batches(whole)
    seen, state = stopped(folder, 2)
    add(folder, name, 100, 7)
    loader = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    loader.load_state_dict(state, grown=GROWN)
    running = iter(loader)
    seen.append(samples(next(running)))
    middle = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(middle)) < 1024
    seen += [samples(batch) for batch in running]
    assert seen == want
    assert (loader.epoch, len(loader)) == (3, 7)
    plain = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    plain.set_epoch(3)
    assert batches(loader) == batches(plain)
    # A state of the old epoch continues with the same rule, on a different number of ranks.
    rest = []
    for rank in range(2):
        again = penstock.Loader(dataset(folder).shuffle(seed=3), global_batch=4, rank=rank, world=2)
        again.load_state_dict(middle, grown=GROWN)
        rest.append(batches(again))
    assert [a + b for a, b in zip(*rest, strict=True)] == want[3:]


def test_state_of_a_grown_dataset_is_refused_with_both_numbers(folder):
    _, state = stopped(folder, 1)
    add(folder, "z", 100, 7)
    loader = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    with pytest.raises(
        ConfigError, match=r"4 objects then and 5 now \(\+1\), 18 samples then and 25 now \(\+7\)"
    ) as caught:
        loader.load_state_dict(state)
    assert f'grown="{GROWN}"' in caught.value.hint
    with pytest.raises(ConfigError, match="grown: 'maybe' is not one of refuse, finish-old-then-new"):
        loader.load_state_dict(state, grown="maybe")


def test_state_of_a_dataset_that_lost_or_changed_objects_is_refused_by_every_rule(folder):
    _, state = stopped(folder, 1)
    add(folder, "z", 100, 7)
    (folder / "m-1.tfrecord").unlink()
    loader = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    for rule in ("refuse", GROWN):
        with pytest.raises(ConfigError, match="4 objects then and now, 18 samples then and 20 now") as caught:
            loader.load_state_dict(state, grown=rule)
        assert "grown" not in caught.value.hint
    add(folder, "m-1", 50, 9)
    loader = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    with pytest.raises(ConfigError, match="4 objects then and 5 now"):
        loader.load_state_dict(state, grown=GROWN)


def test_state_of_an_unchanged_dataset_ignores_the_rule(folder):
    seen, state = stopped(folder, 2)
    loader = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    loader.load_state_dict(state, grown=GROWN)
    again = penstock.Loader(dataset(folder).shuffle(seed=3), batch_size=4)
    again.set_epoch(2)
    assert seen + batches(loader) == batches(again)
