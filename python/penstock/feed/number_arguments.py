# SPDX-License-Identifier: Apache-2.0
"""Converts numbers that the user gives as arguments. Reads nothing."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, overload

from penstock.errors import ConfigError

__all__ = ["as_float", "as_int"]


@overload
def as_int(name: str, value: SupportsIndex) -> int: ...


@overload
def as_int(name: str, value: SupportsIndex | None) -> int | None: ...


def as_int(name: str, value: SupportsIndex | None) -> int | None:
    """Convert any integer (also NumPy's) to a plain int.

    Raises:
        ConfigError: It is not an integer, but a float or a text, for example.
    """
    try:
        return None if value is None else operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}: must be an integer (got {value!r})", where=name) from None


def as_float(name: str, value: Any) -> float:
    """Convert any number to a float.

    Raises:
        ConfigError: It is not a number, but a text, for example.
    """
    try:
        if not isinstance(value, str):
            return float(value)
    except TypeError:
        pass
    raise ConfigError(f"{name}: must be a number (got {value!r})", where=name)
