# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock run` on hosts with an HDFS pool when one host is killed during the run. Acceptance test of issue 5."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
import zlib
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.launchers.netns_hosts import Hosts

pytestmark = [pytest.mark.needs_pool, pytest.mark.needs_root, pytest.mark.timeout(900)]

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = Path(sys.executable).with_name("penstock")
# Every rank reads its slice of the pool's objects and reports it; all wait until a host has been killed.
_RANK = """
import json, os, pathlib, sys, time, zlib
from penstock.pool import engine_registry, lifecycle
from penstock.errors import PenstockError

rank, world, out, name = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]
access = engine_registry.load("hdfs", {}).access(lifecycle.find(name).pool, os.uname().nodename)

def patient(ask, *words):
    # Each wait of the engine ends after 5 s, which on a machine with many other tests is no sign of anything.
    until = time.monotonic() + 120
    while True:
        try:
            return ask(*words)
        except PenstockError as error:
            if not error.retryable or time.monotonic() > until:
                raise

(out / f"begun-{rank}").touch()
limit = time.monotonic() + 120
while not (out / "go").exists() and time.monotonic() < limit:
    time.sleep(0.1)
checksums = {}
for each in sorted(n for n in patient(access.names, "data/") if n.endswith(".bin"))[rank::world]:
    fast = patient(access.fast_path, each)
    body = fast.read_bytes() if fast else patient(access.read, each, 0, 1 << 24)
    checksums[each.removeprefix("data/")] = [zlib.crc32(body), fast is not None]
(out / f"rank-{rank}-of-{world}.json").write_text(json.dumps(checksums))
"""


@pytest.mark.parametrize(("lost_node", "copies"), [("continue", 2), ("restart", 2), ("restart", 1)])
def test_run_on_hdfs_goes_on_when_a_host_is_killed_under_way(lost_node, copies, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "set").mkdir()
    (tmp_path / "out").mkdir()
    bodies = {}
    for at in range(18):
        bodies[f"{at:02d}.bin"] = random.Random(at).randbytes(200_000)
        (tmp_path / f"set/{at:02d}.bin.gz").write_bytes(gzip.compress(bodies[f"{at:02d}.bin"], 1, mtime=0))
    (tmp_path / "rank.py").write_text(_RANK)
    with Hosts.up(f"t{uuid4().hex[:8]}", 3, rate_bytes_per_s=125e6) as hosts:
        (tmp_path / "job.toml").write_text(f"""
name = "lossy"
[cluster.settings]
hosts = "{hosts.name}"
[pool]
engine = "hdfs"
disk = "{hosts.own_disk}"
copies = {copies}
timeout = "8min"
settings = {{ hadoop = "{_ROOT}/.tools/hadoop/lib" }}
[stage]
source = "{tmp_path}/set"
decompress = true
[run]
argv = ["{sys.executable}", "{tmp_path}/rank.py", "{{rank}}", "{{world}}", "{tmp_path}/out", "lossy"]
lost_node = "{lost_node}"
[archive]
source = "{tmp_path}/out"
to = "{tmp_path}/kept"
""")
        job = subprocess.Popen(
            [_PROGRAM, "run", "job.toml", "--json"], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until = time.monotonic() + 600
        while len(list((tmp_path / "out").glob("begun-*"))) < 3 and job.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        hosts.kill("h3")
        (tmp_path / "out/go").touch()
        out, err = job.communicate(timeout=400)
        assert out, err
        result = json.loads(out)
        # With "continue", no rank reads the lost rank's slice, so the job fails.
        assert job.returncode == (1 if lost_node == "continue" else 0), err
        assert result["lost_nodes"] == ["h3"]
        states = {row["name"]: row["state"] for row in result["steps"]}
        assert states == dict.fromkeys(["pool up", "stage", "ranks", "archive", "pool down"], "done")
        # The remaining ranks read intact data, including objects that the lost host had written.
        world = 3 if lost_node == "continue" else 2
        read = [json.loads((tmp_path / f"kept/rank-{rank}-of-{world}.json").read_text()) for rank in range(2)]
        assert sum(map(len, read)) == (12 if lost_node == "continue" else 18)
        found = {name: crc for each in read for name, (crc, _) in each.items()}
        assert found == {name: zlib.crc32(bodies[name]) for name in found}
        assert any(fast for each in read for _, fast in each.values())
        assert [list(hosts.disk(host).iterdir()) for host in ("h1", "h2")] == [[], []]
