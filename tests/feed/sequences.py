# SPDX-License-Identifier: Apache-2.0
"""Checks that samples have one sequence, on any number of ranks and after any restart."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING

import penstock

from .conftest import batches, samples

if TYPE_CHECKING:
    from collections.abc import Iterable


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def merged(parts: list[list[list[int]]]) -> list[list[int]]:
    """Joins the batches of all ranks for each step, in rank order."""
    assert len({len(part) for part in parts}) == 1, "all ranks make equal steps"
    return [flat(rows) for rows in zip(*parts, strict=True)]


def read(dataset, epoch: int = 0) -> list[int]:
    """Sample numbers in the order of an epoch."""
    loader = penstock.Loader(dataset, batch_size=3, rank=0, world=1, threads=2)
    loader.set_epoch(epoch)
    return flat(batches(loader))


def check_one_sequence(dataset, batch, world, stop, later, epoch, **arguments) -> list[int]:
    """Returns the sequence of one rank. Checks that several ranks read it, and after `stop` batches, others.

    `later` is their (global batch, number of ranks). `arguments` are the loaders'.
    """

    def loader(global_batch: int, rank: int = 0, of: int = 1) -> penstock.Loader:
        made = penstock.Loader(dataset, global_batch=global_batch, rank=rank, world=of, threads=2, **arguments)
        made.set_epoch(epoch)
        return made

    reference = flat(batches(loader(1)))
    assert len(reference) == dataset.samples
    first, states = [], []
    for rank in range(world):
        mine = loader(batch, rank, world)
        walk = iter(mine)
        first.append([samples(next(walk)) for _ in range(min(stop, len(mine)))])
        states.append(json.dumps(mine.state_dict()))
    assert len(set(states)) == 1
    assert len(states[0]) < 1024
    rest = []
    for rank in range(later[1]):
        mine = loader(later[0], rank, later[1])
        mine.load_state_dict(json.loads(states[0]))
        rest.append(batches(mine))
        assert mine.epoch == epoch + 1
    assert flat(merged(first) + merged(rest)) == reference
    return reference
