# SPDX-License-Identifier: Apache-2.0
"""Driver for Grain with its reader of uncompressed TFRecords. Uses threads of one process, which suit small samples
best.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("grain", "numpy")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Builds the pipeline."""
    import grain
    import numpy as np

    tfexample, fields = importlib.import_module("tfexample"), task["fields"]

    def parse(record: bytes) -> dict[str, Any]:
        found = tfexample.features(memoryview(record))
        return {
            name: np.frombuffer(found[spec["of"][0] if spec["of"] else name], spec["dtype"]).reshape(spec["shape"])
            for name, spec in fields.items()
        }

    sources = [grain.experimental.TFRecordIterDataset(path) for path in task["files"]]
    dataset = grain.experimental.InterleaveIterDataset(sources, cycle_length=1)
    _made["dataset"] = dataset.map(parse).batch(task["batch"])


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - one of a driver's three functions
    """One epoch."""
    return iter(_made["dataset"])
