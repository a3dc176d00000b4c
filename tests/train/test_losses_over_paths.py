# SPDX-License-Identifier: Apache-2.0
"""Tests that a job learns the same, bit for bit, over a pool, the source and staged files. Issue 16."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads import image_sets

pytestmark = [pytest.mark.system, pytest.mark.needs_torch, pytest.mark.timeout(300)]

_PENSTOCK = Path(sys.executable).with_name("penstock")
_JARS = Path(__file__).resolve().parents[2] / ".tools" / "hadoop"


def _run(tmp_path, paths, nodes, *, ranks, script):
    job = f"""
name = "losses"
paths = {json.dumps(paths)}
[cluster]
launcher = "local"
nodes = {nodes}
[pool]
disk = "{tmp_path}/disk-{{node}}"
[pool.settings]
{f'hadoop = "{_JARS}"' if "pool:hdfs" in paths else ""}
[stage]
source = "{tmp_path}/data"
[run]
argv = ["sh", "-ec", {json.dumps(script)}, "sh", "{{data}}"]
ranks_per_node = {ranks}
"""
    (tmp_path / "job.toml").write_text(job)
    return subprocess.run(
        [_PENSTOCK, "run", "job.toml", "--quiet"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def _cosmology(folder):
    made = [_PENSTOCK, "dataset", "cosmoflow", folder, "--samples", "12", "--voxels", "32", "--compress", "gzip"]
    subprocess.run(made, check=True, capture_output=True, timeout=60)


def test_losses_of_cosmoflow_and_resnet_are_the_same_over_a_pool_and_the_source(tmp_path):
    _cosmology(tmp_path / "data/cosmo")
    image_sets.write_tfrecord(tmp_path / "data/images", image_sets.samples(16))
    train = f'{_PENSTOCK} train "$0" --data "$1" --global-batch 4 --threads 1 --device cpu -o {tmp_path}/rows'
    script = (
        f"{train.replace('$0', 'cosmoflow').replace('$1', '$1/cosmo')} --voxels 32 --filters 4; "
        f"{train.replace('$0', 'resnet18').replace('$1', '$1/images')} --set image_size=64 --set classes=4"
    )
    if not _JARS.is_dir():
        pytest.fail("Hadoop is not here; `make setup-peers` installs it", pytrace=False)
    ran = _run(tmp_path, ["pool:hdfs", "stream", "staged"], 1, ranks=2, script=script)
    assert ran.returncode == 0, (ran.stdout, ran.stderr[-3000:])
    rows = [json.loads(file.read_text()) for file in (tmp_path / "rows").glob("*/result.json")]
    for workload, steps in (("cosmoflow", 3), ("resnet18", 4)):
        mine = [row for row in rows if row["workload"]["name"] == workload]
        assert sum(row["spec"]["data"].startswith("hdfs://") for row in mine) == 1
        first, *others = [row["losses"] for row in mine]
        assert (len(others), len(set(first))) == (2, steps)
        assert others == [first, first]


def test_training_over_a_local_pool_of_two_nodes_says_which_paths_share_the_data(tmp_path):
    _cosmology(tmp_path / "data")
    script = f'{_PENSTOCK} train cosmoflow --data "$1" --voxels 32 --filters 4 --global-batch 4 --device cpu --no-save'
    ran = _run(tmp_path, ["pool:local"], 2, ranks=1, script=script)
    assert ran.returncode == 1
    assert "the ranks differ in the training data" in ran.stdout + ran.stderr
    logs = "".join(file.read_text() for file in (tmp_path / "runs").rglob("*.log"))
    assert "Each node of a `local` pool stores other objects" in logs
