# SPDX-License-Identifier: Apache-2.0
"""Builds the job of a prediction from a measured training run: its compute time and its exposed communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.plan.model import TrainingJob

if TYPE_CHECKING:
    from penstock.bench.results import RunRecord

__all__ = ["job_from_run"]


def job_from_run(
    record: RunRecord,
    *,
    samples: int,
    epochs: int,
    stored_bytes: int,
    nic_bytes_per_s: float,
    account_bytes_per_s: float,
    nodes: int = 1,
    held_out: int = 0,
) -> TrainingJob:
    """Return the job of a run of `penstock train`, for a dataset and limits that the caller states.

    The time that steps waited for data is left out, because `predict` computes it for each route. The wait for the
    slowest rank is also left out, because the model has no term for this wait. A run on synthetic data gives the
    cleanest figures.

    Args:
        record: A run on `nodes` nodes with equal numbers of ranks.
        samples, held_out, stored_bytes: The dataset of the prediction; bytes of one sample as stored.

    Raises:
        ConfigError: The run is INVALID, has no breakdown of its steps, or its ranks cannot be divided equally among
            `nodes`.
    """
    if record.invalid:
        raise ConfigError(f"run {record.id} is INVALID: {'; '.join(record.invalid)}", hint="repeat the run")
    if not record.step_breakdown or not record.samples:
        raise ConfigError(
            f"run {record.id} has no breakdown of its steps", hint="repeat it with this version of penstock train"
        )
    if record.world % nodes:
        raise ConfigError(f"run {record.id}: its {record.world} ranks cannot be divided equally among {nodes} nodes")
    parts = record.step_breakdown["parts"]
    global_batch = record.spec["global_batch"]
    return TrainingJob(
        samples=samples,
        held_out=held_out,
        epochs=epochs,
        nodes=nodes,
        ranks_per_node=record.world // nodes,
        batch_per_rank=global_batch // record.world,
        compute_step_s=parts["compute_s"] + parts["host_to_device_s"] + parts["other_s"],
        exposed_allreduce_s=parts["exposed_communication_s"],
        sample_bytes=record.bytes_delivered // record.samples,
        stored_bytes=stored_bytes,
        cores_per_node=record.provenance.machine.cores,
        nic_bytes_per_s=nic_bytes_per_s,
        account_bytes_per_s=account_bytes_per_s,
    )
