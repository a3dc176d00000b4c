# SPDX-License-Identifier: Apache-2.0
"""Tests that a training whose loss is not finite stops on all ranks, and keeps its latest complete checkpoint."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.feed.checkpoint.folder import CheckpointFolder
from penstock.train import TrainSpec, run

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize("ranks", [1, 2])
def test_diverged_training_stops_and_keeps_its_latest_whole_checkpoint(tmp_path, ranks):
    wild = {"voxels": 32, "filters": 2, "base_batch": 8, "base_learning_rate": 1e30, "warmup_epochs": 0}
    spec = TrainSpec(
        workload="cosmoflow",
        data="dummy://24",
        global_batch=4,
        settings=wild,
        threads=1,
        ranks=ranks,
        checkpoint=str(tmp_path / "kept"),
        checkpoint_steps=1,
    )
    with pytest.raises(PenstockError, match=r"step \d+: the loss is (nan|inf)") as caught:
        run(spec)
    assert f"the latest complete checkpoint in {tmp_path / 'kept'} is kept" in (caught.value.hint or "")
    latest = CheckpointFolder(str(tmp_path / "kept")).latest()
    assert latest is not None
    assert latest.step >= 1
