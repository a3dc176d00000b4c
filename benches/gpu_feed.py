# SPDX-License-Identifier: Apache-2.0
"""Measures a GPU's training rate with data from files and with batches resident in GPU memory, and loader scaling.

    python benches/gpu_feed.py FOLDER [--what cosmoflow,resnet50,cores] [--steps 200] [--rounds 5] [--device cuda] [--json]

`cosmoflow`: stored gzip'd TFRecords of 128^3 x 4 int16, into MLPerf's network. `resnet50`: JPEGs in tar shards, cropped
at random and flipped, into torchvision's network. Fed and synthetic rounds alternate, and the order changes each round;
warm-up steps are not counted. The host runs at most two steps ahead of the device, so that it does not spin on a full
queue. One pass covers a round: the files are in the page cache and are read repeatedly in new orders. The ratio
compares steps per second. CPU is that of the whole process; a second figure subtracts the CPU of synthetic rounds.
Before and after the rounds, some batches stay on the device while the network continues to train without
synchronisation. They are then compared with the NumPy loader's batches, byte for byte.

`cores`: reads only the volumes into batches, in processes that may use 1, 2, 4 ... cores. Efficiency is the rate per
core relative to one core. It cannot reach 1 where two cores are threads of one physical core, which `lscpu -e` shows.

The data are made in FOLDER at the first call (some minutes). No GPU is needed to try it:
`--device cpu --voxels 32 --steps 3`.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent / "peers" / "feed"))

import data
import torch

import penstock
from penstock import _native
from penstock.workloads.cosmoflow.model import CosmoFlowNet, as_input
from penstock.workloads.cosmoflow.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARM_UP = 20
COMPARED = 8
MEMORY = 4 << 30
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def made(place: Path, make: Callable[[Path], None]) -> Path:
    """Makes a data folder; it appears under its final name only when it is complete."""
    if not place.exists():
        new = place.with_name(place.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        make(new)
        new.rename(place)
    return place


def volumes_of(asked: argparse.Namespace) -> str:
    """Folder name of the requested volumes."""
    return f"volumes-{asked.voxels}-{asked.samples}"


def cosmoflow(folder: Path, asked: argparse.Namespace) -> tuple[penstock.Dataset, Any, Callable[..., Any]]:
    """The volumes as a dataset, the network, and the loss function of a batch."""
    place = made(folder / volumes_of(asked), lambda new: data.volumes(new, asked.samples, asked.voxels))
    shape = (asked.voxels,) * 3 + (4,)
    opened = penstock.open(place.as_uri(), records_per_object=1)
    fields = opened.fields(x=penstock.tensor("int16", shape), y=penstock.tensor("float32", (4,)))
    device = torch.device(asked.device)
    net = CosmoFlowNet(Recipe(voxels=asked.voxels)).to(device)

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(net(as_input(batch["x"], device)), batch["y"])

    return fields.shuffle(0), net, loss


def resnet50(folder: Path, asked: argparse.Namespace) -> tuple[penstock.Dataset, Any, Callable[..., Any]]:
    """The JPEGs as a dataset, the network, and the loss function of a batch."""
    from torchvision.models import resnet50 as network

    place = made(
        folder / f"pictures-{asked.pictures}", lambda new: data.write_tars(new, 16, max(1, asked.pictures // 16))
    )
    picture = penstock.image(224, crop="random", flip=True).of("jpg")
    fields = penstock.open(place.as_uri()).fields(x=picture, y=penstock.raw().of("cls"))
    device = torch.device(asked.device)
    net = network().to(device, memory_format=torch.channels_last)
    mean, std = (torch.tensor(each, device=device).view(1, 3, 1, 1) * 255 for each in (MEAN, STD))

    def loss(batch: dict[str, Any]) -> torch.Tensor:
        x = (batch["x"].permute(0, 3, 1, 2).to(torch.float32) - mean) / std
        classes = torch.tensor([int(bytes(each)) for each in batch["y"]]).to(device, non_blocking=True)
        return torch.nn.functional.cross_entropy(net(x), classes)

    return fields.shuffle(0), net, loss


def trainer(net: Any, loss: Callable[..., Any], device: str) -> Callable[[dict[str, Any]], None]:
    """Returns a function that runs one step: forward and backward (in bfloat16 on a GPU), and an update."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    def step(batch: dict[str, Any]) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            value = loss(batch)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()

    return step


class Pace:
    """Keeps the host at most two steps ahead of the device; the host sleeps while it waits."""

    def __init__(self, device: str) -> None:
        self._has_queue = device != "cpu"
        self._stood: collections.deque[Any] = collections.deque()

    def mark(self, behind: int = 2) -> None:
        """Waits for the step that was submitted `behind` steps ago."""
        if self._has_queue:
            self._stood.append(torch.cuda.Event(blocking=True))
            self._stood[-1].record()
            while len(self._stood) > behind:
                self._stood.popleft().synchronize()

    def settled(self) -> float:
        """The time after all submitted work has finished."""
        self.mark(behind=0)
        return time.perf_counter()


def timed(batches: Iterator[Any], step: Callable[[Any], None], steps: int, device: str) -> dict[str, float]:
    """Steps per second and CPU seconds per step."""
    pace = Pace(device)
    for batch in itertools.islice(batches, WARM_UP):
        step(batch)
        pace.mark()
    began, used = pace.settled(), time.process_time()
    for batch in itertools.islice(batches, steps):
        step(batch)
        pace.mark()
    ended = pace.settled()
    return {"steps_per_s": steps / (ended - began), "cpu_s_per_step": (time.process_time() - used) / steps}


def compare(dataset: penstock.Dataset, batch: int, step: Callable[[Any], None], device: str) -> int:
    """Compares batches that stay on the device during training with batches of the NumPy loader; returns the number of
    batches.

    Raises:
        SystemExit: The bytes of a batch differ.
    """
    kept = []
    for number, there in enumerate(loader(dataset, batch, device)):
        step(there)
        if number < COMPARED:
            kept.append(there["x"].clone())
    plain = penstock.Loader(dataset, batch_size=batch, tail="drop", memory_bytes=MEMORY)
    for number, (there, here) in enumerate(zip(kept, plain, strict=False)):
        if there.cpu().numpy().tobytes() != here["x"].tobytes():
            raise SystemExit(f"batch {number} on {device} is not what was read")
    return len(kept)


def loader(dataset: penstock.Dataset, batch: int, device: str) -> penstock.torch.Loader:
    """Our loader; on the CPU its batches use the feed's own memory."""
    place = None if device == "cpu" else device
    return penstock.torch.Loader(dataset, batch_size=batch, device=place, tail="drop", memory_bytes=MEMORY)


def fed_and_synthetic(name: str, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Runs fed and synthetic rounds by turns."""
    dataset, net, loss = (cosmoflow if name == "cosmoflow" else resnet50)(folder, asked)
    batch = asked.batch or (4 if name == "cosmoflow" else 256)
    batch = min(batch, dataset.samples)
    step = trainer(net, loss, asked.device)
    compared = compare(dataset, batch, step, asked.device)
    # One pass is longer than a round, so no round contains the start or the end of an epoch.
    feed = loader(dataset.repeat(2 + (WARM_UP + asked.steps) * batch // dataset.samples), batch, asked.device)
    resident = {name: value.clone() if hasattr(value, "clone") else value for name, value in next(iter(feed)).items()}
    rounds: dict[str, list[dict[str, float]]] = {"synthetic": [], "fed": []}
    for number in range(asked.rounds):
        for side in ("synthetic", "fed") if number % 2 == 0 else ("fed", "synthetic"):
            batches = iter(feed) if side == "fed" else itertools.repeat(resident)
            rounds[side].append(timed(batches, step, asked.steps, asked.device))
    report = feed.report()
    compared += compare(dataset, batch, step, asked.device)
    rate = {side: statistics.median(each["steps_per_s"] for each in of) for side, of in rounds.items()}
    cpu = {side: statistics.median(each["cpu_s_per_step"] for each in of) for side, of in rounds.items()}
    return {
        "batches_compared": compared,
        "batch": batch,
        "samples_per_s": rate["fed"] * batch,
        "fed_over_synthetic": rate["fed"] / rate["synthetic"],
        "fed_over_synthetic_by_round": [
            fed["steps_per_s"] / synthetic["steps_per_s"]
            for fed, synthetic in zip(rounds["fed"], rounds["synthetic"], strict=True)
        ],
        "cpu_ms_per_sample": 1e3 * cpu["fed"] / batch,
        "cpu_ms_per_sample_beyond_synthetic": 1e3 * (cpu["fed"] - cpu["synthetic"]) / batch,
        "wait_share": report["wait_share"],
        "limiting": report["limiting"],
        "device": report["device"],
        "rounds": rounds,
    }


_PASS = """
import json, os, sys, time
import penstock
cores = sorted(os.sched_getaffinity(0))[: int(sys.argv[2])]
os.sched_setaffinity(0, cores)
shape = (int(sys.argv[3]),) * 3 + (4,)
dataset = penstock.open(sys.argv[1], records_per_object=1).fields(x=penstock.tensor("int16", shape))
# Batches in flight when the clock starts are already partly processed. Over many batches, this hardly matters.
batch, warm = min(4, dataset.samples), 20
want = (warm + 60 * max(2, len(cores))) * batch
loader = penstock.Loader(dataset.shuffle(0).repeat(2 + want // dataset.samples), batch_size=batch, memory_bytes=4 << 30)
batches, samples, moved = iter(loader), 0, 0
for _ in range(warm):
    next(batches)
began, used = time.perf_counter(), time.process_time()
while samples < want - warm * batch:
    got = next(batches)["x"]
    samples, moved = samples + len(got), moved + got.nbytes
wall, cpu = time.perf_counter() - began, time.process_time() - used
print(json.dumps({"samples_per_s": samples / wall, "inflated_gb_per_s": moved / wall / 1e9, "cpu_ms_per_sample": 1e3 * cpu / samples}))
"""


def cores(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Runs one process for each core count, by turns."""
    cosmoflow(folder, asked)
    here = len(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count <= here]
    rounds: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    url = (folder / volumes_of(asked)).as_uri()
    for _ in range(asked.rounds):
        for count in counts:
            argv = [sys.executable, "-c", _PASS, url, str(count), str(asked.voxels)]
            rounds[count].append(json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout))
    result = {
        count: {name: statistics.median(each[name] for each in of) for name in of[0]} for count, of in rounds.items()
    }
    one = result[1]["samples_per_s"]
    return {str(n): {**row, "efficiency": row["samples_per_s"] / one / n} for n, row in result.items()}


def main() -> int:
    """Runs the requested measurements and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--what", default="cosmoflow,resnet50,cores")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, help="samples a step; by default 4 volumes or 256 pictures")
    parser.add_argument("--samples", type=int, default=64, help="volumes to make")
    parser.add_argument("--pictures", type=int, default=2048, help="pictures to make")
    parser.add_argument("--voxels", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    asked.folder = asked.folder.resolve()
    torch.backends.cudnn.benchmark = True
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if asked.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "penstock": f"{penstock.__version__}, {_native.__profile__}",
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    for name in asked.what.split(","):
        result[name] = cores(asked.folder, asked) if name == "cores" else fed_and_synthetic(name, asked.folder, asked)
        if not asked.json:
            print(name, json.dumps({key: value for key, value in result[name].items() if key != "rounds"}, indent=1))
    if asked.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
