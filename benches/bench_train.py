# SPDX-License-Identifier: Apache-2.0
"""Cost of the training loop at 1 and 2 ranks, and of the data path of CosmoFlow and of the trivial model.

    python benches/bench_train.py [VOLUMES [IMAGES]]

VOLUMES holds CosmoFlow volumes of 32 voxels, and IMAGES holds images of 10 classes (`penstock dataset images`). Without
a folder, its part is left out. Aims: the loop costs less than 0.5 ms per step at 2 ranks, the rate on real volumes is at
least 0.98 of that on synthetic ones, and the trivial model trains at 0.97 or more of the rate of the feed alone. The
trivial model reads the images from the folder, where it shares the CPU with the decoder, and from an emulated store,
whose limits bound the rate.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import penstock.torch
from penstock import env
from penstock.emulator import Emulator
from penstock.train import TrainSpec, run

TURNS = 5
STORE_SCALE = 0.008
STEP_S = 0.0035  # an emulated H100 at batch 1


def loop(ranks: int) -> None:
    """Print what a step costs beyond the emulated computation."""
    spec = TrainSpec(
        workload="cosmoflow",
        data=f"dummy://{800 * ranks}",
        global_batch=ranks,
        accelerator="h100",
        settings={"voxels": 32},
        threads=1,
        ranks=ranks,
        keep_step_times=True,
    )
    result = run(spec)
    parts = result["step_breakdown"]["parts"]
    own_s = parts["other_s"] + parts["data_wait_s"]
    over_s = median(seconds for _, seconds in result["step_times"][50:]) - STEP_S
    print(
        f"{ranks} ranks: the loop costs {1e6 * own_s:.0f} us per step; a median step takes {1e6 * over_s:.0f} us more than "
        f"its computation, with the barrier"
    )


def data_path(folder: str) -> None:
    """Print the rate of real data beside that of synthetic data."""
    spec = TrainSpec(
        workload="cosmoflow",
        data=folder,
        global_batch=4,
        settings={"recipe": "demo"},
        threads=1,
        compare_synthetic=True,
        warm_up_steps=5,
        max_turns=60,
    )
    found = run(spec)["data_path"]
    low, high = found["interval"]
    print(f"real / synthetic = {found['ratio']:.3f} ({low} to {high}): {found['verdict']}; {found['reason']}")


def ceiling(folder: str, batch: int, *, amp: bool, classes: int = 10, device: str = "cpu") -> None:
    """Print the rate of the trivial model beside that of the feed alone: second epochs, in turn."""
    spec = TrainSpec(
        workload="trivial",
        data=folder,
        global_batch=batch,
        settings={"classes": classes, "amp": amp},
        epochs=2,
        device=device,
    )
    trained, fed = [], []
    for _ in range(TURNS):
        epoch = run(spec)["epoch_times"][1]
        trained.append(epoch["samples"] / epoch["wall_s"])
        image = penstock.image(227, crop="random", flip=True).of("jpg")
        loader = penstock.torch.Loader(
            penstock.open(folder).shuffle(seed=0).fields(image=image, label=penstock.tensor("int64", ()).of("cls")),
            batch_size=batch,
            tail="drop",
            device=device,
        )
        for _ in loader:
            pass
        start, samples = time.perf_counter(), 0
        for columns in loader:
            samples += len(columns["label"])
        fed.append(samples / (time.perf_counter() - start))
    ratio = median(one / other for one, other in zip(trained, fed, strict=True))
    print(
        f"trivial, batches of {batch}{', bfloat16' if amp else ''}: {median(trained):.0f} images/s, feed alone "
        f"{median(fed):.0f}; median ratio {ratio:.3f}"
    )


if __name__ == "__main__":
    for count in (1, 2):
        loop(count)
    if len(sys.argv) > 1:
        data_path(sys.argv[1])
    if len(sys.argv) > 2:
        for batch in (32, 256):
            for amp in (False, True):
                ceiling(sys.argv[2], batch, amp=amp)
        with Emulator(sys.argv[2], tier="azure-hot", scale=STORE_SCALE) as store, env.override(store.env):
            print(f"from a store of {STORE_SCALE * 6.25e3:.0f} MB/s and {STORE_SCALE * 20e3:.0f} requests/s: ", end="")
            ceiling(store.url, 256, amp=True)
