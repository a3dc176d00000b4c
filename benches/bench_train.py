# SPDX-License-Identifier: Apache-2.0
"""Cost of the training loop at 1 and 2 ranks, and of the data path of CosmoFlow beside synthetic data.

    python benches/bench_train.py [FOLDER]

FOLDER holds CosmoFlow volumes of 32 voxels. Without it, the second part is left out. Aims: the loop costs less than
0.5 ms per step at 2 ranks, and the rate on real data is at least 0.98 of that on synthetic data.
"""

from __future__ import annotations

import sys
from statistics import median

from penstock.train import TrainSpec, run

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
        turn_steps=40,
        warm_up_steps=5,
        max_turns=60,
    )
    found = run(spec)["data_path"]
    low, high = found["interval"]
    print(f"real / synthetic = {found['ratio']:.3f} ({low} to {high}): {found['verdict']}; {found['reason']}")


if __name__ == "__main__":
    for count in (1, 2):
        loop(count)
    if len(sys.argv) > 1:
        data_path(sys.argv[1])
