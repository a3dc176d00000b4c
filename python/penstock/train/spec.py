# SPDX-License-Identifier: Apache-2.0
"""Settings of one training run, parsed once at the edge."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.bench import results
from penstock.errors import ConfigError

__all__ = ["TrainSpec"]


class TrainSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run.

    Attributes:
        workload: Name of an entry point under `penstock.workloads`.
        data, validation: URLs of datasets; `dummy://N` is N samples that cost nothing to read: the compute-only baseline.
        settings: The workload's own (`voxels`, `filters`, `recipe`, …).
        global_batch: Samples of all ranks in one step.
        ranks: Processes on this node; under torchrun or srun, the launcher's world counts instead.
        epochs, steps: Limits; the first that is reached ends the run. `steps` counts from the very start, resumed or not.
        accelerator: Emulate it in place of the step.
        device: `cpu`, `cuda`, or `auto`: a GPU where torch sees one.
        threads: Of torch on the CPU for each rank; None leaves torch's choice. Losses are bit-identical at equal threads.
        memory_bytes, max_in_flight, read_ahead: The loader's bounds; None leaves its defaults.
        manifest: Of the training data, instead of listing.
        reader: `penstock`, or `torch`: a plain DataLoader over local files, to compare with.
        checkpoint: Folder to keep the last checkpoint in; `checkpoint_steps` between two (None: at the end of each epoch).
        resume: Go on from the checkpoint there, where there is one.
        archive: Store URL that the run's folder is copied to at its end.
        runs: Folder of results; None keeps none.
        label: Of the path that the data take, for reports.
        cache_state, cache_how: What was warm, and how that is known; the run only passes it on.
        notes: Go into the result as they are (an emulated tier's scale, for one).
        allow_debug: A debug build may save its row, marked INVALID.
    """

    workload: str
    data: str
    global_batch: int
    validation: str | None = None
    settings: dict[str, Any] = {}
    ranks: int = 1
    epochs: int = 1
    steps: int | None = None
    seed: int = 0
    accelerator: str | None = None
    device: str = "auto"
    threads: int | None = None
    memory_bytes: int | None = None
    max_in_flight: int | None = None
    read_ahead: int | None = None
    manifest: str | None = None
    reader: str = "penstock"
    checkpoint: str | None = None
    checkpoint_steps: int | None = None
    resume: bool = False
    archive: str | None = None
    runs: str | None = None
    label: str = ""
    cache_state: str = "unknown"
    cache_how: str = "not controlled"
    stage_s: float = 0.0
    notes: tuple[str, ...] = ()
    allow_debug: bool = False

    def check(self) -> TrainSpec:
        """Itself, or ConfigError for what cannot be."""
        for name in ("global_batch", "ranks", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("steps", "threads", "checkpoint_steps", "memory_bytes", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.resume and not self.checkpoint:
            raise ConfigError("resume needs the folder of the checkpoint", hint="--checkpoint DIR --resume")
        if self.archive and not self.runs:
            raise ConfigError("archive copies the run's folder, and none is kept", hint="--runs DIR")
        if self.reader not in ("penstock", "torch"):
            raise ConfigError(f"reader `{self.reader}` is none of penstock, torch")
        if self.accelerator and self.checkpoint:
            raise ConfigError("an emulated accelerator learns nothing, so there is nothing to checkpoint")
        return self

    def what_is_measured(self) -> dict[str, Any]:
        """The part that makes two rows comparable: what is computed and how it is fed, not where outputs go."""
        aside = {
            "checkpoint",
            "checkpoint_steps",
            "resume",
            "archive",
            "runs",
            "label",
            "cache_state",
            "cache_how",
            "stage_s",
            "notes",
            "allow_debug",
        }
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if name not in aside}

    def what_is_learnt(self) -> dict[str, Any]:
        """The part that a checkpoint must agree with: a resumed run goes on with the same learning or not at all. The world
        may differ, and so may the place of the data: its content is held by the loader's own state.
        """
        return {
            "workload": self.workload,
            "settings": self.settings,
            "global_batch": self.global_batch,
            "seed": self.seed,
        }

    def hash(self) -> str:
        """Of what is measured."""
        return results.spec_hash(self.what_is_measured())
