# SPDX-License-Identifier: Apache-2.0
"""Tests the warning for a loop that leaves each epoch early, and would therefore read the same batches in each."""

from __future__ import annotations

import logging

import pytest

import penstock
from tests.feed import mapped

from .conftest import batches, dataset


@pytest.fixture
def shuffled(made):
    return dataset(made([2] * 10)).shuffle(5)


def broken_pass(loader, count=2):
    seen = []
    for batch in loader:
        seen.append(batch["y"][:, 0].tolist())
        if len(seen) == count:
            break
    return seen


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "starts again" in record.getMessage()]


def test_second_start_of_a_broken_epoch_warns_once(shuffled, caplog):
    loader = penstock.Loader(shuffled, batch_size=4)
    with caplog.at_level(logging.WARNING):
        first = broken_pass(loader)
        assert warnings_of(caplog) == []
        assert [broken_pass(loader) for _ in range(2)] == [first, first]
    (warning,) = warnings_of(caplog)
    assert "epoch 0 starts again with the same batches: its last pass ended after 2 batches" in warning
    assert "Call set_epoch(1)" in warning
    assert "seed 5" in warning


def test_broken_epochs_are_silent_if_the_caller_chooses_the_next(shuffled, caplog):
    loader = penstock.Loader(shuffled, batch_size=4)
    with caplog.at_level(logging.WARNING):
        passes = []
        for epoch in (0, 1, 1):
            loader.set_epoch(epoch)
            passes.append(broken_pass(loader))
        assert passes[0] != passes[1] == passes[2]
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert broken_pass(loader) not in passes
        for each in (
            shuffled.fields(y=penstock.tensor("float32", (4,))).map(mapped.twice),
            penstock.mix({shuffled: 1}),
        ):
            other = penstock.Loader(each, batch_size=4)
            next(iter(other))  # reads only one batch
            broken_pass(other)
            list(other)
            other.set_epoch(7)
            list(other)
            list(other)
    assert len(warnings_of(caplog)) == 2  # one for each complete pass after a broken one


def test_broken_epoch_of_a_dataset_that_is_alike_in_all_epochs_is_silent(made, caplog):
    plain = dataset(made([2] * 10))
    with caplog.at_level(logging.WARNING):
        for each in (plain, plain.take(7), plain.map(mapped.plain)):
            loader = penstock.Loader(each, batch_size=2)
            for _ in range(3):
                for number, _batch in enumerate(loader):
                    if number == 1:
                        break
        assert warnings_of(caplog) == []
        loader = penstock.Loader(plain.map(mapped.seeded), batch_size=2)
        for _ in range(2):
            for number, _batch in enumerate(loader):
                if number == 1:
                    break
    assert len(warnings_of(caplog)) == 1
    assert batches(penstock.Loader(plain, batch_size=20)) == [[*range(20)]]
