# SPDX-License-Identifier: Apache-2.0
"""Tests of training checkpoints: resume, refusal of damaged checkpoints and of those of another run, retention, failed
writes.
"""

from __future__ import annotations

import subprocess
import threading
import time

import pytest

from penstock.errors import ConfigError, Corrupt, NoSpace, PenstockError, Unsupported
from penstock.feed.checkpoint.folder import CheckpointFolder, list_checkpoints
from penstock.train import TrainSpec, checkpoint, run
from penstock.train.checkpoint_saver import CheckpointSaver

pytestmark = pytest.mark.needs_torch


def spec(folder, **fields):
    made = {
        "workload": "cosmoflow",
        "data": "dummy://24",
        "global_batch": 4,
        "settings": {"voxels": 32, "filters": 2, "base_batch": 8},
        "threads": 1,
        "seed": 5,
        "epochs": 2,
        "checkpoint": str(folder),
    }
    return TrainSpec(**{**made, **fields})


def steps(folder) -> list[int]:
    return [one.step for one in list_checkpoints(folder)]


# ---------------------------------------------------------------- the state


def test_split_state_joins_to_itself():
    import torch

    one = torch.arange(3)
    state = {"a": {0: {"m": one}, 1: {"m": None}}, "b": [(1, one), {"x": 2.5}], "a/0": {"m": torch.zeros(1)}, "e": {}}
    structure, tensors = checkpoint.split(state)
    assert len(tensors) == 3
    back = checkpoint.joined(structure, tensors)
    assert back.pop("version") == 1
    assert str(back) == str(state)
    assert list(back["a"]) == [0, 1]
    assert isinstance(back["b"][0], tuple)


# ---------------------------------------------------------------- runs


def test_run_resumes_from_every_kept_checkpoint_with_the_same_losses(tmp_path):
    straight = run(spec(tmp_path / "none", checkpoint=None))
    first = run(spec(tmp_path, checkpoint_steps=2, checkpoint_keep=9, steps=11))
    assert steps(tmp_path) == [2, 4, 6, 8, 10, 11]
    saved = first["checkpoints"]
    assert (saved["saves"], saved["last_step"], saved["damaged"]) == (6, 11, [])
    assert saved["bytes"] == sum(one.bytes for one in list_checkpoints(tmp_path))
    assert saved["bytes_per_s"] == pytest.approx(saved["bytes"] / saved["write_s"])
    assert 0 < saved["stall_share"] < 1
    times = (first["train_s"], first["train_s"] + saved["stall_s"])
    assert times[0] < first["samples"] / saved["samples_per_s"] <= times[1]
    assert saved["training_stall_share"] == pytest.approx(saved["stall_s"] * saved["samples_per_s"] / first["samples"])
    for step in (11, 6, 4):
        rest = run(spec(tmp_path, resume=True, checkpoint_keep=9, checkpoint_steps=100, epochs=2))
        assert rest["workload"]["resumed_at_step"] == step
        assert rest["losses"] == straight["losses"]
        newest = [one for one in steps(tmp_path) if one > {11: 6, 6: 4, 4: 2}[step]]
        for one in newest:
            for file in (tmp_path / f"{one:012d}").iterdir():
                file.unlink()


def test_run_keeps_the_newest_checkpoints(tmp_path):
    run(spec(tmp_path, checkpoint_steps=2, checkpoint_keep=2, epochs=1))
    assert steps(tmp_path) == [4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000004", "000000000006"]


def test_run_without_resume_does_not_mix_two_trainings(tmp_path):
    run(spec(tmp_path, steps=2))
    with pytest.raises(ConfigError, match="checkpoints of another training run, up to step 2") as caught:
        run(spec(tmp_path, steps=4))
    assert "--resume" in (caught.value.hint or "")


def test_resume_skips_a_damaged_checkpoint_and_reports_it(tmp_path):
    run(spec(tmp_path, checkpoint_steps=2, steps=4))
    (data,) = (tmp_path / "000000000004").glob("*.bin")
    size = data.stat().st_size
    data.write_bytes(data.read_bytes()[:-1])
    rest = run(spec(tmp_path, resume=True, steps=6, checkpoint_steps=2))
    assert rest["workload"]["resumed_at_step"] == 2
    assert steps(tmp_path) == [4, 6]  # the damaged one was written again
    (damaged,) = rest["checkpoints"]["damaged"]
    assert f"1 files with {size - 1:,} bytes, instead of 1 with {size:,}" in damaged


def test_resume_of_another_training_is_refused(tmp_path):
    run(spec(tmp_path, steps=1))
    with pytest.raises(ConfigError, match=r"seed was 5, but is 6 now"):
        run(spec(tmp_path, steps=2, seed=6, resume=True))


def test_resume_with_another_model_or_order_is_refused(tmp_path):
    run(spec(tmp_path, steps=1))
    settings = {"voxels": 32, "filters": 4, "base_batch": 16}
    with pytest.raises(ConfigError, match=r"different settings: setting filters was 2, but is 4 now\n"):
        run(spec(tmp_path, steps=2, settings=settings, resume=True))
    with pytest.raises(ConfigError, match=r"different settings: setting filters was 2, but is unset now\n"):
        run(spec(tmp_path, steps=2, settings={"voxels": 32, "base_batch": 8}, resume=True))


def damage_bytes(folder, step) -> None:
    """Flip a bit in the data of a checkpoint; its size stays the same."""
    (data,) = (folder / f"{step:012d}").glob("*-00000.bin")
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)


@pytest.mark.parametrize("ranks", [1, 2])
def test_resume_skips_checkpoints_with_damaged_bytes_and_replaces_them(tmp_path, ranks):
    straight = run(spec(tmp_path / "none", checkpoint=None, ranks=ranks))
    run(spec(tmp_path / "kept", checkpoint_steps=2, checkpoint_keep=3, steps=6, ranks=ranks))
    for step in (4, 6):
        damage_bytes(tmp_path / "kept", step)
    rest = run(spec(tmp_path / "kept", resume=True, checkpoint_steps=2, checkpoint_keep=2, ranks=ranks))
    assert rest["workload"]["resumed_at_step"] == 2
    assert rest["losses"] == straight["losses"]
    assert [text.partition(" is damaged")[1] for text in rest["checkpoints"]["damaged"]] == [" is damaged"] * 2
    assert steps(tmp_path / "kept") == [10, 12]
    again = run(spec(tmp_path / "kept", resume=True, ranks=ranks))
    assert again["workload"]["resumed_at_step"] == 12


def test_resume_skips_a_checkpoint_that_only_another_rank_finds_damaged(tmp_path):
    run(spec(tmp_path, checkpoint_steps=2, steps=4))
    others = iter([(4, "step 4 is damaged"), None])
    state = checkpoint.read(CheckpointFolder(tmp_path), {}, lambda mine: [mine, next(others)])
    assert (state["steps"], state["damaged"]) == (2, {4: "step 4 is damaged"})


def test_resume_after_damage_does_not_keep_the_damaged_instead_of_a_good_one(tmp_path):
    run(spec(tmp_path, checkpoint_steps=2, checkpoint_keep=9, steps=6))
    damage_bytes(tmp_path, 6)
    run(spec(tmp_path, resume=True, checkpoint_steps=1, checkpoint_keep=1, steps=5))
    assert steps(tmp_path) == [4, 5]


def test_resume_from_flipped_bit_without_another_checkpoint_is_corrupt(tmp_path):
    run(spec(tmp_path, steps=1))
    damage_bytes(tmp_path, 1)
    with pytest.raises(Corrupt, match=r"000000000001/.*\.bin: `workload/.*` is damaged: .*CRC-32C"):
        run(spec(tmp_path, resume=True))


def test_resume_from_checkpoint_of_another_program_is_corrupt(tmp_path):
    import torch
    from torch.distributed import checkpoint as dcp

    from penstock.torch import CheckpointWriter

    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"w": torch.zeros(3)}, checkpoint_id="7", storage_writer=CheckpointWriter(tmp_path))
    with pytest.raises(Corrupt, match="is not a checkpoint of `penstock train`"):
        run(spec(tmp_path, resume=True))


# ---------------------------------------------------------------- last.pt of earlier versions


def last_pt(folder, state) -> None:
    import torch

    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "last.pt")


def test_last_pt_of_earlier_versions_is_resumed(tmp_path):
    straight = run(spec(tmp_path / "none", checkpoint=None))
    run(spec(tmp_path / "new", steps=4))
    state = checkpoint.read(CheckpointFolder(tmp_path / "new"), {})
    last_pt(tmp_path / "old", {**state, "id": "1234"})
    rest = run(spec(tmp_path / "old", resume=True))
    assert rest["workload"]["resumed_at_step"] == 4
    assert rest["losses"] == straight["losses"]
    assert steps(tmp_path / "old") == [6, 12]


@pytest.mark.parametrize("damage", [b"", b"\x80\x04K\x01.", None])
def test_last_pt_damaged_is_corrupt(tmp_path, damage):
    last_pt(tmp_path, {"version": 1, "learnt": {}})
    whole = (tmp_path / "last.pt").read_bytes()
    (tmp_path / "last.pt").write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    with pytest.raises(Corrupt, match=r"last\.pt"):
        run(spec(tmp_path, resume=True))


def test_last_pt_from_elsewhere_runs_no_code(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    last_pt(tmp_path, {"version": 1, "learnt": Hostile()})
    with pytest.raises(Corrupt):
        run(spec(tmp_path, resume=True))
    assert not (tmp_path / "owned").exists()


# ---------------------------------------------------------------- the saver


def state_of(value, **fields):
    import torch

    return {"learnt": {}, "steps": value, "epoch": 0, "w": torch.full((1000,), float(value)), **fields}


def test_saver_writes_the_state_at_the_save_and_not_later(tmp_path, monkeypatch):
    """The tensor changes while the thread is held before its first byte."""
    released = threading.Event()
    write = CheckpointSaver._write
    monkeypatch.setattr(CheckpointSaver, "_write", lambda *given: (released.wait(30), write(*given)))
    saver = CheckpointSaver(CheckpointFolder(tmp_path), keep=2, rank=0)
    state = state_of(1)
    saver.save(1, state)
    state["w"].fill_(9)
    assert steps(tmp_path) == []
    released.set()
    saver.finish()
    found = checkpoint.read(CheckpointFolder(tmp_path), {})
    assert found["w"].unique().tolist() == [1.0]


def test_saver_second_save_waits_and_counts_it_as_stall(tmp_path, monkeypatch):
    write = CheckpointSaver._write
    held = threading.Event()
    monkeypatch.setattr(CheckpointSaver, "_write", lambda *given: (held.wait(0.3), write(*given)))
    saver = CheckpointSaver(CheckpointFolder(tmp_path), keep=5, rank=0)
    saver.save(1, state_of(1))
    copies = saver._copies["w"].data_ptr()
    assert saver.times.stall_s < 0.3
    saver.save(2, state_of(2))
    assert saver.times.stall_s >= 0.25
    assert saver._copies["w"].data_ptr() == copies  # one copy in memory, used again
    assert saver.finish().saves == 2
    assert steps(tmp_path) == [1, 2]


def test_saver_keep_1_deletes_the_previous_only_after_confirm(tmp_path):
    saver = CheckpointSaver(CheckpointFolder(tmp_path), keep=1, rank=0)
    for step in (1, 2):
        saver.save(step, state_of(step))
    until = time.monotonic() + 20
    while steps(tmp_path) != [1, 2]:
        assert time.monotonic() < until
        time.sleep(0.01)
    saver.confirm()
    while steps(tmp_path) != [2]:
        assert time.monotonic() < until
        time.sleep(0.01)
    saver.save(3, state_of(3))
    saver.finish()
    saver.close()
    assert steps(tmp_path) == [2, 3]  # no loss has followed 3


def test_run_stops_at_the_next_step_after_a_failed_write(tmp_path):
    (tmp_path / "000000000002").write_text("a file where the folder should be")
    reported = []
    with pytest.raises(OSError, match="000000000002"):
        run(spec(tmp_path, checkpoint_steps=2, epochs=1_000_000), report=reported.append)
    assert reported[-1].step < 1000


def test_run_that_diverges_keeps_its_checkpoints(tmp_path):
    settings = {"voxels": 32, "filters": 2, "base_batch": 8, "base_learning_rate": 1e30, "warmup_epochs": 0}
    with pytest.raises(PenstockError, match="diverged") as caught:
        run(spec(tmp_path, settings=settings, checkpoint_steps=1, epochs=3))
    latest = list_checkpoints(tmp_path)[-1]
    assert str(caught.value).startswith(f"step {latest.step + 1}: ")


class Learner:
    """A layer with batch normalisation: parameters and moments belong to the optimiser, statistics do not."""

    def __init__(self):
        import torch

        self.model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.BatchNorm1d(50))
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.1)

    def forward(self):
        import torch

        self.model(torch.rand(4, 50)).sum().backward()

    def step(self):
        self.forward()
        self.optimiser.step()

    def state(self):
        states = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        return {"learnt": {}, "epoch": 0, "steps": 0, **states}


@pytest.fixture
def held(monkeypatch):
    """The thread waits before its first copy until `held.set()`."""
    begun, run_thread = threading.Event(), CheckpointSaver._run
    monkeypatch.setattr(CheckpointSaver, "_run", lambda *given: (begun.wait(30), run_thread(*given)))
    yield begun
    begun.set()


def test_saver_copies_parameters_while_the_next_step_computes(tmp_path, held):
    import copy

    learner = Learner()
    saver = CheckpointSaver(CheckpointFolder(tmp_path), keep=2, rank=0)
    learner.step()
    want = copy.deepcopy(learner.state())
    saver.save(1, learner.state())
    assert saver.times.stall_s < 1
    assert not saver._copies["model/0.weight"].equal(learner.model[0].weight)  # not copied yet
    assert saver._copies["model/1.running_mean"].equal(learner.model[1].running_mean)  # copied at once
    learner.forward()  # changes the statistics
    threading.Timer(0.3, held.set).start()
    learner.optimiser.step()  # waits for the copy
    assert saver.times.stall_s >= 0.2
    saver.finish()
    saver.close()
    found = checkpoint.read(CheckpointFolder(tmp_path), {})
    for name, tensor in want["model"].items():
        assert found["model"][name].equal(tensor), name
    for number, moments in want["optimiser"]["state"].items():
        assert all(found["optimiser"]["state"][number][name].equal(one) for name, one in moments.items())
    learner.step()  # the closed saver holds no step back


def test_saver_parameters_changed_while_they_are_copied_are_refused(tmp_path, held):
    import torch

    learner = Learner()
    saver = CheckpointSaver(CheckpointFolder(tmp_path), keep=2, rank=0)
    learner.step()
    saver.save(1, learner.state())
    with torch.no_grad():
        learner.model[0].weight.clamp_(-0.1, 0.1)
    held.set()
    with pytest.raises(Unsupported, match=r"step 1: `model/0\.weight` changed before the optimiser's step"):
        saver.finish()
    saver.close()
    assert steps(tmp_path) == []


def test_saver_store_that_refuses_ends_with_one_error_and_keeps_the_former(tmp_path):
    saver = CheckpointSaver(CheckpointFolder(tmp_path), keep=1, rank=0)
    saver.save(1, state_of(1))
    saver.finish()
    (tmp_path / "000000000002").write_text("a file where the folder should be")
    saver.save(2, state_of(2))
    with pytest.raises(OSError, match="000000000002"):
        saver.save(3, state_of(3))
    assert steps(tmp_path) == [1]


@pytest.fixture
def full_disk(tmp_path):
    """A disk of 600 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


# Issue 19, P12.
@pytest.mark.needs_root
def test_saver_full_disk_is_no_space_and_keeps_the_former(full_disk):
    import torch

    saver = CheckpointSaver(CheckpointFolder(full_disk), keep=1, rank=0)
    saver.save(1, state_of(1))
    saver.save(2, state_of(2, big=torch.zeros(1_000_000)))
    with pytest.raises(NoSpace, match=r"no space left on the disk \(wrote [\d,]+ of [\d,]+ bytes\)"):
        saver.finish()
    assert steps(full_disk) == [1]
    assert [path.name for path in full_disk.iterdir()] == ["000000000001"]
