# SPDX-License-Identifier: Apache-2.0
"""Native tensors as NumPy arrays, without a copy. The only module of the feed that imports numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from penstock import _native

__all__ = ["array"]


def array(tensor: _native.Tensor) -> np.ndarray[Any, Any]:
    """The tensor as an array over the same memory, which lives as long as the array."""
    return np.asarray(tensor)
