# SPDX-License-Identifier: Apache-2.0
"""Catalogue of published storage workloads: their samples, and their step times on each accelerator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COSMOFLOW_SAMPLE_S", "FORMATS", "MODELS", "Model"]

FORMATS = ("tfrecord", "npz", "jpeg", "png")


@dataclass(frozen=True)
class Model:
    """One published workload.

    Attributes:
        format: Format of the files, one of `FORMATS`.
        record_bytes, record_deviation_bytes: Mean and standard deviation of the record size.
        records_per_file, files: Number of records per file, and number of files, as published.
        batch: Samples per step and accelerator.
        step_s: Accelerator -> duration of one step.
        step_deviation_s: Standard deviation of the step duration.
        au: Utilisation that a storage system must reach, 0 to 1.
        side: Side of a decoded image, in pixels.
    """

    name: str
    format: str
    record_bytes: int
    batch: int
    step_s: Mapping[str, float]
    record_deviation_bytes: int = 0
    records_per_file: int = 1
    files: int = 1
    step_deviation_s: float = 0.0
    au: float = 0.9
    side: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Model:
        """Build a model from settings with the names of its attributes.

        Raises:
            ConfigError: A setting is unknown, missing or invalid.
        """
        known = {field.name for field in fields(cls)}
        wrong = sorted(settings.keys() - known)
        missing = [name for name in ("name", "format", "record_bytes", "batch", "step_s") if name not in settings]
        if wrong or missing:
            raise ConfigError(
                f"unknown settings of an emulated workload: {', '.join(wrong)}"
                if wrong
                else f"missing settings of an emulated workload: {', '.join(missing)}",
                hint=f"set `model`, or the attributes of a model: {', '.join(sorted(known))}",
            )
        made = cls(**settings)
        if made.format not in FORMATS:
            raise ConfigError(f"format `{made.format}` is not one of {', '.join(FORMATS)}")
        if made.record_bytes < 1 or made.batch < 1 or any(s < 0 for s in made.step_s.values()):
            raise ConfigError(
                f"{made.name}: record_bytes and batch must be at least 1, and step times must not be negative"
            )
        if made.format in ("jpeg", "png") and made.side < 1:
            raise ConfigError(f"{made.name}: pictures require `side`, the side of a decoded picture in pixels")
        return made


MODELS = {
    model.name: model
    for model in (
        Model(
            "unet3d", "npz", 146_600_628, 7, {"a100": 0.636, "h100": 0.323, "b200": 0.162},
            record_deviation_bytes=68_341_808, files=168,
        ),
        Model("resnet50", "tfrecord", 114_660, 400, {"a100": 0.435, "h100": 0.224}, records_per_file=1251, files=1024),
        Model("retinanet", "jpeg", 322_957, 24, {"b200": 0.04755}, files=1_170_301, au=0.85, side=800),
        Model("dlrm", "tfrecord", 160, 16_384, {"b200": 0.000375}, au=0.7, records_per_file=65_536, files=64),
    )
}  # fmt: skip
"""Published workloads by name. CosmoFlow is a separate workload, which really decompresses its volumes.

Source: mlcommons/storage v1.0-v3.0 and dlio_benchmark 2.0, configs/workload/*.yaml: record_length, record_length_stdev,
num_samples_per_file, num_files_train, batch_size, train.computation_time, metric.au. RetinaNet's image side is the
input side in MLPerf training. DLRM is defined in DLIO but unused; its record size and file counts are Penstock's
choice.
"""

COSMOFLOW_SAMPLE_S = {"v100": 0.00936, "a100": 0.00551, "h100": 0.00350, "v100x32@2021": 1 / (2.3 * 128)}
"""Accelerator -> seconds of one CosmoFlow training step at batch 1 and 128 voxels per side. For `v100x32@2021`, this is
the step time divided by the global batch.

Source:
    mlcommons/storage v0.5-v2.0, workload/cosmoflow_{v100,a100,h100}.yaml, train.computation_time. These files define
    only batch 1; a batch of n samples is assumed to take n times as long.
"""
