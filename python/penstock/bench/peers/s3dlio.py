# SPDX-License-Identifier: Apache-2.0
"""Driver for s3dlio: fetches several batches at a time with its concurrent `get_many`. Tensors share s3dlio's
memory.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("s3dlio", "torch")

IN_FLIGHT = 16

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Sets the S3 endpoint and region of the client."""
    os.environ.update(AWS_ENDPOINT_URL=task["endpoint"], AWS_REGION=task["region"])
    import s3dlio
    import torch

    torch.set_num_threads(1)
    _made["s3dlio"] = s3dlio


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One epoch."""
    import torch

    torch_batches, size = importlib.import_module("torch_batches"), task["batch"]
    name, spec = torch_batches.only(task)
    some = max(size, IN_FLIGHT // size * size)
    for at in range(0, len(task["files"]), some):
        found = dict(_made["s3dlio"].get_many(task["files"][at : at + some], max_in_flight=IN_FLIGHT))
        for first in range(at, min(at + some, len(task["files"])), size):
            rows = [torch_batches.tensor(found[uri].memoryview(), spec) for uri in task["files"][first : first + size]]
            yield {name: torch.stack(rows)}
