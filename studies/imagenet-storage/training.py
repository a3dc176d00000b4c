# SPDX-License-Identifier: Apache-2.0
"""Runs `penstock train` in a process of its own, from any data, and reads its result.

A model is a table of spec.toml. With GPUs, it is an emulated accelerator of their number at scale F: steps take the
published time, and images are really read and decoded. Without GPUs, the model is really trained on the CPU.
"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import env
from penstock.bench.results import load_all
from penstock.child_process import child_process
from penstock.errors import RankFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.bench.results import RunRecord

__all__ = ["Training", "demand_of", "run_training", "train_argv"]

_GRACE_S = 10.0
_WARM_UP = 2


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """One training.

    Attributes:
        model: Table `[model.NAME]` of spec.toml.
        gpus: Number of emulated accelerators; 0 trains the model on the CPU.
        scale: F, the factor on the accelerators' rate.
        images_per_s: Expected rate, which determines the number of steps.
        seconds: Duration of the measured steps at the expected rate.
        epochs: Whole epochs instead of `seconds`; 0 for one part of an epoch.
        memory_bytes: Limit of the loader's data in flight; None is the loader's own. If a window of shards does not fit,
            as in the published data set, the loader reads single images and not whole shards.
    """

    data: str
    model: Mapping[str, Any]
    gpus: int
    scale: float
    batch: int
    images_per_s: float = 0.0
    seconds: float = 0.0
    epochs: int = 0
    memory_bytes: int | None = None


def demand_of(model: Mapping[str, Any], gpus: int) -> float:
    """Images/s that this number of accelerators can use; inf for the trivial model, whose compute is negligible."""
    return gpus * float(model.get("images_per_s", math.inf))


def train_argv(training: Training, out: Path) -> list[str]:
    """Return the command line of a training, whose result is saved below `out`."""
    model = training.model
    argv = [sys.executable, "-m", "penstock", "train", str(model["workload"]), "--data", training.data]
    argv += ["--batch-size", str(training.batch), "--output", str(out), "--allow-debug", "--device", "cpu"]
    if training.gpus:
        factor = training.gpus * training.scale * float(model.get("factor", 1.0))
        argv += ["--accelerator", str(model["accelerator"]), "--set", f"accelerator_scale={factor:.6g}"]
    if training.memory_bytes is not None:
        argv += ["--memory", str(training.memory_bytes)]
    if training.epochs:
        return [*argv, "--epochs", str(training.epochs)]
    steps = _WARM_UP + max(4, math.ceil(training.images_per_s * training.seconds / training.batch))
    return [*argv, "--steps", str(steps), "--warm-up", str(_WARM_UP)]


def run_training(training: Training, out: Path, variables: Mapping[str, str], *, limit_s: float = 600.0) -> RunRecord:
    """Run a training to its end; return its result.

    Raises:
        RankFailed: The training failed, or ran longer than `limit_s`.
    """
    options: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "env": {**env.read(), **variables},
    }
    with child_process(train_argv(training, out), grace_s=_GRACE_S, **options) as child:
        try:
            _, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise RankFailed(f"training from {training.data} did not end within {limit_s:.0f} s", rank=0) from None
    if child.returncode != 0:
        text = errors.decode(errors="replace").strip()[-500:]
        raise RankFailed(f"training from {training.data}: exit code {child.returncode}: {text}", rank=0)
    return load_all(out)[-1]
