# SPDX-License-Identifier: Apache-2.0
"""Job export: writes a job file as a Slurm or PBS script, or as a Kubernetes, Azure ML or Azure Batch specification.

Pure functions from a job to a text, which contact no system and submit nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.job.export.azure import azure_batch, azureml
from penstock.job.export.kubernetes import kubernetes
from penstock.job.export.slurm_pbs import pbs, slurm, slurm_epilog, slurm_prolog

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.job.export.request import ExportRequest

__all__ = ["FORMATS", "write"]

FORMATS: dict[str, Callable[[ExportRequest], str]] = {
    "slurm": slurm,
    "slurm-prolog": slurm_prolog,
    "slurm-epilog": slurm_epilog,
    "pbs": pbs,
    "k8s": kubernetes,
    "azureml": azureml,
    "azure-batch": azure_batch,
}


def write(form: str, request: ExportRequest) -> str:
    """Export a job in one of `FORMATS`; return the text of the file.

    Raises:
        ConfigError: The format is unknown, or cannot express the job.
    """
    if form not in FORMATS:
        raise ConfigError(f"--export: `{form}` is not one of {', '.join(FORMATS)}", where="--export")
    return FORMATS[form](request)
