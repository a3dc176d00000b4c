# SPDX-License-Identifier: Apache-2.0
"""Tests that old names of parameters and attributes work for one release, with a warning. Issue 14."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import stage


def _staged(tmp_path, **options):
    (tmp_path / "src").mkdir(exist_ok=True)
    (tmp_path / "src/a.bin").write_bytes(b"a")
    return penstock.stage(str(tmp_path / "src"), tmp_path / "dst", **options)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("arrive_s", "join_timeout_s", 9.0),
        ("silence_s", "heartbeat_timeout_s", 9.0),
        ("deflate", "compress", "gzip"),
        ("deadline_s", "timeout_s", 60.0),
        ("object_deadline_s", "object_timeout_s", 60.0),
        ("stall_after_s", "idle_timeout_s", 30.0),
        ("give_up_after_s", "retry_timeout_s", 60.0),
        ("wait_limit_s", "wait_timeout_s", 60.0),
    ],
)
def test_stage_old_parameter_works_and_warns(old, new, value, tmp_path):
    with pytest.warns(DeprecationWarning, match=f"`{old}` is now `{new}`") as warned:
        _staged(tmp_path, **{old: value})
    assert warned[0].filename == __file__
    with pytest.raises(TypeError, match="the same parameter"):
        _staged(tmp_path, **{old: value, new: value})


def test_stage_inflate_is_decompress_without_a_warning(tmp_path):
    assert _staged(tmp_path, inflate=True).summary["decompress"]
    assert stage.run(str(tmp_path / "src"), str(tmp_path / "two"), inflate=True)["decompress"]


def test_staged_by_is_its_coordinator(tmp_path):
    staged = _staged(tmp_path)
    with pytest.warns(DeprecationWarning, match="`by` is now `coordinator`"):
        assert staged.by == staged.coordinator == "alone"


def test_loader_and_shuffle_old_parameters_work_and_warn(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(4, dtype=np.float32))
    dataset = penstock.open(tmp_path)
    with pytest.warns(DeprecationWarning, match="`reach` is now `scope`"):
        dataset = dataset.shuffle(3, reach="global")
    with pytest.warns(DeprecationWarning, match="`next_epoch` is now `prefetch_next_epoch`"):
        penstock.Loader(dataset, batch_size=1, rank=0, world=1, next_epoch=False)
    with pytest.warns(DeprecationWarning, match="`deadline_s` is now `object_timeout_s`"):
        penstock.Loader(dataset, batch_size=1, rank=0, world=1, deadline_s=60.0)


def test_verify_old_parameters_work_and_warn(tmp_path):
    _staged(tmp_path)
    with pytest.warns(DeprecationWarning, match="`deadline_s` is now `timeout_s`"):
        assert not stage.verify(str(tmp_path / "dst"), deadline_s=60.0)["failed"]
