# SPDX-License-Identifier: Apache-2.0
"""Tests that a training whose loss is not finite stops on all ranks, and that its last good checkpoint can be resumed."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from penstock.errors import PenstockError
from penstock.feed.checkpoint.folder import CheckpointFolder, list_checkpoints
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
    latest = CheckpointFolder(str(tmp_path / "kept")).latest()
    assert latest is not None
    assert latest.step >= 1
    assert f"{tmp_path}/kept/{latest.step:012d}, whose state gave this loss" in (caught.value.hint or "")


def _diverges_in_epoch_2(folder, **fields):
    """The rate is small in the first epoch (steps 1 to 3), and far too large in the second."""
    wild = {
        "voxels": 32, "filters": 2, "base_batch": 4, "base_learning_rate": 1e-3, "warmup_epochs": 0,
        "decay_epochs": [0], "decay_factors": [1e30],
    }  # fmt: skip
    return TrainSpec(
        workload="cosmoflow",
        data="dummy://12",
        global_batch=4,
        settings=wild,
        threads=1,
        epochs=3,
        checkpoint=str(folder),
        **fields,
    )


@pytest.mark.parametrize("keep", [1, 2])
def test_diverged_training_is_resumed_from_the_last_good_checkpoint_as_the_hint_states(tmp_path, keep):
    spec = _diverges_in_epoch_2(tmp_path / "kept", checkpoint_steps=1, checkpoint_keep=keep)
    with pytest.raises(PenstockError, match=r"step 5: the loss is (nan|inf)") as caught:
        run(spec)
    assert [one.step for one in list_checkpoints(tmp_path / "kept")] == [3, 4]
    folder = tmp_path / "kept" / "000000000004"
    assert caught.value.hint == (
        f"use a smaller learning rate, delete {folder}, whose state gave this loss, and --resume from the checkpoint "
        "of step 3"
    )
    shutil.rmtree(folder)
    calm = {**spec.settings, "decay_factors": [0.5], "base_learning_rate": 2e-3}
    rest = run(msgspec.structs.replace(spec, settings=calm, resume=True))
    assert (rest["workload"]["resumed_at_step"], rest["steps"]) == (3, 9)
    assert rest["checkpoints"]["changed_settings"] == [
        "setting base_learning_rate: 0.001 -> 0.002",
        "setting decay_factors: [1e+30] -> [0.5]",
    ]


def test_diverged_training_between_checkpoints_names_the_newest(tmp_path):
    spec = _diverges_in_epoch_2(tmp_path)
    with pytest.raises(PenstockError, match="step 5: the loss is") as caught:
        run(spec)
    assert caught.value.hint == "use a smaller learning rate, and --resume from the checkpoint of step 3"
