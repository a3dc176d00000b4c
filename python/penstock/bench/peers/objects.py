# SPDX-License-Identifier: Apache-2.0
"""Whole objects of one fixed record each, as torch tensors in batches: what drivers of plain object clients share."""

from __future__ import annotations

from typing import Any


def tensor(data: Any, spec: dict[str, Any]) -> Any:
    """A tensor over an object's bytes, without a copy where they may be written to."""
    import torch

    return torch.frombuffer(data, dtype=getattr(torch, spec["dtype"])).reshape(spec["shape"])


def only(task: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The one field of the objects."""
    ((name, spec),) = task["fields"].items()
    return name, spec
