# SPDX-License-Identifier: Apache-2.0
"""Tests that a training on two ranks goes on with one and three ranks, from a folder and from a store."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.feed.checkpoint.folder import list_checkpoints
from penstock.train import TrainSpec, run

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow, pytest.mark.timeout(500)]


def spec(**fields):
    made = {
        "workload": "cosmoflow",
        "data": "dummy://36",
        "global_batch": 6,
        "settings": {"voxels": 32, "filters": 2, "base_batch": 8, "dropout": 0.5},
        "threads": 1,
        "seed": 5,
        "epochs": 2,
        "validation": "dummy://5",
    }
    return TrainSpec(**{**made, **fields})


def test_two_ranks_resumed_on_two_one_and_three_learn_the_same(emulator, monkeypatch):
    server = emulator()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    url = f"{server.url}run"
    straight = run(spec(ranks=2))
    first = run(spec(ranks=2, steps=4, checkpoint=url, checkpoint_steps=2))
    assert first["checkpoints"]["saves"] == 2
    assert [(one.step, one.files, one.world) for one in list_checkpoints(url)] == [(2, 2, 2), (4, 2, 2)]
    same = run(spec(ranks=2, steps=7, checkpoint=url, resume=True, checkpoint_keep=9))
    assert same["losses"] == straight["losses"][:7]  # bit for bit
    for world in (1, 3):
        rest = run(spec(ranks=world, steps=7 + world, checkpoint=url, resume=True, checkpoint_keep=9))
        assert rest["workload"]["resumed_at_step"] == {1: 7, 3: 8}[world]
        np.testing.assert_allclose(rest["losses"], straight["losses"][: 7 + world], rtol=1e-4)
    assert [one.world for one in list_checkpoints(url)][-2:] == [1, 3]
