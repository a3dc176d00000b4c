# SPDX-License-Identifier: Apache-2.0
"""Tests that settings reach the core as one document, and that the error for a wrong setting names it."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import stage
from penstock.errors import ConfigError


@pytest.fixture
def source(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.bin").write_bytes(b"a")
    return str(tmp_path / "src")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_inflated_bytes", "1GiB"),
        ("overwrite", "yes"),
        ("mirrors", 5),
        ("timeout_s", -1.0),
        ("idle_timeout_s", float("inf")),
        ("max_bytes_per_s", 0.0),
        ("level", 1 << 40),
    ],
)
def test_stage_setting_of_another_type_or_range_is_refused(name, value, source, tmp_path):
    options = {name: value} | ({"compress": "gzip"} if name == "level" else {})
    with pytest.raises((ConfigError, TypeError)):
        stage.run(source, str(tmp_path / "dst"), **options)
    assert not (tmp_path / "dst").exists()


def test_stage_error_names_the_setting(source, tmp_path):
    with pytest.raises(ConfigError, match=r"^max_inflated_bytes: invalid type: string"):
        stage.run(source, str(tmp_path / "dst"), max_inflated_bytes="1GiB")


def test_stage_setting_may_be_numpy_s(source, tmp_path):
    assert stage.run(source, str(tmp_path / "dst"), concurrency=np.int64(4), timeout_s=np.float32(60))["moved"] == 1


def test_verify_setting_of_another_type_is_refused_by_name(source, tmp_path):
    stage.run(source, str(tmp_path / "dst"))
    with pytest.raises(ConfigError, match=r"^repair: invalid type"):
        stage.verify(str(tmp_path / "dst"), repair="yes")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_loader_impossible_object_timeout_is_refused(seconds, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(4, dtype=np.float32))
    with pytest.raises(ConfigError, match="object_timeout_s"):
        penstock.Loader(penstock.open(tmp_path), batch_size=1, rank=0, world=1, object_timeout_s=seconds)
