# SPDX-License-Identifier: Apache-2.0
"""Plain values of a checkpoint: numbers, text, bytes, tensors, and containers of these. Objects of other types are not
unpickled, so a checkpoint from an untrusted source cannot run code.
"""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import torch

from penstock.errors import Corrupt, Unsupported

__all__ = ["check_loadable", "load_plain"]

_REFUSED = (OSError, RuntimeError, ValueError, EOFError, KeyError, IndexError, AttributeError, TypeError)


def _load(data: bytes) -> Any:
    with warnings.catch_warnings(action="ignore"):  # torch warns about pickles before it refuses them
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def check_loadable(data: bytes, name: str) -> None:
    """Check that the reader will accept a value that `torch.save` has written.

    Raises:
        Unsupported: The value contains an object of another type.
    """
    try:
        _load(data)
    except (*_REFUSED, pickle.UnpicklingError) as error:
        found = str(error).partition("\n")[0][:160]
        raise Unsupported(
            f"checkpoint: `{name}` is not a tensor or a plain value: {found}",
            hint="save only numbers, text, lists and dicts, or allow the value's class with "
            "torch.serialization.add_safe_globals",
        ) from None


def load_plain(data: bytes, name: str, place: str) -> Any:
    """Load a value that `torch.save` has written.

    Raises:
        Corrupt: The bytes are not a plain value.
    """
    try:
        return _load(data)
    except (*_REFUSED, pickle.UnpicklingError) as error:
        found = str(error).partition("\n")[0][:160]
        raise Corrupt(
            f"{place}: `{name}` is not a plain value: {found or type(error).__name__}",
            where=place,
            hint="use only checkpoints that penstock.torch.CheckpointWriter has written",
        ) from None
