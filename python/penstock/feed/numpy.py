# SPDX-License-Identifier: Apache-2.0
"""Converts native tensors to NumPy arrays, without a copy. The only module of the feed that imports numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from penstock import _native

__all__ = ["array"]


def array(tensor: _native.Tensor) -> np.ndarray[Any, Any]:
    """Return an array over the tensor's memory. The memory stays valid as long as the array exists."""
    return np.asarray(tensor)
