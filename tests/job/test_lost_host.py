# SPDX-License-Identifier: Apache-2.0
"""Tests the loss of a host in mid-epoch: a pool on four hosts, the bucket on a fifth. Acceptance test of issue 5."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs_pool, pytest.mark.needs_root, pytest.mark.timeout(400)]

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("engine", "copies"), [("hdfs", 1), ("hdfs", 2), ("moosefs", 1), ("moosefs", 2)])
def test_epoch_that_loses_a_host_gives_every_sample_once(engine, copies):
    line = [sys.executable, _ROOT / "benches/pool_loss.py", "--copies", str(copies), "--bytes", "20000000"]
    line += ["--engine", engine]
    line += ["--objects", "60", "--step", "0.005", "--hadoop", _ROOT / ".tools/hadoop/lib"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=380)
    assert done.returncode == 0, done.stderr[-3000:]
    row = json.loads(done.stdout)
    assert row["exactly_once"]
    assert (row["unreached"], row["left"]) == (["h4"], 0)
    # The dataset left the bucket once. With one copy, the lost objects left it again; with two copies, nothing did.
    assert row["egress_after_stage"] < 1.02
    from_bucket = row["read"]["1"]["bucket"] + row["read"]["2"]["bucket"]
    assert (from_bucket > 0, row["put_back"] > 0) == (copies == 1, copies == 1)
    assert row["egress_of_job"] < 1.02 or copies == 1
    # Expected share of local reads on four nodes: a half with two copies, a quarter with one. A mount's reads all go
    # through the engine.
    assert row["local_share_expected"] == copies / 4
    whole = row["read"]["0"]
    assert abs(whole["own"] / sum(whole.values()) - (copies / 4 if engine == "hdfs" else 0)) < 0.15
