# SPDX-License-Identifier: Apache-2.0
"""Checks a job specification with the target system's own validator: `python check_specs.py FORM FILE`.

It runs in the validators' environment (.tools/specs), and exits with 0 if the file is valid.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import sys
from pathlib import Path
from typing import Any


def check_kubernetes(path: str) -> None:
    """Validates every object against Kubernetes' published schemas, without unknown fields."""
    import kubernetes_validate

    found = json.loads(Path(path).read_text())
    assert found["kind"] == "List"
    for item in found["items"]:
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)


def check_azureml(path: str) -> None:
    """Validates against the SDK's own schema, which rejects unknown fields; it sends no request."""
    from azure.ai.ml import load_job

    job = load_job(path)
    assert job._validate().passed, job._validate().error_messages
    assert job.resources.instance_count == int(sys.argv[3])


def check_batch(path: str) -> None:
    """Checks fields against the SDK's models: each exists and has its type. The models accept unknown fields."""
    from azure.batch import models

    found = json.loads(Path(path).read_text())
    _model(models.BatchJobCreateOptions, found["job"], "job")
    _model(models.BatchTaskCreateOptions, found["task"], "task")
    task = models.BatchTaskCreateOptions(found["task"])
    assert task.multi_instance_settings.number_of_instances == int(sys.argv[3])


def _model(kind: Any, found: dict[str, Any], where: str) -> None:
    made = kind(found)
    names = {field._rest_name: name for name, field in kind._attr_to_rest_field.items()}
    for key, value in found.items():
        assert key in names, f"{where}.{key} is no field of {kind.__name__}"
        read = getattr(made, names[key])
        if isinstance(value, dict):
            _model(type(read), value, f"{where}.{key}")
        else:
            # An invalid duration or an unknown enum member stays a string.
            known = (
                isinstance(read, (dt.timedelta, enum.Enum))
                or key.endswith(("Name", "Line", "Id", "Options"))
                or key == "id"
            )
            assert known or not isinstance(value, str), f"{where}.{key}: {value}"


if __name__ == "__main__":
    {"k8s": check_kubernetes, "azureml": check_azureml, "azure-batch": check_batch}[sys.argv[1]](sys.argv[2])
