# SPDX-License-Identifier: Apache-2.0
"""Tests that trainers resume exactly: a run that stops in the middle of an epoch and goes on in a new process trains on
the same samples, in the same steps, as a run that does not stop.

Each program appends the sample numbers of each step to a file, so that a kill loses none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports

from .conftest import write

pytestmark = pytest.mark.needs_adapters

ROOT = Path(__file__).resolve().parents[2]

COMMON = """
import json, logging, os, signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
import penstock as ps

DATA, WORK, KILL = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def dataset():
    return ps.open(DATA).fields(y=ps.tensor("float32", (4,))).shuffle(seed=3)

def log(name, batch):
    ids = [int(y) for y in batch["y"][:, 0]]
    with open(WORK / name, "a") as file:
        print(json.dumps(ids), file=file)
        file.flush()
    return sum(1 for _ in open(WORK / name))

def kill_at(step):
    if step == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
"""

LIGHTNING = """
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Model(pl.LightningModule):
    def __init__(self, name):
        super().__init__()
        self.layer, self.name = torch.nn.Linear(4, 1), name
    def training_step(self, batch, index):
        log(self.name, batch)
        return self.layer(batch["y"] / 20).mean()
    def on_train_batch_end(self, *_):
        kill_at(self.global_step)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def fit(name, checkpoint, **options):
    loader = ps.torch.Loader(dataset(), batch_size=4, rank=0, world=1)
    kept = ModelCheckpoint(dirpath=WORK / "kept", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    ends = ModelCheckpoint(dirpath=WORK / "kept", filename="end-{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[kept, ends] if checkpoint is None else [], enable_checkpointing=checkpoint is None, **options,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(sampler|not resumable).*")
        trainer.fit(Model(name), loader, ckpt_path=checkpoint, weights_only=False)
    assert trainer.global_step == 18, trainer.global_step

if KILL > 0:
    fit("whole", None)
last = max((WORK / "kept").glob("step=*.ckpt"), key=lambda path: int(path.stem[5:]))  # of the run that was killed
with open(WORK / "whole") as file:
    killed = file.readlines()[: int(last.stem[5:])]
fit("rest", last)
rest = open(WORK / "rest").readlines()
(WORK / "whole").unlink()
fit("whole", None)
whole = open(WORK / "whole").readlines()
assert len(whole) == 18 and len(set(whole)) > 14, whole
assert killed + rest == whole, (len(killed), killed, rest, whole)
for path in (WORK / "kept").glob("*.ckpt"):
    step = torch.load(path, weights_only=False)["global_step"]
    fit(path.stem, path)
    rest = open(WORK / path.stem).readlines() if (WORK / path.stem).exists() else []
    assert whole[step:] == rest, (path, step, rest)
"""

TRAINER = """
import transformers
from transformers import Trainer, TrainingArguments
transformers.logging.set_verbosity_error()

class Model(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.layer, self.name = torch.nn.Linear(4, 1), name
    def forward(self, y):
        log(self.name, {"y": y})
        return {"loss": self.layer(y / 20).mean()}

class Kill(transformers.TrainerCallback):
    def on_save(self, args, state, control, **_):
        kill_at(state.global_step)

def fit(name, checkpoint=None):
    arguments = TrainingArguments(
        str(WORK / "kept"), num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=4,
        save_strategy="steps" if name == "whole" else "no", save_steps=1, logging_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, seed=1, train_sampling_strategy="sequential",
        restore_callback_states_from_checkpoint=name.startswith("from"),
    )
    mapped = ps.torch.MapDataset(dataset()) if sys.argv[4] == "map" else None
    trainer = Trainer(Model(name), arguments, train_dataset=mapped, callbacks=[Kill()])
    if mapped is None:
        if name.startswith("from"):
            ps.torch.feed_trainer(trainer, ps.torch.Loader(dataset(), batch_size=5))  # is replaced
        ps.torch.feed_trainer(trainer, ps.torch.Loader(dataset(), batch_size=4))
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 6, trainer.state.global_step  # 2 of 6 batches per epoch: 4, and the other 2

if KILL > 0:
    fit("whole")
fit("rest", str(WORK / "kept" / "checkpoint-3"))
killed = open(WORK / "whole").readlines()[:10]
(WORK / "whole").unlink()
fit("whole")
whole = open(WORK / "whole").readlines()
assert len(whole) == 18 and len(set(whole)) > 14, whole
assert killed + open(WORK / "rest").readlines() == whole
for step in range(1, 6):
    fit(f"from {step}", str(WORK / "kept" / f"checkpoint-{step}"))
    assert open(WORK / f"from {step}").readlines() == whole[step // 2 * 6 + step % 2 * 4 :], step
"""

ACCELERATE = """
from accelerate import Accelerator, DataLoaderConfiguration

def train(name, steps, loads=False, kind="loader"):
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    if kind == "loader":
        loader = ps.torch.Loader(dataset(), global_batch=4)
        assert (loader.rank, loader.world) == (accelerator.process_index, accelerator.num_processes)
        accelerator.register_for_checkpointing(loader)
    else:
        loader = torch.utils.data.DataLoader(ps.torch.MapDataset(dataset()), batch_size=4, num_workers=1)
    given = loader
    model = torch.nn.Linear(4, 1)
    model, optimiser, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    assert (loader is given) == (kind == "loader")
    if loads:
        accelerator.load_state(str(WORK / kind))
    step = 0
    while True:
        for batch in loader:
            accelerator.backward(model(batch["y"] / 20).mean())
            optimiser.step()
            optimiser.zero_grad()
            log(f"{name} {accelerator.process_index}", batch)
            step += 1
            if step == KILL:
                accelerator.save_state(str(WORK / kind))
                accelerator.wait_for_everyone()
                os.kill(os.getpid(), signal.SIGKILL)
            if step == steps:
                accelerator.end_training()
                return

train(sys.argv[4], int(sys.argv[5]), loads=sys.argv[6] == "loads", kind=sys.argv[7])
"""

FSDP = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

class App:
    def __init__(self, model, optimiser):
        self.model, self.optimiser = model, optimiser
    def state_dict(self):
        model, optimiser = get_state_dict(self.model, self.optimiser)
        return {"model": model, "optimiser": optimiser}
    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])

def train(name, steps, loads):
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = ps.torch.Loader(dataset(), global_batch=4)
    state = {"app": App(model, optimiser), "loader": loader}
    if loads:
        dcp.load(state, checkpoint_id=str(WORK / "fsdp"))
    step = 0
    while True:
        for batch in loader:
            model(batch["y"] / 20).mean().backward()
            optimiser.step()
            optimiser.zero_grad()
            log(f"{name} {dist.get_rank()}", batch)
            step += 1
            if step == KILL:
                dcp.save(state, checkpoint_id=str(WORK / "fsdp"))
                os.kill(os.getpid(), signal.SIGKILL)
            if step == steps:
                dist.barrier()
                dist.destroy_process_group()
                return

train(sys.argv[4], int(sys.argv[5]), sys.argv[6] == "loads")
"""

STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader

def loader(kind):
    if kind == "loader":
        return ps.torch.Loader(dataset(), batch_size=4)  # has the same protocol
    source = ps.torch.MapDataset(dataset()) if kind == "map" else ps.torch.StreamDataset(dataset(), batch_size=4)
    torch.manual_seed(1)
    workers = 2 if kind == "stream 2" else 0
    return StatefulDataLoader(source, batch_size=4, num_workers=workers, shuffle=kind == "map")

if KILL > 0:
    for kind in ("stream", "stream 2", "map", "loader"):
        batches, step = loader(kind), 0
        for _ in range(2):
            for batch in batches:
                step = log(f"{kind} killed", batch)
                torch.save(batches.state_dict(), WORK / f"{kind} {step}")
                if step == KILL:
                    break
            if step == KILL:
                break
    os.kill(os.getpid(), signal.SIGKILL)
for kind in ("stream", "stream 2", "map", "loader"):
    batches = loader(kind)
    for _ in range(2):
        for batch in batches:
            log(f"{kind} whole", batch)
    whole, killed = (open(WORK / f"{kind} {name}").readlines() for name in ("whole", "killed"))
    assert killed == whole[: len(killed)] and len(killed) == 9 and len(whole) >= 12, (kind, killed, whole)
    epoch = len(whole) // 2
    for step in range(1, 10):
        batches, state = loader(kind), torch.load(WORK / f"{kind} {step}", weights_only=False)
        batches.load_state_dict(state)
        for _ in range(2 if step <= epoch else 1):
            for batch in batches:
                log(f"{kind} from {step}", batch)
        rest = open(WORK / f"{kind} from {step}").readlines()
        assert rest == whole[step:], (kind, step, rest, whole)
"""

JAX = """
import jax
import numpy as np
import orbax.checkpoint as ocp
from grain import checkpoint
from penstock.jax import Loader

def loader():
    return Loader(dataset(), batch_size=4, tail="drop")

def args(batches, does_save):
    own, json_args = (checkpoint.CheckpointSave, ocp.args.JsonSave) if does_save else (checkpoint.CheckpointRestore, ocp.args.JsonRestore)
    return ocp.args.Composite(grain=own(batches), place=json_args(batches.state_dict()) if does_save else json_args())

def manager():
    return ocp.CheckpointManager(WORK.resolve() / "orbax", options=ocp.CheckpointManagerOptions(max_to_keep=3))

if KILL > 0:
    kept, batches = manager(), loader()
    for step, batch in enumerate(batches, 1):
        log("killed", {"y": np.asarray(batch["y"])})
        if step == 3:
            kept.save(step, args=args(batches, True))
            kept.wait_until_finished()
            os.kill(os.getpid(), signal.SIGKILL)
whole = loader()
for _ in range(2):
    for batch in whole:
        log("whole", {"y": np.asarray(batch["y"])})
kept = manager()
assert kept.latest_step() == 3
resumed, by_json = loader(), loader()
restored = kept.restore(3, args=args(resumed, False))
by_json.load_state_dict(restored["place"])
for name, batches in (("rest", resumed), ("by json", by_json)):
    for _ in range(2):
        for batch in batches:
            log(name, {"y": np.asarray(batch["y"])})
    assert open(WORK / "killed").readlines() + open(WORK / name).readlines() == open(WORK / "whole").readlines(), name
assert json.loads(resumed.get_state()) == resumed.state_dict()
"""

ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / '.tools/adapters'}",
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
}


def start(program: str, *arguments: object, kills: bool = False, world: int = 1) -> None:
    """Runs the program in `world` processes, as torchrun does. With `kills`, all of them must kill themselves."""
    ranks = []
    port = str(ports.free_port())
    for rank in range(world):
        place = (
            {}
            if world == 1 and program != FSDP
            else {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
        )
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", COMMON + program, *map(str, arguments)],
                env={**os.environ, **ENVIRONMENT, **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        output = [rank.communicate(timeout=280)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL if kills else 0] * world, [
        text[-3000:] for text in output
    ]


def rows(folder: Path, name: str, world: int) -> list[list[int]]:
    """Sample numbers of each step, joined over ranks."""
    ranks = [
        [json.loads(line) for line in (folder / f"{name} {rank}").read_text().splitlines()] for rank in range(world)
    ]
    return [[row for part in step for row in part] for step in zip(*ranks, strict=True)]


@pytest.mark.timeout(600)
def test_lightning_resumes_after_every_step_from_its_own_checkpoint(tmp_path):
    """Lightning itself stores and restores the state of a loader in its fit loop, without any code of the user."""
    folder = write(tmp_path / "data", [2] * 11)
    start(LIGHTNING, folder, tmp_path, 9, kills=True)
    assert len((tmp_path / "whole").read_text().splitlines()) == 9
    start(LIGHTNING, folder, tmp_path, -1)


@pytest.mark.parametrize("kind", ["loader", "map"])
@pytest.mark.timeout(600)
def test_transformers_trainer_resumes_after_every_step(tmp_path, kind):
    """With 4 batches per update and 6 per epoch, so that the last update of an epoch has fewer."""
    folder = write(tmp_path / "data", [2] * 11)
    start(TRAINER, folder, tmp_path, 3, kind, kills=True)
    start(TRAINER, folder, tmp_path, -1, kind)


@pytest.mark.timeout(600)
def test_accelerate_shards_a_loader_once_and_resumes_on_another_number_of_processes(tmp_path):
    folder = write(tmp_path / "data", [2] * 11)
    start(ACCELERATE, folder, tmp_path, -1, "whole", 13, "starts", "loader", world=2)
    whole = rows(tmp_path, "whole", 2)
    assert len({row for step in whole[:5] for row in step}) == 20  # no sample of an epoch twice
    start(ACCELERATE, folder, tmp_path, 7, "killed", 13, "starts", "loader", kills=True, world=2)
    assert rows(tmp_path, "killed", 2) == whole[:7]
    start(ACCELERATE, folder, tmp_path, -1, "rest", 3, "loads", "loader", world=2)
    assert rows(tmp_path, "rest", 2) == whole[7:10]
    start(ACCELERATE, folder, tmp_path, -1, "alone", 2, "loads", "loader")
    assert rows(tmp_path, "alone", 1)[:2] == whole[7:9]


@pytest.mark.timeout(600)
def test_accelerate_resumes_a_data_loader_over_a_map_dataset_by_itself(tmp_path):
    folder = write(tmp_path / "data", [2] * 11)
    for name, steps, kill in (("whole", 9, -1), ("killed", 9, 4)):
        start(ACCELERATE, folder, tmp_path, kill, name, steps, "starts", "map", kills=kill > 0)
    start(ACCELERATE, folder, tmp_path, -1, "rest", 2, "loads", "map")
    whole = rows(tmp_path, "whole", 1)
    assert rows(tmp_path, "killed", 1) == whole[:4]
    assert rows(tmp_path, "rest", 1) == whole[4:6]


@pytest.mark.timeout(600)
def test_fsdp_checkpoint_holds_the_loader_and_resumes_on_one_rank(tmp_path):
    folder = write(tmp_path / "data", [2] * 11)
    start(FSDP, folder, tmp_path, -1, "whole", 9, "starts", world=2)
    start(FSDP, folder, tmp_path, 3, "killed", 9, "starts", kills=True, world=2)
    start(FSDP, folder, tmp_path, -1, "rest", 6, "loads", world=2)
    start(FSDP, folder, tmp_path, -1, "alone", 2, "loads")
    whole = rows(tmp_path, "whole", 2)
    assert rows(tmp_path, "killed", 2) + rows(tmp_path, "rest", 2) == whole
    assert rows(tmp_path, "alone", 1) == whole[3:5]


@pytest.mark.timeout(600)
def test_stateful_data_loader_resumes_all_datasets_after_every_step(tmp_path):
    folder = write(tmp_path / "data", [2] * 11)
    start(STATEFUL, folder, tmp_path, 9, kills=True)
    start(STATEFUL, folder, tmp_path, -1)


@pytest.mark.timeout(600)
def test_jax_loader_resumes_from_grains_and_orbaxs_checkpoints(tmp_path):
    folder = write(tmp_path / "data", [2] * 11)
    start(JAX, folder, tmp_path, 3, kills=True)
    start(JAX, folder, tmp_path, -1)
