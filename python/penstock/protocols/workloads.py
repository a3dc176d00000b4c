# SPDX-License-Identifier: Apache-2.0
"""Interface of workloads, which consume samples, and its types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Batch", "Demand", "InputField", "StepCost", "Workload", "WorkloadSpec"]

Batch = Mapping[str, Any]
"""Field name -> array (NumPy or torch, by the Demand), samples along the first axis; `bytes` fields -> list of buffers."""


@dataclass(frozen=True)
class InputField:
    """One field of a sample as it is stored: dtype by NumPy's name, shape without the batch axis.

    Two dtypes are not NumPy's: `bytes`, of any stored length (a list of buffers in the batch; shape ()), and `image`,
    an image decoded to uint8 of shape (height, width, 3).
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WorkloadSpec:
    """The parameters of the run that a workload is part of.

    Attributes:
        seed: Seed of the weights and of all other randomness in a step.
        global_batch: Samples of all ranks in one step.
        rank, world: Number of this worker, and number of workers; if `world` is above 1, torch's default process group
            is initialised.
        device: `cpu` or `cuda:N`.
        accelerator: Name of an accelerator to emulate instead of running the step; None trains.
        settings: The workload's own settings; it refuses unknown names.
    """

    seed: int
    global_batch: int
    rank: int = 0
    world: int = 1
    device: str = "cpu"
    accelerator: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Demand:
    """Input that a workload needs.

    Attributes:
        fields: Fields of a sample, as stored.
        arrays: Kind of array that `step` takes.
        sample_bytes: Bytes of one decoded sample.
        samples_per_s: Rate of one rank without any wait; None if only a measurement can show it.
        facts: Values for the result besides the settings (parameter count, deviation from a published model).
    """

    fields: Mapping[str, InputField]
    arrays: Literal["numpy", "torch"]
    sample_bytes: int
    samples_per_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of a step.

    Attributes:
        samples: Samples of this rank's slice.
        compute_s: Seconds of computing (or emulating it), without the overshoot of an emulated step.
        sync_s: Seconds spent waiting for other ranks, if they can be separated from computing.
        loss: Loss of this rank's slice; None if nothing is trained.
    """

    samples: int
    compute_s: float
    sync_s: float = 0.0
    loss: float | None = None


@runtime_checkable
class Workload(Protocol):
    """Consumer of samples at the end of the feed. Calls come in the order below, from one thread."""

    def demand(self, spec: WorkloadSpec) -> Demand:
        """The demand under this spec. Cheap, and called before everything else; refuses bad settings with ConfigError."""
        ...

    def prepare(self, spec: WorkloadSpec) -> None:
        """Build what the steps need. Called once."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch, counted from 0, begins or resumes."""
        ...

    def step(self, batch: Batch) -> StepCost:
        """Run one training batch; returns when its cost is known."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Metrics over this rank's slices of a validation set, already reduced over all ranks. Slices may be empty."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State from which `load_state_dict` continues bit for bit; the same on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; called after `prepare`."""
        ...

    def cleanup(self) -> None:
        """Free the resources of `prepare`; safe to call twice."""
        ...
