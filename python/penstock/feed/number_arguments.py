# SPDX-License-Identifier: Apache-2.0
"""Converts numbers that the user gives as arguments. Reads nothing."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from penstock.errors import ConfigError

__all__ = ["as_float", "as_floats", "as_int", "as_int_or_none", "as_ints"]


def as_int(name: str, value: SupportsIndex) -> int:
    """Convert any integer (for example, of NumPy) to a plain int.

    Raises:
        ConfigError: The value is not an integer; for example, it is a float, a text or None.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}: must be an integer (got {value!r})", where=name) from None


def as_int_or_none(name: str, value: SupportsIndex | None) -> int | None:
    """Convert any integer to a plain int, as `as_int` does; None stays None."""
    return None if value is None else as_int(name, value)


def as_ints(name: str, values: Any) -> tuple[int, ...]:
    """Convert a sequence of integers, as `as_int` does."""
    return tuple(as_int(name, value) for value in _items(name, values))


def as_float(name: str, value: Any) -> float:
    """Convert any number to a float.

    Raises:
        ConfigError: The value is not a number; for example, it is a text.
    """
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(f"{name}: must be a number (got {value!r})", where=name)


def as_floats(name: str, values: Any) -> tuple[float, ...]:
    """Convert a sequence of numbers, as `as_float` does."""
    return tuple(as_float(name, value) for value in _items(name, values))


def _items(name: str, values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise ConfigError(f"{name}: must be a sequence of numbers (got {values!r})", where=name) from None
