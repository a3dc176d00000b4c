# SPDX-License-Identifier: Apache-2.0
import json
import math
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from penstock import stage
from penstock.bench import results
from penstock.datasets import cosmoflow
from penstock.errors import BudgetExceeded, ConfigError, NotFound, PenstockError, RankFailed
from penstock.feed.checkpoint.folder import list_checkpoints
from penstock.protocols import Demand, InputField, StepCost
from penstock.ranks import Rank
from penstock.train import TrainSpec, run
from penstock.train.source import DummyFeed, FeedRequest, open_feed
from penstock.train.workloads import load_workload, workload_names

pytestmark = pytest.mark.needs_torch

SETTINGS = {"voxels": 32, "filters": 2, "base_batch": 8}


def spec(**fields):
    made = {
        "workload": "cosmoflow",
        "data": "dummy://24",
        "global_batch": 4,
        "settings": SETTINGS,
        "threads": 1,
        "seed": 5,
    }
    return TrainSpec(**{**made, **fields})


def numbered(samples, **fields):
    """A request whose samples have one field of three integers."""
    made = {
        "url": f"dummy://{samples}",
        "demand": Demand(fields={"n": InputField("int16", (3,))}, arrays="numpy", sample_bytes=6),
        "seed": 1,
        "global_batch": 4,
        "rank": 0,
        "world": 1,
        "tail": "ragged",
        "shuffled": True,
        "device": "cpu",
    }
    return FeedRequest(**{**made, **fields})


# ---------------------------------------------------------------- the dummy source


def test_dummy_gives_the_same_global_batches_in_every_world():
    whole = [b["n"] for b in DummyFeed(numbered(10))]
    parts = [[b["n"] for b in DummyFeed(numbered(10, rank=r, world=3))] for r in range(3)]
    assert [len(b) for b in whole] == [4, 4, 2]
    for k, batch in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([p[k] for p in parts]), batch)


@pytest.mark.parametrize(("tail", "length"), [("ragged", 3), ("drop", 2)])
def test_dummy_length_follows_the_tail(tail, length):
    feed = DummyFeed(numbered(10, tail=tail))
    assert len(feed) == length == len(list(feed))


def test_dummy_state_goes_on_where_it_was_taken():
    straight = DummyFeed(numbered(16))
    first = [b["n"].copy() for b in straight] + [b["n"].copy() for b in straight]
    broken = DummyFeed(numbered(16))
    taken = [next(it)["n"].copy() for it in [iter(broken)] for _ in range(3)]
    again = DummyFeed(numbered(16))
    again.load_state_dict(json.loads(json.dumps(broken.state_dict())))
    rest = [b["n"].copy() for b in again] + [b["n"].copy() for b in again]
    np.testing.assert_array_equal(np.stack(taken + rest), np.stack(first))
    with pytest.raises(ConfigError):
        DummyFeed(numbered(8)).load_state_dict(broken.state_dict())


def test_dummy_batches_are_in_the_device_s_memory():
    demand = Demand(fields={"n": InputField("int16", (3,))}, arrays="torch", sample_bytes=6)
    assert {batch["n"].device.type for batch in DummyFeed(numbered(10, demand=demand, device="meta"))} == {"meta"}


@pytest.mark.parametrize(("device", "target"), [("cpu", None), ("cuda:0", torch.device("cuda:0"))])
def test_feed_gets_the_gpu_as_its_device(tmp_path, device, target):
    cosmoflow.generate(tmp_path, samples=2, voxels=32, seed=3)
    demand = Demand(fields={"x": InputField("int16", (32, 32, 32, 4))}, arrays="torch", sample_bytes=32**3 * 8)
    assert open_feed(numbered(2, url=tmp_path.as_uri(), demand=demand, device=device)).device == target


@pytest.mark.parametrize("url", ["dummy://", "dummy://many", "dummy://0"])
def test_dummy_without_a_count_is_refused(url):
    with pytest.raises(ConfigError, match="does not state the number of samples"):
        DummyFeed(numbered(1, url=url))


# ---------------------------------------------------------------- runs


def test_run_keeps_one_result_that_says_what_was_run(tmp_path):
    seen = []
    result = run(
        spec(
            validation="dummy://5",
            epochs=2,
            runs=str(tmp_path),
            allow_debug=True,
            label="direct",
            notes=("scale 0.1",),
            stage_s=1.5,
        ),
        report=seen.append,
    )
    (kept,) = results.load_all(tmp_path)
    assert json.loads((tmp_path / kept.id / "result.json").read_text()) == result
    assert (kept.steps, kept.epochs, kept.samples, kept.world) == (12, 2, 48, 1)
    assert len(kept.losses) == 12
    assert all(math.isfinite(loss) for loss in kept.losses)
    assert [m["epoch"] for m in kept.metrics] == [1, 2]
    assert kept.metrics[-1]["validation_samples"] == 5
    assert kept.mae == kept.metrics[-1]["mae"]
    assert kept.spec_hash == spec(validation="dummy://5", epochs=2).hash()
    assert (kept.label, kept.notes, kept.stage_s) == ("direct", ("scale 0.1",), 1.5)
    assert 0 <= kept.wait_share <= kept.wait_share_worst <= 1
    assert kept.compute_s + kept.wait_s <= kept.train_s <= kept.wall_s
    assert kept.bytes_delivered == 48 * (32**3 * 8 + 16)
    assert kept.workload["mlperf_model"] is False
    assert seen[-1].phase == "done"
    assert seen[-1].step == 12


def test_run_of_a_debug_build_is_refused_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock._native.__profile__", "debug")
    with pytest.raises(ConfigError, match="debug build"):
        run(spec(runs=str(tmp_path), data="dummy://none"))


def test_run_same_spec_gives_the_same_losses_bit_for_bit():
    assert run(spec())["losses"] == run(spec())["losses"]
    assert run(spec())["losses"] != run(spec(seed=6))["losses"]


@pytest.mark.parametrize("stop", [4, 6])  # inside an epoch, and at its end
def test_run_resumed_gives_the_losses_of_an_undisturbed_one(tmp_path, stop):
    straight = run(spec(epochs=2, validation="dummy://5"))
    first = run(spec(epochs=2, validation="dummy://5", steps=stop, checkpoint=str(tmp_path)))
    assert first["steps"] == stop
    second = run(spec(epochs=2, validation="dummy://5", checkpoint=str(tmp_path), resume=True))
    assert second["losses"] == straight["losses"]
    assert second["mae"] == straight["mae"]
    assert second["metrics"][-1] == straight["metrics"][-1]
    assert second["workload"]["resumed_at_step"] == stop
    third = run(spec(epochs=2, validation="dummy://5", checkpoint=str(tmp_path), resume=True))
    assert third["losses"] == straight["losses"]
    assert third["samples"] == 0
    assert third["invalid"] == ["no step was taken"]


def test_run_killed_goes_on_from_its_last_checkpoint(tmp_path):
    straight = run(spec(epochs=200, steps=30))
    argv = [
        sys.executable,
        "-m",
        "penstock",
        "train",
        "cosmoflow",
        "--data",
        "dummy://24",
        "--global-batch",
        "4",
        "--threads",
        "1",
        "--seed",
        "5",
    ]
    argv += [
        "--voxels",
        "32",
        "--filters",
        "2",
        "--set",
        "base_batch=8",
        "--epochs",
        "200",
        "--checkpoint",
        str(tmp_path),
        "--checkpoint-steps",
        "3",
        "--no-save",
    ]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not list_checkpoints(tmp_path) and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    went_on = run(spec(epochs=200, steps=30, checkpoint=str(tmp_path), resume=True))
    before = went_on["workload"]["resumed_at_step"]
    assert before > 0
    assert went_on["losses"][:30] == straight["losses"]


def test_resume_without_a_checkpoint_starts_anew(tmp_path):
    assert run(spec(steps=2, checkpoint=str(tmp_path), resume=True))["losses"] == run(spec(steps=2))["losses"]


def test_run_that_diverges_ends_with_the_step_and_keeps_nothing(tmp_path):
    wild = {**SETTINGS, "base_learning_rate": 1e30, "warmup_epochs": 0}
    with pytest.raises(PenstockError, match=r"step \d+: the loss is") as caught:
        run(spec(settings=wild, epochs=3, runs=str(tmp_path), allow_debug=True))
    assert caught.value.exit_code == 1
    assert not list(tmp_path.iterdir())


def test_run_with_fewer_samples_than_a_batch_is_refused():
    with pytest.raises(ConfigError, match="fewer samples"):
        run(spec(data="dummy://3"))


@pytest.mark.parametrize(
    "fields",
    [
        {"global_batch": 0},
        {"ranks": 0},
        {"epochs": 0},
        {"steps": 0},
        {"resume": True},
        {"archive": "file:///x"},
        {"accelerator": "h100", "checkpoint": "x"},
    ],
)
def test_spec_that_cannot_be_is_refused(fields):
    with pytest.raises(ConfigError):
        run(spec(**fields))


def test_spec_hash_is_of_what_is_measured_only():
    assert spec().hash() == spec(runs="elsewhere", label="x", checkpoint="c", stage_s=3.0).hash()
    assert spec().hash() != spec(data="dummy://25").hash()


# ---------------------------------------------------------------- ranks


def test_two_ranks_see_the_global_batches_of_one_and_learn_the_same():
    fields = {"validation": "dummy://5", "epochs": 2, "settings": {**SETTINGS, "dropout": 0.5}}
    one, two = run(spec(**fields)), run(spec(**fields, ranks=2))
    assert two["world"] == 2
    assert two["samples"] == one["samples"] == 48
    assert len(two["losses"]) == 12
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    assert two["mae"] == pytest.approx(one["mae"], rel=1e-4)
    assert two["mae_constant"] == pytest.approx(one["mae_constant"], rel=1e-9)


def test_one_rank_goes_on_where_two_stopped(tmp_path):
    straight = run(spec(epochs=2))
    run(spec(epochs=2, steps=4, ranks=2, checkpoint=str(tmp_path)))
    rest = run(spec(epochs=2, checkpoint=str(tmp_path), resume=True))
    assert rest["workload"]["resumed_at_step"] == 4
    np.testing.assert_allclose(rest["losses"], straight["losses"], rtol=1e-4)


def test_error_of_a_rank_comes_back_as_itself():
    with pytest.raises(ConfigError, match="2 ranks") as caught:
        run(spec(global_batch=5, ranks=2))
    assert "multiple" in (caught.value.hint or "")


def test_rank_killed_silently_is_reported(tmp_path, monkeypatch):
    info = tmp_path / "mortal-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mortal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock.workloads]\nmortal = mortal:workload\n")
    (tmp_path / "mortal.py").write_text("def workload():\n    raise RuntimeError('worn out')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RankFailed, match=r"rank [01] failed: RuntimeError: worn out"):
        run(spec(workload="mortal", settings={}, ranks=2))


# ---------------------------------------------------------------- the emulated accelerator


def test_accelerator_is_charged_its_published_time_and_learns_nothing():
    result = run(spec(accelerator="h100", validation="dummy://5"))
    assert result["losses"] == []
    assert result["mae"] is None
    assert result["compute_s"] == pytest.approx(24 * 0.0035)
    assert result["samples_per_s"] <= 1 / 0.0035 * 1.001
    assert result["workload"]["emulated"] == "h100"


def test_accelerator_needs_no_torch():
    code = f"""
        import sys
        sys.modules["torch"] = None
        from penstock.train import TrainSpec, run
        told = run(TrainSpec(workload="cosmoflow", data="dummy://8", global_batch=4, settings={SETTINGS!r}, accelerator="h100"))
        print(told["samples"])
        try:
            run(TrainSpec(workload="cosmoflow", data="dummy://8", global_batch=4, settings={SETTINGS!r}))
        except Exception as error:
            print(type(error).__name__, error, error.hint)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "8",
        "ConfigError training cosmoflow requires torch, which is not installed pip install 'penstock[torch]'",
    ]


# ---------------------------------------------------------------- third-party workloads


class Counting:
    """A third-party workload that sums up its batches."""

    def __init__(self):
        self.sum = 0

    def demand(self, spec):
        return Demand(fields={"n": InputField("int16", (2,))}, arrays="numpy", sample_bytes=4, facts={"by": "stranger"})

    def prepare(self, spec):
        pass

    def begin_epoch(self, epoch):
        pass

    def step(self, batch):
        self.sum += int(batch["n"].sum())
        return StepCost(len(batch["n"]), 0.0, loss=float(self.sum))

    def evaluate(self, batches):
        return {"mae": float(sum(len(b["n"]) for b in batches))}

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]

    def cleanup(self):
        pass


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A third-party package that provides workloads as entry points."""
    site = tmp_path / "site"
    info = site / "stranger-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "stranger_plugin.py").write_text(
        "from tests.train.test_train import Counting\nworkload = Counting\nnothing = object\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    lines = [
        "[penstock.workloads]",
        "counting = stranger_plugin:workload",
        "broken = stranger_plugin:absent",
        "nothing = stranger_plugin:nothing",
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(sys.modules, "tests.train.test_train", sys.modules[__name__])
    return site


def test_workload_of_a_stranger_comes_through_the_same_door(stranger):
    assert {"cosmoflow", "counting"} <= set(workload_names())
    result = run(spec(workload="counting", settings={}, validation="dummy://7"))
    assert result["steps"] == 6
    assert result["workload"]["by"] == "stranger"
    assert result["metrics"][-1]["mae"] == 7.0


def test_workload_invalid_plugin_raises(stranger):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_workload("broken")
    with pytest.raises(ConfigError, match="is not a valid workload: begin_epoch, cleanup, demand"):
        load_workload("nothing")
    with pytest.raises(ConfigError, match="no workload `nonesuch`") as caught:
        load_workload("nonesuch")
    assert "cosmoflow" in (caught.value.hint or "")


def test_workload_claimed_twice_is_refused(stranger):
    rival = stranger / "rival-1.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (rival / "entry_points.txt").write_text("[penstock.workloads]\ncounting = rival:workload\n")
    with pytest.raises(ConfigError, match="provided by 2"):
        load_workload("counting")


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("is_url", [False, True])
def test_archive_copies_result_and_checkpoint(tmp_path, is_url):
    runs, store, kept = tmp_path / "runs", tmp_path / "store", tmp_path / "checkpoint"
    url = kept.as_uri() if is_url else str(kept)
    result = run(spec(steps=2, runs=str(runs), allow_debug=True, checkpoint=url, archive=store.as_uri()))
    home = store / result["id"]
    assert result["archive"] == f"{store.as_uri()}/{result['id']}/"
    files = sorted(p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file())
    (written,) = list_checkpoints(kept)
    names = [f"{written.attempt}-00000.bin", f"{written.attempt}.json", "commit.json"]
    assert [name for name in files if ".penstock" not in name] == [
        *(f"checkpoint/000000000002/{name}" for name in sorted(names)),
        "result.json",
    ]
    assert all(stage.verify(str(folder))["failed"] == [] for folder in (home, home / "checkpoint"))
    assert list_checkpoints(home / "checkpoint") == [written]
    assert json.loads((home / "result.json").read_text())["losses"] == result["losses"]


def test_data_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        run(spec(data=(tmp_path / "none").as_uri()))


def test_gpu_memory_that_ends_in_the_feed_has_one_error_with_a_smaller_batch():
    class Full(DummyFeed):
        def __iter__(self):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(BudgetExceeded, match="which also holds the next batches") as caught:
        run(spec(), source=Full)
    assert caught.value.hint == "use --batch-size 2"


def test_rank_numbers_reach_the_spec_of_the_source():
    asked = []

    def source(request):
        asked.append(request)
        return DummyFeed(request)

    result = run(spec(validation="dummy://5"), source=source)
    assert [(r.tail, r.shuffled, r.rank, r.world) for r in asked] == [("drop", True, 0, 1), ("ragged", False, 0, 1)]
    assert result["losses"] == run(spec(validation="dummy://5"))["losses"]
    with pytest.raises(ConfigError, match="only one rank"):
        run(spec(ranks=2), source=source)
    assert Rank().world == 1
