# SPDX-License-Identifier: Apache-2.0
"""Step time of a workload for the card of a probe: published for an accelerator, or measured on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.protocols import WorkloadSpec
from penstock.train.launch import run as train
from penstock.train.spec import TrainSpec
from penstock.train.workloads import load_workload
from penstock.workloads.emulated import MODELS

if TYPE_CHECKING:
    from penstock.probe.run import Probe

__all__ = ["check", "measure"]

_STEPS = 20
_WARM_UP = 3


def check(text: str) -> tuple[str, dict[str, Any], str | None]:
    """Parse `NAME` or `NAME:ACCELERATOR`. Returns the workload, its settings, and the accelerator to emulate.

    Raises:
        ConfigError: The name or the accelerator is unknown.
    """
    name, _, accelerator = text.partition(":")
    if not accelerator:
        load_workload(name)
        return name, {}, None
    # The catalogue's models are settings of the workload `emulated`.
    workload, settings = ("emulated", {"model": name}) if name in MODELS else (name, {})
    load_workload(workload).demand(WorkloadSpec(seed=0, global_batch=1, accelerator=accelerator, settings=settings))
    return workload, settings, accelerator


def measure(probe: Probe) -> None:
    """Set `probe.step`: step time, samples per step, and the samples and bytes per second that one rank asks for.

    With an accelerator, these are the accelerator's published figures. Without an accelerator, 20 steps run on this
    machine's device, with samples that are not read.

    Raises:
        ConfigError: The workload or the accelerator is unknown.
        MissingPackage: The workload needs torch, which is not installed.
    """
    name, settings, accelerator = check(probe.settings.workload or "")
    workload = load_workload(name)
    spec = WorkloadSpec(seed=probe.settings.seed, global_batch=1, accelerator=accelerator, settings=settings)
    demand = workload.demand(spec)
    found: dict[str, Any] = {"workload": probe.settings.workload, "sample_bytes": demand.sample_bytes}
    if accelerator is not None:
        if demand.samples_per_s is None:
            raise ConfigError(f"workload: {name} has no published rate for {accelerator}", where="--workload")
        batch = int(demand.facts.get("step_batch", 1))
        found |= {
            "origin": "published",
            "batch": batch,
            "step_s": batch / demand.samples_per_s,
            "samples_per_s": demand.samples_per_s,
        }
    else:
        batch = 1
        record = train(
            TrainSpec(
                workload=name,
                data=f"dummy://{(_STEPS + _WARM_UP) * batch}",
                global_batch=batch,
                steps=_STEPS + _WARM_UP,
                warm_up_steps=_WARM_UP,
                keep_step_times=True,
                allow_debug=True,
            )
        )
        rate = record.get("steady_samples_per_s") or record["samples_per_s"]
        found |= {
            "origin": "measured on this machine",
            "batch": batch,
            "step_s": batch / rate,
            "samples_per_s": rate,
        }
    probe.step.update(found, bytes_per_s=found["samples_per_s"] * demand.sample_bytes)
