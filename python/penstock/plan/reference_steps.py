# SPDX-License-Identifier: Apache-2.0
"""Published rates of accelerators, for plans of a workload that was not measured. Each rate has a source."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.plan.spec import nearest
from penstock.workloads._shared.catalogue import COSMOFLOW_SAMPLE_S, MODELS

__all__ = ["REFERENCES", "sample_s"]

_MLPERF_STORAGE = "mlcommons/storage, configs/workload/*.yaml, train.computation_time"

REFERENCES: dict[str, tuple[float, str]] = {
    **{
        f"cosmoflow/{name}": (seconds, _MLPERF_STORAGE)
        for name, seconds in COSMOFLOW_SAMPLE_S.items()
        if "@" not in name
    },
    **{
        f"{model.name}/{name}": (seconds / model.batch, _MLPERF_STORAGE)
        for model in MODELS.values()
        for name, seconds in model.step_s.items()
    },
    # NAG 2021: 2.3 steps/s of 128 samples on 32 V100, read from the authors' plot.
    "cosmoflow/v100@2021": (32 / (2.3 * 128), "NAG 2021 (STUDIES A), from the authors' plot"),
    # The rates of real training on one accelerator, in images/s.
    "resnet50/p100": (1 / 219, "TensorFlow benchmarks 2017, batch 64, FP32"),
    "resnet50/v100-fp32": (1 / 412, "NVIDIA DeepLearningExamples, ResNet-50 v1.5, FP32"),
    "resnet50/v100-amp": (1 / 1270, "NVIDIA DeepLearningExamples, ResNet-50 v1.5, AMP and XLA"),
    "resnet50/a100-amp": (1 / 2375, "NVIDIA DeepLearningExamples, ResNet-50 v1.5, AMP"),
    "resnet152/p100": (1 / 91.8, "TensorFlow benchmarks 2017, batch 64, FP32"),
}
"""Reference -> seconds per sample of one accelerator, and the source. The duration of a step is assumed to be
proportional to its batch."""


def sample_s(reference: str) -> float:
    """Seconds per sample of one accelerator.

    Raises:
        ConfigError: The reference is unknown; the hint has the nearest ones.
    """
    if reference not in REFERENCES:
        raise ConfigError(f"reference: `{reference}` is not known", hint=nearest(reference, REFERENCES))
    return REFERENCES[reference][0]
