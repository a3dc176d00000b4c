# SPDX-License-Identifier: Apache-2.0
"""Interface of workloads, which consume samples, with its types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Batch", "Demand", "InputField", "StepCost", "Workload", "WorkloadSpec"]

Batch = Mapping[str, Any]
"""Field name -> array, with samples along the first axis; `bytes` fields -> list of buffers. `Demand.arrays` selects
NumPy or torch arrays."""


@dataclass(frozen=True)
class InputField:
    """One field of a sample as it is stored: a NumPy dtype name, and the shape without the batch axis.

    Two more dtypes exist. `bytes` has shape () and any stored length, and is a list of buffers in the batch. `image` is
    an image that is decoded to uint8 with the shape (height, width, 3).

    Attributes:
        parts: Names of stored parts (features, members, columns). The field is read from the first of these parts that
            a record has. If empty, the field is read from the part with its own name.
        default: Value of each element if a record has none of the parts; None if a record must have one of the parts.
        augment: In training, cut a random part out of the image, resize it (RandomResizedCrop) and mirror half of the
            images. Otherwise, and in validation, images are resized and cut at their centre.
        values: Number of different values of an integer field, 0 to `values` - 1, for generated data; None if unknown.
    """

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()
    default: float | None = None
    augment: bool = False
    values: int | None = None


@dataclass(frozen=True)
class WorkloadSpec:
    """Parameters of a run that are passed to its workload.

    Attributes:
        seed: Seed of the weights and of all other randomness in a step.
        global_batch: Samples of all ranks in one step.
        rank, world: Number of this rank, and number of ranks. If `world` is above 1, torch's default process group is
            already initialised.
        device: `cpu` or `cuda:N`.
        accelerator: Name of an accelerator to emulate instead of training; None for real training steps.
        settings: The workload's own settings. Unknown names are rejected.
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
        arrays: Array type that `step` takes.
        sample_bytes: Size of one decoded sample.
        samples_per_s: Rate of one rank if it never waits for data; None if the rate is unknown before a measurement.
        facts: Further values for the result, such as the parameter count or deviations from a published model.
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
        samples: Number of samples in this rank's slice of the batch.
        compute_s: Seconds of real or emulated computation, without the overshoot of an emulated step, and without
            `sync_s`, `comm_s` and `h2d_s`.
        sync_s: Seconds in a barrier with the other ranks; 0 if there is none.
        loss: Loss of this rank's slice; None if nothing is trained.
        comm_s: Seconds of communication that no computation hid (exposed communication), such as the end of an
            allreduce. Includes the wait for the slowest rank, which the driver separates later.
        h2d_s: Seconds in which the step waited for its batch's copy from the host to the device.
    """

    samples: int
    compute_s: float
    sync_s: float = 0.0
    loss: float | None = None
    comm_s: float = 0.0
    h2d_s: float = 0.0


@runtime_checkable
class Workload(Protocol):
    """Consumer of the samples that a feed delivers. Its methods are called in the order below, from one thread."""

    def demand(self, spec: WorkloadSpec) -> Demand:
        """Return the input that the workload needs. Called first; must be cheap. Bad settings raise ConfigError."""
        ...

    def prepare(self, spec: WorkloadSpec) -> None:
        """Build what the steps need. Called once."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Called when a training epoch begins or resumes. `epoch` counts from 0."""
        ...

    def step(self, batch: Batch) -> StepCost:
        """Run one training step; return when its cost is known."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Evaluate this rank's slices of a validation set; return metrics over all ranks. Slices may be empty."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return a state from which training continues bit for bit after `load_state_dict`. Equal on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned. Called after `prepare`."""
        ...

    def cleanup(self) -> None:
        """Free the resources that `prepare` has allocated. Safe to call twice."""
        ...
