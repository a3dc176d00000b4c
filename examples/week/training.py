# SPDX-License-Identifier: Apache-2.0
"""Code that the programs of this folder share: a rank's device, and checkpoints of model, optimiser and loader.

A checkpoint contains the loader's state of every rank. For most datasets, all ranks have the same state, and a job
resumes on any number of ranks. Datasets that are rebatched, or packed without counts, have a state per rank, and
reject it on a different number of ranks.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from penstock.torch import CheckpointReader, CheckpointWriter, Loader, latest_checkpoint


def start() -> torch.device:
    """Join the ranks that torchrun started, and return this rank's device."""
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        distributed.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", distributed.get_node_local_rank())
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl")
    return device


class Checkpoints:
    """Checkpoints of a training in a folder or a bucket; two of them are kept."""

    def __init__(self, url: str, model: nn.Module, optimiser: torch.optim.Optimizer, loader: Loader) -> None:
        self.url, self.model, self.optimiser, self.loader = url, model, optimiser, loader
        self.writer = CheckpointWriter(url, keep=2)
        self.saved = 0

    def save(self, step: int) -> None:
        """Save a checkpoint after `step` steps, unless it is the latest one. All ranks call it."""
        if step != self.saved:
            dcp.save({"training": self}, checkpoint_id=str(step), storage_writer=self.writer)
            self.saved = step

    def resume(self) -> int:
        """Load the latest whole checkpoint. Return its step, or 0 without a checkpoint."""
        latest = latest_checkpoint(self.url)
        if latest is None:
            return 0
        dcp.load({"training": self}, storage_reader=CheckpointReader(self.url))
        self.saved = latest.step
        return latest.step

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint contains. Called by `dcp`."""
        states: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(states, self.loader.state_dict())
        model, optimiser = get_state_dict(self.model, self.optimiser)
        return {"model": model, "optimiser": optimiser, "data": json.dumps(states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the model, the optimiser and the loader's position. Called by `dcp`."""
        set_state_dict(self.model, self.optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
        states = json.loads(state["data"])
        self.loader.load_state_dict(states[distributed.get_rank() % len(states)])
