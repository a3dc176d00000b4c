# SPDX-License-Identifier: Apache-2.0
"""Log of a run as MLPerf's `:::MLLOG` lines, which MLCommons' compliance checker reads.

Only rank 0 writes the log. The lines follow the HPC rules 3.0 and the training rules 4.0: initialisation ends before data
is touched, and staging lies inside the run. Values that a run of Penstock cannot have, such as a submitter, are
placeholders, because the log is for comparison and for the checker, and is not a submission.

Source:
    mlcommons/logging: mllog/mllog.py (format of a line), compliance_checker/hpc_3.0.0 and training_4.0.0 (required
    keys);
    mlcommons/hpc cosmoflow (`opt_base_learning_rate` is the peak, the warm-up factor is batch / base batch).
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.bench import machine_card
from penstock.bench.results import as_fault
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.ranks import Rank
    from penstock.train.spec import TrainSpec

__all__ = ["TARGETS", "MlLog"]

TARGETS = {"cosmoflow": 0.124, "resnet50": 0.759}
"""Workload -> mean absolute error (CosmoFlow) or top-1 accuracy (ResNet-50) that ends an MLPerf run. Source:
mlcommons/training_policies, HPC and training rules.
"""
_BENCHMARKS = {"resnet50": "resnet"}  # MLPerf's name of the benchmark, if it differs from the workload's name


class MlLog:
    """Writes the lines of one run; without a file, all methods do nothing.

    Raises:
        Denied, NoSpace, SystemFault: The file cannot be written.
    """

    def __init__(self, file: str | None) -> None:
        self._name = file
        self._out: IO[str] | None = None
        self._is_running = self._has_samples = False
        self._target = math.nan
        self._reached = False
        if file is not None:
            try:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                self._out = Path(file).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - close() closes it
            except OSError as error:
                raise as_fault(error, file) from None

    def _write(self, kind: str, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None) -> None:
        if self._out is None:
            return
        line = {
            "namespace": "penstock",
            "time_ms": int(time.time() * 1000),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {"file": "penstock/train", "lineno": 0, **(metadata or {})},
        }
        try:
            self._out.write(f":::MLLOG {json.dumps(line)}\n")
        except OSError as error:
            raise as_fault(error, str(self._name)) from None

    def start(self, interval: str, **metadata: Any) -> None:
        """Begin an interval, such as `epoch`."""
        self._write("INTERVAL_START", f"{interval}_start", None, metadata)

    def stop(self, interval: str, **metadata: Any) -> None:
        """End an interval."""
        self._write("INTERVAL_END", f"{interval}_stop", None, metadata)

    def event(self, key: str, value: Any, **metadata: Any) -> None:
        """Write a single value."""
        self._write("POINT_IN_TIME", key, value, metadata)

    # ------------------------------------------------------------ the parts of a run

    def begin(self, spec: TrainSpec) -> None:
        """Write the benchmark, the submitter and the platform, and the start of the initialisation."""
        card = machine_card.read()
        self.event("cache_clear", spec.cache_state == "cold", state=spec.cache_state, how=spec.cache_how)
        self.start("init")
        self._target = TARGETS.get(spec.workload, math.nan)
        self.event("submission_benchmark", _BENCHMARKS.get(spec.workload, spec.workload))
        self.event("submission_org", "unofficial")
        self.event("submission_division", "open")
        self.event("submission_status", "research")
        self.event("submission_platform", ", ".join(card.gpus) or card.cpu or "unknown")
        self.event("seed", spec.seed)

    def run_begins(self, spec: TrainSpec, rank: Rank, facts: Mapping[str, Any], *, has_gpus: bool) -> None:
        """Write the settings, the end of the initialisation and the start of the run."""
        self.event("number_of_nodes", rank.nodes)
        self.event("accelerators_per_node", -(-rank.world // rank.nodes) if has_gpus else 0)
        self.event("global_batch_size", spec.global_batch)
        for key, value in facts.get("hyperparameters", {}).items():
            self.event(key, value)
        self.event("gradient_accumulation_steps", 1)
        self.stop("init")
        self.start("run")
        self._is_running = True

    def evaluated(self, metrics: Mapping[str, Any], epoch: int) -> None:
        """Write the result of a validation during or after epoch `epoch`, counted from 1."""
        if not self._has_samples:
            self._has_samples = True
            self.event("eval_samples", int(metrics.get("validation_samples", 0)))
        if "mae" in metrics:
            self._reached = metrics["mae"] <= self._target
            self.event("eval_error", float(metrics["mae"]), epoch_num=epoch)
        elif "top1" in metrics:
            self._reached = metrics["top1"] >= self._target
            self.event("eval_accuracy", float(metrics["top1"]), epoch_num=epoch)

    def close(self, *, is_complete: bool) -> None:
        """Write the end of the run, and close the file. The run is a success if it reached the target of MLPerf."""
        if self._out is None:
            return
        try:
            if self._is_running:
                self.stop("run", status="success" if is_complete and self._reached else "aborted")
            self._out.close()
        except OSError as error:
            if is_complete:  # otherwise, the error of the run is more important
                raise error if isinstance(error, PenstockError) else as_fault(error, str(self._name)) from None
        finally:
            with suppress(OSError):  # text that could not be written
                self._out.close()
            self._out = None
