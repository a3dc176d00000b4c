# SPDX-License-Identifier: Apache-2.0
"""Tests elastic resume across processes: from 8 ranks to 6, 32 and 1, and from 64 to 48 with launcher variables.

Also tests torch's DCP, and 10^9 records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain

import pytest

import penstock
from penstock import _native

from .conftest import batches, dataset, samples, write


def test_resume_on_8_then_6_then_32_then_1_ranks_gives_the_remaining_sequence(made):
    shuffled = dataset(made([3, 1, 4, 1, 5, 9, 2, 6])).shuffle(11, window=3)
    reference = list(chain.from_iterable(batches(penstock.Loader(shuffled, batch_size=31))))
    state, got = None, []
    for world, steps in ((8, 2), (6, 1), (32, 2), (1, None)):
        parts, states = [], set()
        for rank in range(world):
            loader = penstock.Loader(shuffled, global_batch=5, rank=rank, world=world, threads=1)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            walk = iter(loader)
            parts.append([samples(batch) for batch in (walk if steps is None else (next(walk) for _ in range(steps)))])
            states.add(json.dumps(loader.state_dict()))
            del walk
        assert len(states) == 1
        state = states.pop()
        assert len(state) < 1024
        got += [list(chain.from_iterable(rows)) for rows in zip(*parts, strict=True)]
    assert list(chain.from_iterable(got)) == reference


RANK = """
import json, os, sys
import penstock as ps
ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,))).shuffle(seed=6)
checkpoint, steps = sys.argv[2], int(sys.argv[3])
loader = ps.Loader(ds, global_batch=96, threads=1)
if os.path.exists(checkpoint):
    loader.load_state_dict(json.load(open(checkpoint)))
walk = iter(loader)
mine = [[int(y) for y in next(walk)["y"][:, 0]] for _ in range(steps)]
print(json.dumps({"rank": loader.rank, "world": loader.world, "mine": mine, "state": loader.state_dict()}))
"""


def test_requeued_job_of_48_ranks_goes_on_where_64_stood(tmp_path):
    """As `sbatch --requeue` with fewer nodes: the ranks get only Slurm's variables and the checkpoint.

    Only the first and the last rank run as processes; the slices give the rows of the others.
    """
    folder, checkpoint = write(tmp_path / "data", [4] * 100), tmp_path / "state.json"

    def launch(world: int, rank: int, steps: int) -> dict:
        env = {
            **os.environ,
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": str(world),
            "SLURM_STEP_NUM_TASKS": str(world),
            "SLURM_NNODES": str(world),
            "SLURM_STEP_NUM_NODES": str(world),
            "SLURM_NODEID": str(rank),
            "SLURM_LOCALID": "0",
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", RANK, str(folder), str(checkpoint), str(steps)],
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    reference = batches(penstock.Loader(dataset(folder).shuffle(6), batch_size=96))
    first = [launch(64, rank, 2) for rank in (0, 63)]
    assert first[0]["state"] == first[1]["state"]
    checkpoint.write_text(json.dumps(first[0]["state"]))
    second = [launch(48, rank, 2) for rank in (0, 47)]
    for ran, world, offset in ((first, 64, 0), (second, 48, 2)):
        for made in ran:
            assert made["world"] == world
            for step, rows in enumerate(made["mine"]):
                whole = reference[offset + step]
                low, high = (len(whole) * r // world for r in (made["rank"], made["rank"] + 1))
                assert rows == whole[low:high]


DCP = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import penstock as ps

rank, folder, checkpoint, store = int(sys.argv[1]), *sys.argv[2:5]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
ds = ps.open(folder).fields(y=ps.tensor("float32", (4,))).shuffle(seed=6)
def ids(batch):
    return [int(y) for y in batch["y"][:, 0]]
loader = ps.torch.Loader(ds, global_batch=4, threads=1)
walk = iter(loader)
for _ in range(2):
    next(walk)
dcp.save({"data": loader}, checkpoint_id=checkpoint)
rest = [ids(batch) for batch in walk]
other = ps.torch.Loader(ds, global_batch=4, threads=1)
dcp.load({"data": other}, checkpoint_id=checkpoint)
assert [ids(batch) for batch in other] == rest and len(rest) == 3, rest
def whole(sample):
    return {"y": sample["y"].astype("int64")}
packed = ds.map(whole).pack(3, fields="y", documents=2)
loader = ps.torch.Loader(packed, batch_size=1, threads=1)
walk = iter(loader)
for _ in range(3):
    next(walk)
dcp.save({"data": loader}, checkpoint_id=checkpoint + "-packed")
rest = [batch["y"].tolist() for batch in walk]
other = ps.torch.Loader(packed, batch_size=1, threads=1)
dcp.load({"data": other}, checkpoint_id=checkpoint + "-packed")
assert [batch["y"].tolist() for batch in other] == rest and rest, rest
dist.barrier()
print("ok", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.needs_torch
def test_loader_is_stateful_for_distributed_checkpoints(tmp_path):
    folder = write(tmp_path / "data", [2] * 10)
    command = [sys.executable, "-W", "ignore", "-c", DCP]
    rest = [str(folder), str(tmp_path / "checkpoint"), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        result = [rank.communicate(timeout=110) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [out for out, _ in result] == ["ok\n"] * 2, [err[-2000:] for _, err in result]


def test_resume_in_the_middle_of_a_billion_records_reads_a_window_and_no_more(tmp_path):
    """10^9 records: hard links to one real object of 100,000. Resume may cost no more than the objects of one window."""
    each, objects = 100_000, 10_000
    folder = tmp_path / "data"
    folder.mkdir()
    frame = _native.encode_tfrecord({"y": [1.0]})
    (folder / "first.tfrecord").write_bytes(frame * each)
    for number in range(objects - 1):
        (folder / f"part-{number:05d}.tfrecord").hardlink_to(folder / "first.tfrecord")
    ds = penstock.open(folder, records_per_object=each).fields(y=penstock.tensor("float32", (1,))).shuffle(1)
    assert ds.samples == 10**9
    loader = penstock.Loader(ds, batch_size=256, rank=0, world=1)
    loader.load_state_dict({**loader.state_dict(), "cursor": 5 * 10**8})
    walk = iter(loader)
    assert next(walk)["y"].shape == (256, 1)
    assert loader.state_dict()["cursor"] == 5 * 10**8 + 256
    report = loader.report()
    assert report["bytes_in"] <= 64 * len(frame) * each
