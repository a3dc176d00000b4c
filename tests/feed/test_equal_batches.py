# SPDX-License-Identifier: Apache-2.0
"""Tests that by default, all ranks of a process group get equally many batches, and none an empty one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import penstock
from penstock.errors import Corrupt
from penstock.feed.equal_batches import EqualRun

from .conftest import batches, dataset, samples, write

pytestmark = pytest.mark.needs_torch


def of_ranks(ds, world, **arguments):
    return [penstock.torch.Loader(ds, rank=rank, world=world, **arguments) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", [None, 5])
def test_default_tail_samples_that_do_not_divide_gives_equal_numbers_of_filled_batches(made, world, seed):
    folder = made([3, 4] * 3)
    for count in range(1, 22):
        ds = dataset(folder).take(count)
        ds = ds if seed is None else ds.shuffle(seed)
        loaders = of_ranks(ds, world, batch_size=3)
        ranks = [[samples(batch) for batch in loader] for loader in loaders]
        assert {len(rank) for rank in ranks} == {len(loaders[0])}
        assert all(rows for rank in ranks for rows in rank)
        got = sorted(row for rank in ranks for rows in rank for row in rows)
        left = count % (3 * world)
        if seed is None:  # at most one sample per rank, less one, is left out
            assert got == list(range(count - (left if left < world else 0)))
        else:
            assert len(set(got)) == len(got) == count - left
        assert {loader.epoch for loader in loaders} == {1}


def test_default_tail_goes_on_in_the_next_epoch_after_the_last_batch_and_on_another_world(made):
    """As Lightning does, the consumer takes exactly len(loader) batches."""
    plain = dataset(made([10]))
    (loader, _, _) = of_ranks(plain, 3, batch_size=3)
    walk = iter(loader)
    assert [samples(next(walk)) for _ in range(len(loader))] == [[0, 1, 2]]  # sample 9 is left out
    state = loader.state_dict()
    assert batches(loader) == [[0, 1, 2]]
    assert loader.epoch == 2
    again, *_ = of_ranks(plain, 3, batch_size=3)
    again.load_state_dict(state)
    assert (batches(again), again.epoch) == ([], 1)
    (one,) = of_ranks(plain, 1, batch_size=3)
    one.load_state_dict(state)
    assert batches(one) == [[9]]


def test_default_tail_of_batches_by_length_drops_what_is_left(tmp_path):
    folder = write(tmp_path / "data", [7])
    rule = penstock.buckets([1, 9, 1, 9, 1, 9, 9], [4, 16], [1, 1])
    loaders = of_ranks(dataset(folder), 2, batch_by=rule)
    ranks = [batches(loader) for loader in loaders]
    assert [len(loader) for loader in loaders] == [len(rank) for rank in ranks] == [3, 3]
    assert sorted(row for rank in ranks for rows in rank for row in rows) == [0, 1, 2, 3, 5, 6]


class Ready:
    """The answer of ranks that always agree, and the calls that were made."""

    def __init__(self, value):
        self.value = value

    def done(self):
        return True

    def wait(self):
        return self.value


class Batches:
    """A run of numbers, with an error in the place of the last one."""

    def __init__(self, count, error=None):
        self.left, self.error = iter(range(count)), error

    def next(self):
        number = next(self.left, None)
        if number is None and self.error is not None:
            raise self.error
        return None if number is None else ({}, number, number)

    def is_ready(self):
        return True


def test_equal_run_reads_one_batch_ahead_and_ends_with_the_first_rank():
    asked = []
    run = EqualRun(Batches(5), lambda mine: asked.append(mine) or Ready(len(asked) < 4))
    assert not run.is_ready()
    assert run.next()[1] == 0
    assert (asked, run.is_ready()) == ([True, True], True)
    assert [run.next()[1], run.next()[1], run.next(), run.next()] == [1, 2, None, None]
    assert len(asked) == 4  # after the end, no rank asks again


def test_equal_run_raises_an_error_at_its_batch_only():
    run = EqualRun(Batches(2, Corrupt("damaged")), Ready)
    assert [run.next()[1], run.next()[1]] == [0, 1]
    with pytest.raises(Corrupt):
        run.next()


GROUP = """
import json, os, sys
import torch.distributed as dist
import penstock as ps

folder, store, rank, world = *sys.argv[1:3], *map(int, sys.argv[3:5])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def odd(sample):
    return sample if int(sample["y"][0]) % (3 if sample["y"][0] < 20 else 1) == 0 else None


fields = dict(y=ps.tensor("float32", (4,)))
plain = ps.open(folder).fields(**fields)
cases = {
    "unindexed": ps.open(folder, indexed=False).fields(**fields).shuffle(1),
    "unindexed in stored order": ps.open(folder, indexed=False).fields(**fields),
    "rebatch": plain.decode(odd, rebatch=True),
    "pack": plain.pack(3, fields="y", documents=2),
    "stored order": plain,
}
found = {}
for name, ds in cases.items():
    loader = ps.torch.Loader(ds, batch_size=2)
    rows = [[len(batch["y"]) for batch in loader] for _ in range(2)]
    # In the middle of a pass, all ranks stop, and resume from their states.
    walk = iter(loader)
    next(walk)
    state = loader.state_dict()
    rest = sum(1 for _ in walk)
    other = ps.torch.Loader(ds, batch_size=2)
    other.load_state_dict(state)
    found[name] = [rows, [rest, sum(1 for _ in other)], other.epoch]
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.system
@pytest.mark.parametrize("world", [2, 3])
def test_process_group_ends_uncounted_epochs_on_all_ranks_together(tmp_path, world):
    folder = write(tmp_path / "data", [9, 3, 7, 1, 8, 5], "none")
    command = [sys.executable, "-W", "ignore", "-c", GROUP, str(folder), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        output = [rank.communicate(timeout=110) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * world, [err[-2000:] for _, err in output]
    found = [json.loads(out) for out, _ in output]
    for name in found[0]:
        passes = [[len(rows) for rows in rank[name][0]] for rank in found]
        assert all(each == passes[0] for each in passes), (name, passes)
        assert min(passes[0]) > 1, (name, passes)
        assert all(rows > 0 for rank in found for walk in rank[name][0] for rows in walk), name
        assert len({json.dumps(rank[name][1:]) for rank in found}) == 1, name
        rest, resumed = found[0][name][1]
        assert rest == resumed, name
