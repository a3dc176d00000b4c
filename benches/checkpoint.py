# SPDX-License-Identifier: Apache-2.0
"""Compares the checkpoints of `penstock train` with `torch.save`, and measures what they cost the training.

    .venv/bin/python benches/checkpoint.py [FOLDER] [--bytes 1000000000] [--repeats 5] [--json]

The state is a model of linear layers with AdamW's moments. Both programs write it to FOLDER and sync it to disk; the
repeats alternate. Then the model trains: steps without a checkpoint, and steps during one, in turns. The stall is the
time in which the training waits in `save` and before the optimiser's step; its share is relative to the time from the
call of `save` to the commit. `slowdown_s` is the additional time of all steps during a checkpoint, including the stall.
If all cores of the machine train, the writer takes its CPU time from the training. Penstock and `torch.save` both store
checksums. The output states the load of the machine, because other processes change the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from penstock.feed.checkpoint.folder import CheckpointFolder
from penstock.train.checkpoint_saver import CheckpointSaver

WIDTH = 2048
BATCH = 64


def training(size: int) -> tuple[Any, Any]:
    """A step function and a state function of about `size` bytes: weights and two moments in float32."""
    torch.manual_seed(1)
    layers = max(1, round(size / (12 * WIDTH * WIDTH)))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(BATCH, WIDTH)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    def state() -> dict[str, Any]:
        return {"learnt": {}, "epoch": 0, "steps": 0, "model": model.state_dict(), "optimiser": optimiser.state_dict()}

    return step, state


def saved_by_torch(folder: Path, state: dict[str, Any]) -> float:
    """Seconds of `torch.save` with fsync."""
    file = folder / "state.pt"
    began = time.perf_counter()
    torch.save(state, file)
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    took_s = time.perf_counter() - began
    file.unlink()
    return took_s


def measure(folder: Path, size: int, repeats: int) -> dict[str, Any]:
    """Figures of all repeats, in seconds."""
    load_before = os.getloadavg()[0]
    step, state = training(size)
    saver = CheckpointSaver(CheckpointFolder(folder / "run"), keep=1, rank=0)
    step()
    rows: dict[str, list[float]] = {
        name: [] for name in ("torch_save_s", "save_s", "busy_save_s", "stall_s", "step_s", "busy_step_s", "slowdown_s")
    }
    number = 0

    def save() -> None:
        nonlocal number
        number += 1
        saver.save(number, state())

    save()  # the first save allocates the memory of the copy
    saver.finish()
    bytes_each = saver.times.bytes
    for _ in range(repeats):
        os.sync()
        rows["torch_save_s"].append(saved_by_torch(folder, state()))
        os.sync()
        began = time.perf_counter()
        save()
        saver.finish()
        rows["save_s"].append(time.perf_counter() - began)
    for _ in range(repeats):
        os.sync()
        began = time.perf_counter()
        for _ in range(3):
            step()
        idle_s = (time.perf_counter() - began) / 3
        stalled_s = saver.times.stall_s
        commits = saver.times.saves
        began = time.perf_counter()
        save()
        steps = 0
        while saver.times.saves == commits:
            step()
            steps += 1
        busy_s = time.perf_counter() - began
        rows["busy_save_s"].append(saver.times.last_save_s)
        rows["stall_s"].append(saver.times.stall_s - stalled_s)
        rows["step_s"].append(idle_s)
        rows["busy_step_s"].append(busy_s / steps)
        rows["slowdown_s"].append(busy_s - steps * idle_s)
    saver.finish()
    saver.close()
    median = {name: statistics.median(values) for name, values in rows.items()}
    return {
        "bytes": bytes_each,
        "repeats": repeats,
        "cores": os.cpu_count(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "rows": rows,
        "median": median,
        "torch_save_bytes_per_s": bytes_each / median["torch_save_s"],
        "save_bytes_per_s": bytes_each / median["save_s"],
        "ratio": statistics.median(a / b for a, b in zip(rows["torch_save_s"], rows["save_s"], strict=True)),
        "stall_share": statistics.median(a / b for a, b in zip(rows["stall_s"], rows["busy_save_s"], strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="folder on the measured disk")
    parser.add_argument("--bytes", type=int, default=10**9)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-bench-", dir=given.folder))
    try:
        found = measure(folder, given.bytes, given.repeats)
    finally:
        shutil.rmtree(folder)
    if given.json:
        print(json.dumps(found))
        return
    middle = found["median"]
    print(
        f"{found['bytes'] / 1e6:,.0f} MB, {found['repeats']} repeats, medians; {found['cores']} cores, load {found['load_before']:.1f} to {found['load_after']:.1f}"
    )
    print(f"torch.save + fsync   {middle['torch_save_s']:6.2f} s  {found['torch_save_bytes_per_s'] / 1e6:7,.0f} MB/s")
    print(
        f"penstock, alone      {middle['save_s']:6.2f} s  {found['save_bytes_per_s'] / 1e6:7,.0f} MB/s   {found['ratio']:.2f} x torch.save"
    )
    print(
        f"penstock, in training{middle['busy_save_s']:6.2f} s; stall {1000 * middle['stall_s']:.0f} ms = {100 * found['stall_share']:.1f} %"
    )
    print(
        f"step {1000 * middle['step_s']:.0f} ms alone, {1000 * middle['busy_step_s']:.0f} ms during a checkpoint; all steps of a checkpoint take {1000 * middle['slowdown_s']:+.0f} ms"
    )


if __name__ == "__main__":
    main()
