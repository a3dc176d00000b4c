# SPDX-License-Identifier: Apache-2.0
"""Renamed parameters and attributes: the old name works for one release, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["renamed_attribute", "renamed_parameters"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _warn(old: str, new: str, owner: str) -> None:
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("penstock."):
        level, frame = level + 1, frame.f_back
    text = f"{owner}: `{old}` is now `{new}`; the next release removes `{old}`"
    warnings.warn(text, DeprecationWarning, stacklevel=level)


def renamed_parameters(
    names: Mapping[str, str], *, aliases: Mapping[str, str] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorator that accepts old keyword names and passes them on under the new names. Only names in `names` cause a
    warning.

    Raises:
        TypeError: The call uses both the old and the new name.
    """
    every = {**names, **(aliases or {})}

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        owner = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: _P.args, **given: _P.kwargs) -> _R:
            options: dict[str, Any] = given
            for old in every.keys() & options.keys():
                new = every[old]
                if new in options:
                    raise TypeError(f"{owner}: `{old}` and `{new}` are the same parameter; give only `{new}`")
                if old in names:
                    _warn(old, new, owner)
                options[new] = options.pop(old)
            return function(*args, **given)

        return call

    return decorate


def renamed_attribute(old: str, new: str) -> property:
    """Return a property with the name `old`, which warns and returns the attribute `new`."""

    def get(self: Any) -> Any:
        _warn(old, new, type(self).__name__)
        return getattr(self, new)

    return property(get, doc=f"`{new}` under its old name.")
