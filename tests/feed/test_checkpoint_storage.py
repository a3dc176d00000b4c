# SPDX-License-Identifier: Apache-2.0
"""Tests of the storage of torch's Distributed Checkpoint: round trips, complete checkpoints, damage, other world sizes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from penstock.emulator import Emulator
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PreconditionFailed, Unsupported
from penstock.feed.checkpoint import metadata as documents
from penstock.feed.checkpoint.folder import CheckpointFolder
from penstock.feed.checkpoint.reader import read_values
from penstock.torch import (
    CheckpointReader,
    CheckpointWriter,
    latest_checkpoint,
    list_checkpoints,
)
from tests.peer_stores import azurite, fake_gcs
from tests.ports import free_port

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


def state(value: float = 1.0):
    return {
        "model": {
            "w": torch.full((40, 30), value),
            "half": torch.arange(7, dtype=torch.bfloat16),
            "last": torch.rand(2, 4, 6, 6, 6).to(memory_format=torch.channels_last_3d),
            "bool": torch.tensor([True, False]),
            "complex": torch.tensor([1 + 2j]).conj(),
            "none": torch.zeros(0, 3),
            "scalar": torch.tensor(3.5),
            "view": torch.arange(20).view(4, 5).t()[1:3],
        },
        "optimiser": {"lr": 0.1, "betas": (0.9, 0.99), "names": ["a", "b"]},
        "step": 5,
    }


def empty():
    made = state(0.0)
    made["model"] = {name: torch.zeros_like(one) for name, one in made["model"].items()}
    return {**made, "optimiser": {"lr": 0.0, "betas": (), "names": []}, "step": 0}


def save(url, step=None, value=1.0, **arguments):
    saved = state(value)
    dcp.save(
        saved, checkpoint_id=None if step is None else str(step), storage_writer=CheckpointWriter(url, **arguments)
    )
    return saved


def load(url, step=None):
    into = empty()
    dcp.load(into, checkpoint_id=None if step is None else str(step), storage_reader=CheckpointReader(url))
    return into


def cause(caught) -> BaseException:
    ((error, _),) = caught.value.failures.values()
    return error


def equal(one, other) -> bool:
    tensors = all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    return tensors and one["optimiser"] == other["optimiser"] and one["step"] == other["step"]


@pytest.fixture(params=["folder", "s3"])
def url(request, tmp_path, monkeypatch):
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    (tmp_path / "bucket").mkdir()
    with Emulator(tmp_path / "bucket") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield f"{server.url}run"


# ---------------------------------------------------------------- round trips


def test_checkpoint_round_trip_keeps_every_value(url):
    saved = save(url, 3)
    assert equal(load(url), saved)
    values = read_values(url)
    assert torch.equal(values["model.w"], saved["model"]["w"])
    assert values["model.last"].is_contiguous(memory_format=torch.channels_last_3d)
    assert values["optimiser.betas"] == (0.9, 0.99)
    (one,) = list_checkpoints(url)
    assert (one.step, one.files, one.world) == (3, 1, 1)


@pytest.mark.needs_server
@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_checkpoint_in_parts_on_other_clouds_is_whole_and_pruned(tmp_path, monkeypatch, cloud):
    peer = azurite(tmp_path) if cloud == "azure" else fake_gcs(tmp_path, {"x": b"1"})
    url = "az://data/run" if cloud == "azure" else "gs://data/run"
    saved = {"w": torch.rand(6_000_000)}  # more than one part of an upload
    with peer as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        for step in ("1", "2", "3"):
            dcp.save(saved, checkpoint_id=step, storage_writer=CheckpointWriter(url, keep=2))
        with pytest.raises(CheckpointException) as caught:
            dcp.save(saved, checkpoint_id="3", storage_writer=CheckpointWriter(url))
        assert isinstance(cause(caught), PreconditionFailed)
        into = {"w": torch.zeros(6_000_000)}
        dcp.load(into, storage_reader=CheckpointReader(url))
        assert [one.step for one in list_checkpoints(url)] == [2, 3]
    assert torch.equal(into["w"], saved["w"])


def test_checkpoint_async_save_stores_the_state_of_the_call(url):
    saved = state()
    saved["model"]["complex"] = saved["model"]["complex"].resolve_conj()  # torch's copy loses a lazy conjugation
    done = dcp.async_save(saved, checkpoint_id="1", storage_writer=CheckpointWriter(url))
    done.result()
    assert equal(load(url, 1), saved)


def test_checkpoint_steps_count_up_and_old_ones_are_deleted(url):
    for value in range(4):
        save(url, value=float(value), keep=2)
    assert [one.step for one in list_checkpoints(url)] == [2, 3]
    assert latest_checkpoint(url) == list_checkpoints(url)[-1]
    assert load(url, 2)["model"]["w"].unique().tolist() == [2.0]
    with pytest.raises(CheckpointException) as caught:
        load(url, 1)
    assert isinstance(cause(caught), NotFound)


def test_checkpoint_large_tensor_crosses_blocks(url):
    tensor = torch.randint(0, 255, (documents.BLOCK_BYTES * 5 + 17,), dtype=torch.uint8)
    dcp.save({"t": tensor}, storage_writer=CheckpointWriter(url))
    into = {"t": torch.zeros_like(tensor)}
    dcp.load(into, storage_reader=CheckpointReader(url))
    assert torch.equal(into["t"], tensor)


def test_checkpoint_of_the_same_step_is_refused_and_kept(url):
    saved = save(url, 1)
    with pytest.raises(CheckpointException) as caught:
        save(url, 1, value=2.0)
    assert isinstance(cause(caught), PreconditionFailed)
    assert equal(load(url), saved)


def test_checkpoint_folder_without_one_is_not_found(url):
    assert list_checkpoints(url) == []
    assert latest_checkpoint(url) is None
    with pytest.raises(CheckpointException) as caught:
        load(url)
    assert isinstance(cause(caught), NotFound)


# ---------------------------------------------------------------- whole or not there


@pytest.mark.parametrize("stop", ["finish", "create", "commit"])
def test_checkpoint_interrupted_is_never_the_latest(tmp_path, monkeypatch, stop):
    first = save(tmp_path, 1)

    def fails(*_given, **_named):
        raise KeyboardInterrupt

    target = CheckpointFolder if stop != "finish" else CheckpointWriter
    with monkeypatch.context() as patch:
        patch.setattr(target, stop, fails)
        with pytest.raises(CheckpointException):
            save(tmp_path, 2)
    assert [one.step for one in list_checkpoints(tmp_path)] == [1]
    assert equal(load(tmp_path), first)
    save(tmp_path, 2, value=2.0)
    # The next attempt removes what the interrupted one left.
    save(tmp_path, 3, value=3.0, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000002", "000000000003"]
    assert all(len(list(path.iterdir())) == 3 for path in tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["commit.json", "*.json", "*.bin"])
def test_checkpoint_that_lost_a_file_is_not_whole(tmp_path, kind):
    save(tmp_path, 1)
    save(tmp_path, 2)
    next(
        file for file in (tmp_path / "000000000002").glob(kind) if kind[0] != "*" or file.name != "commit.json"
    ).unlink()
    assert [one.step for one in list_checkpoints(tmp_path)] == [1]
    with pytest.raises(CheckpointException) as caught:
        load(tmp_path, 2)
    assert isinstance(cause(caught), NotFound if kind == "commit.json" else Corrupt)


def test_checkpoint_prune_keeps_the_latest_and_foreign_files(tmp_path):
    for step in range(3):
        save(tmp_path, step)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000000000009").mkdir()
    (tmp_path / "000000000009/other").write_text("newer than the latest whole one: a writer may be at work")
    assert CheckpointFolder(tmp_path).prune(0) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000002", "000000000009", "notes.txt"]


# ---------------------------------------------------------------- damaged, foreign and hostile


def test_checkpoint_every_flipped_byte_is_corrupt(tmp_path):
    saved = save(tmp_path, 1)
    rng = random.Random(7)
    for file in (tmp_path / "000000000001").iterdir():
        raw = file.read_bytes()
        for at in rng.sample(range(len(raw)), 25):
            file.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :])
            try:
                found = load(tmp_path, 1)
            except CheckpointException as error:
                ((problem, _),) = error.failures.values()
                assert isinstance(problem, PenstockError), problem
                assert "000000000001" in str(problem)
            else:  # the creation time of the commit is only text
                assert file.name == "commit.json"
                assert equal(found, saved)
        file.write_bytes(raw)
    assert equal(load(tmp_path, 1), saved)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_checkpoint_of_an_object_is_refused_by_the_writer(tmp_path):
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"x": {"y": Hostile(tmp_path / "owned")}}, storage_writer=CheckpointWriter(tmp_path / "run"))
    assert isinstance(cause(caught), Unsupported)
    assert "`x.y` is not a tensor or a plain value" in str(cause(caught))
    assert list_checkpoints(tmp_path / "run") == []


def test_checkpoint_of_a_stranger_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.feed.checkpoint.writer.check_loadable", lambda *_: None)
    dcp.save({"x": Hostile(tmp_path / "owned")}, storage_writer=CheckpointWriter(tmp_path / "run"))
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"x": 0}, storage_reader=CheckpointReader(tmp_path / "run"))
    assert isinstance(cause(caught), Corrupt)
    assert not (tmp_path / "owned").exists()


def test_checkpoint_of_a_newer_version_is_refused_and_not_skipped(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    commit = tmp_path / "000000000002/commit.json"
    commit.write_text(json.dumps({**json.loads(commit.read_text()), "version": 2}))
    with pytest.raises(Corrupt, match="format version 2, but this build reads up to 1"):
        latest_checkpoint(tmp_path)


@pytest.mark.parametrize("wrong", ["s3://bucket/run/7", "-1", "1e3", "9" * 13])
def test_checkpoint_id_that_is_no_step_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError, match="must be a step"):
        save(tmp_path, wrong)


DOCUMENT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 1 << 40)
    | st.sampled_from(["", "w", "float32", "0a-00000.bin", "../x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["values", "paths", "items", "w", "dtype", "size", "chunks", "strides"]), inner, max_size=5
        )
    ),
    max_leaves=20,
)


@given(document=DOCUMENT)
@settings(max_examples=200, deadline=None)
def test_prop_metadata_of_any_json_is_decoded_or_corrupt(document):
    with suppress(Corrupt):
        documents.decode(json.dumps(document).encode(), "here")


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_prop_metadata_with_a_changed_byte_is_decoded_or_corrupt(whole_metadata, at, byte):
    raw = bytearray(whole_metadata)
    raw[at % len(raw)] = byte
    with suppress(Corrupt):
        documents.decode(bytes(raw), "here")


@pytest.fixture(scope="session")
def whole_metadata(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save(folder, 1)
    return CheckpointFolder(folder).read_metadata(1)


# ---------------------------------------------------------------- other world sizes

RANK = """
    import sys, torch
    from torch import nn
    from torch.distributed import checkpoint as dcp, init_process_group, destroy_process_group, get_world_size, get_rank
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from penstock.torch import CheckpointReader, CheckpointWriter

    init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, 13), nn.Linear(13, 5))
    fully_shard(model, mesh=init_device_mesh("cpu", (get_world_size(),)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(seed):
        inputs = torch.randn(6, 7, generator=torch.Generator().manual_seed(seed))
        loss = model(inputs).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.item()

    def state():
        weights, moments = get_state_dict(model, optimiser)
        return {"model": weights, "optimiser": moments}

    url, kind = sys.argv[1:]
    if kind == "save":
        step(1)
        done = dcp.async_save(state(), checkpoint_id="1", storage_writer=CheckpointWriter(url))
        done.result()
    else:
        step(7)  # other weights, and moments to load into
        into = state()
        dcp.load(into, storage_reader=CheckpointReader(url))
        set_state_dict(model, optimiser, model_state_dict=into["model"], optim_state_dict=into["optimiser"])
    losses = [step(2), step(3)]
    if get_rank() == 0:
        print(losses)
    destroy_process_group()
"""


def ranks(world: int, url: str, kind: str) -> list[float]:
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    argv = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(RANK), url, kind]
    started = [
        subprocess.Popen(
            argv, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    try:
        printed = [one.communicate(timeout=120)[0] for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert [one.returncode for one in started] == [0] * world
    return json.loads(printed[0])


@pytest.mark.system
@pytest.mark.timeout(400)
def test_checkpoint_of_fsdp_on_two_ranks_is_loaded_by_one_and_three(tmp_path):
    url = str(tmp_path / "run")
    want = ranks(2, url, "save")
    (one,) = list_checkpoints(url)
    assert (one.files, one.world) == (2, 2)
    for world in (1, 3):
        assert ranks(world, url, "load") == pytest.approx(want, rel=1e-5)


def test_checkpoint_file_names_stay_below_the_folder(tmp_path):
    save(tmp_path, 1)
    (name,) = [path for path in (tmp_path / "000000000001").glob("*.json") if path.name != "commit.json"]
    document = json.loads(name.read_text())
    document["items"][0][3] = "../../etc/passwd"
    with pytest.raises(Corrupt, match=r"is in the file '../../etc/passwd'"):
        documents.decode(json.dumps(document).encode(), str(Path(name)))
