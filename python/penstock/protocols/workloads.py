# SPDX-License-Identifier: Apache-2.0
"""Contract of workloads, which consume samples, and its types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Batch", "Demand", "InputField", "StepCost", "Workload", "WorkloadSpec"]

Batch = Mapping[str, Any]
"""Field name -> array (NumPy or torch, as the Demand asked), samples along the first axis; `bytes` fields -> list of buffers."""


@dataclass(frozen=True)
class InputField:
    """One field of a sample as it is stored: dtype by NumPy's name, shape without the batch axis.

    Two dtypes are not NumPy's: `bytes`, as long as they are stored (a list of buffers in the batch; shape ()), and `image`, a
    picture decoded to uint8 of the shape (height, width, 3).
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WorkloadSpec:
    """The parameters of the run that a workload is part of.

    Attributes:
        seed: Of weights and everything else that is random in a step.
        global_batch: Samples of all ranks in one step.
        rank, world: This worker and the number of them; in a world above 1, torch's default process group is up.
        device: `cpu` or `cuda:N`.
        accelerator: Name of an accelerator to emulate in place of the step; None trains.
        settings: The workload's own, as its documentation lists them. Unknown names are refused by the workload.
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
    """What a workload eats.

    Attributes:
        fields: Of a sample, as stored.
        arrays: Kind of array that `step` takes.
        sample_bytes: Of one sample, decoded.
        samples_per_s: That one rank takes when nothing holds it up; None where only a measurement can tell.
        facts: What belongs into the result beside the settings (parameter count, deviation from a published model).
    """

    fields: Mapping[str, InputField]
    arrays: Literal["numpy", "torch"]
    sample_bytes: int
    samples_per_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step took.

    Attributes:
        samples: Of this rank's slice.
        compute_s: Spent computing (or emulating it); overshoot of an emulated step is not in it.
        sync_s: Spent waiting for other ranks, where it can be told from computing.
        loss: Of this rank's slice; None where nothing is learnt.
    """

    samples: int
    compute_s: float
    sync_s: float = 0.0
    loss: float | None = None


@runtime_checkable
class Workload(Protocol):
    """What eats samples at the end of the feed. Calls come in the order below, from one thread."""

    def demand(self, spec: WorkloadSpec) -> Demand:
        """What it will want under this spec. Cheap, and made before anything else; refuses bad settings with ConfigError."""
        ...

    def prepare(self, spec: WorkloadSpec) -> None:
        """Builds what the steps need. Called once."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch, counted from 0, begins or is resumed."""
        ...

    def step(self, batch: Batch) -> StepCost:
        """Eats one training batch; returns when its cost is known."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Metrics over this rank's slices of a validation set, already reduced over all ranks. Slices may be empty."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a later `load_state_dict` needs to go on bit for bit; the same on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; called after `prepare`."""
        ...

    def cleanup(self) -> None:
        """Frees what `prepare` took; safe twice."""
        ...
