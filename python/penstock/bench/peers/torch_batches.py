# SPDX-License-Identifier: Apache-2.0
"""Converts whole objects to torch tensors. Each object is one fixed-size record. Shared by the drivers of plain object
clients.
"""

from __future__ import annotations

from typing import Any


def tensor(data: Any, spec: dict[str, Any]) -> Any:
    """Returns a tensor that shares the memory of an object's bytes."""
    import torch

    return torch.frombuffer(data, dtype=getattr(torch, spec["dtype"])).reshape(spec["shape"])


def only(task: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the only field of the objects."""
    ((name, spec),) = task["fields"].items()
    return name, spec
