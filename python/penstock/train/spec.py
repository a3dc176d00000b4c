# SPDX-License-Identifier: Apache-2.0
"""Specification of a training run: its settings, their validation, and the parts that identify it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench import results
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SCHEDULE", "TrainSpec", "flat_settings"]

# Settings of later versions. Such a setting enters a result's hash only if it is set, so that older results keep their
# hashes.
_LATER = ("warm_up_steps", "compare_synthetic", "stage", "stage_decompress", "on_error")

SCHEDULE = ("base_learning_rate", "base_batch", "warmup_epochs", "decay_epochs", "decay_factors")
"""Settings that a resume may change: the workload computes the learning rate from them in each epoch, and they change
neither the model nor the order of the data.
"""


class TrainSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Specification of one run.

    Attributes:
        workload: Name of an entry point under `penstock.workloads`.
        data, validation: URLs of datasets. `dummy://N` is a compute-only baseline with N samples that are not read.
        settings: Settings of the workload (`voxels`, `filters`, `recipe`, …).
        global_batch: Samples of all ranks in one step.
        ranks: Number of processes on this node; ignored under torchrun or srun, which set the number of ranks.
        join_timeout_s: Time limit for all ranks to join. The error lists the missing ranks.
        epochs, steps: Limits. The run ends when it reaches the first of these limits. After a resume, `steps` still
            counts from the original start.
        warm_up_steps: Number of steps at the start of each epoch that `steady_samples_per_s` excludes. With 0 or 1,
            only the first step of the run is excluded.
        compare_synthetic: Alternate turns on the data and on synthetic data, and compare their rates.
        turn_steps: Steps of a turn, including `warm_up_steps`; None: as many as the start of the feed requires.
        max_turns: Maximum number of turns, without those of the warm-up.
        accelerator: Accelerator to emulate instead of running the step.
        device: `cpu`, `cuda`, or `auto` (a GPU if torch finds one).
        threads: torch's CPU threads per rank; None uses torch's default. With the same number of threads, losses are
            bit-identical.
        memory_bytes, max_in_flight, read_ahead: Limits of the loader; None uses its defaults.
        manifest: Manifest of the training data, instead of a listing.
        on_error: `substitute` replaces samples that cannot be read by the next ones, as in `penstock.Loader`; None or
            `raise` ends the run.
        reader: `penstock`, or `torch` for a comparison with a plain DataLoader over local files.
        checkpoint: URL or folder of the checkpoints. A checkpoint is written every `checkpoint_steps` steps and at the
            end of each epoch, while the training goes on. The newest `checkpoint_keep` checkpoints are kept; with 1,
            the previous one also stays until a finite loss follows the newest.
        resume: Continue from the checkpoint, if one exists. The settings in `SCHEDULE` may differ from the
            checkpoint's.
        trace: File for a trace of all ranks' steps, which Perfetto opens.
        keep_step_times: Keep the length of each step of rank 0 in the result, at most 2,048.
        mllog: File for MLPerf's log lines.
        archive: Store URL to which the run's folder is copied at the end.
        runs: Folder for results; None saves no result.
        label: Name of the data path, for reports.
        cache_state, cache_how: State of the caches, and how it was determined. Only copied to the result.
        stage: Folder to which the training data is staged inside the run, before the first epoch. With several nodes,
            it must be a shared folder, such as a pool.
        stage_decompress: Decompress objects while they are staged.
        stage_s: Seconds of a staging before the run, if the run does not stage.
        notes: Notes that are copied to the result, such as the scale of an emulated tier.
        allow_debug: Let a debug build save its result, which is then marked INVALID.
    """

    workload: str
    data: str
    global_batch: int
    validation: str | None = None
    settings: dict[str, Any] = {}
    ranks: int = 1
    join_timeout_s: float = 300.0
    epochs: int = 1
    steps: int | None = None
    warm_up_steps: int = 0
    compare_synthetic: bool = False
    turn_steps: int | None = None
    max_turns: int = 40
    seed: int = 0
    accelerator: str | None = None
    device: str = "auto"
    threads: int | None = None
    memory_bytes: int | None = None
    max_in_flight: int | None = None
    read_ahead: int | None = None
    manifest: str | None = None
    on_error: str | None = None
    reader: str = "penstock"
    checkpoint: str | None = None
    checkpoint_steps: int | None = None
    checkpoint_keep: int = 2
    resume: bool = False
    archive: str | None = None
    trace: str | None = None
    mllog: str | None = None
    keep_step_times: bool = False
    runs: str | None = None
    label: str = ""
    cache_state: str = "unknown"
    cache_how: str = "not controlled"
    stage: str | None = None
    stage_decompress: bool = False
    stage_s: float = 0.0
    notes: tuple[str, ...] = ()
    allow_debug: bool = False

    def check(self) -> TrainSpec:
        """Return the spec, or raise ConfigError for an invalid one."""
        if self.warm_up_steps < 0:
            raise ConfigError(f"warm_up_steps must be at least 0 (got {self.warm_up_steps})")
        for name in ("global_batch", "ranks", "epochs", "checkpoint_keep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1 (got {getattr(self, name)})")
        for name in ("steps", "threads", "checkpoint_steps", "memory_bytes", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1 (got {value})")
        if self.stage is not None and self.data.startswith("dummy:"):
            raise ConfigError(
                "synthetic data cannot be staged, because no files are read", hint="give --data, or omit --stage"
            )
        if self.compare_synthetic:
            self._check_comparison()
        if self.resume and not self.checkpoint:
            raise ConfigError("resume requires a checkpoint folder", hint="use --checkpoint DIR --resume")
        if self.archive and not self.runs:
            raise ConfigError("archive requires an output folder", hint="use --output DIR")
        if self.reader not in ("penstock", "torch"):
            raise ConfigError(f"reader `{self.reader}` is not one of penstock, torch")
        if self.on_error not in (None, "raise", "substitute"):
            raise ConfigError(f"on_error `{self.on_error}` is not one of raise, substitute")
        if self.on_error == "substitute" and self.reader == "torch":
            raise ConfigError("on_error: not supported with the reader torch")
        if self.accelerator and self.checkpoint:
            raise ConfigError("checkpoint: not supported with an emulated accelerator, which trains no parameters")
        return self

    def _check_comparison(self) -> None:
        if self.turn_steps is not None and self.turn_steps <= self.warm_up_steps:
            raise ConfigError(
                f"a turn of {self.turn_steps} steps has no measured step after a warm-up of {self.warm_up_steps}",
                hint="use more steps per turn, or a shorter warm-up",
            )
        given = {"steps": self.steps, "checkpoint": self.checkpoint, "validation": self.validation}
        if refused := [name for name, value in given.items() if value is not None]:
            raise ConfigError(
                f"{' and '.join(refused)}: not supported in a comparison with synthetic data, because its synthetic "
                "turns train on noise"
            )

    def what_is_measured(self) -> dict[str, Any]:
        """Return the settings that must be equal for two results to be comparable: all except the outputs."""
        aside = {
            "checkpoint",
            "checkpoint_steps",
            "checkpoint_keep",
            "resume",
            "archive",
            "trace",
            "mllog",
            "keep_step_times",
            "join_timeout_s",
            "runs",
            "label",
            "cache_state",
            "cache_how",
            "stage_s",
            "notes",
            "allow_debug",
        }
        plain: dict[str, Any] = msgspec.to_builtins(self)
        aside |= {name for name in _LATER if not plain[name]}
        aside |= set() if self.compare_synthetic else {"turn_steps", "max_turns"}
        return {name: value for name, value in plain.items() if name not in aside}

    def what_is_learnt(self) -> dict[str, Any]:
        """Return the settings that must be equal in a checkpoint, so that a resumed run continues the same training.

        The number of ranks may differ. The data may be at another URL, because the loader's state identifies its
        content.
        """
        return {
            "workload": self.workload,
            "settings": self.settings,
            "global_batch": self.global_batch,
            "seed": self.seed,
        }

    def hash(self) -> str:
        """Hash of `what_is_measured`."""
        return results.spec_hash(self.what_is_measured())


def flat_settings(learnt: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the result of `what_is_learnt`, so that each setting of the workload has its own name."""
    settings = {f"setting {name}": value for name, value in learnt.get("settings", {}).items()}
    return {**{name: value for name, value in learnt.items() if name != "settings"}, **settings}
