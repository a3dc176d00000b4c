# SPDX-License-Identifier: Apache-2.0
"""Loads plug-ins through entry points, both Penstock's own and third-party ones. Defines no plug-in interface
itself.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["load", "names", "parse_settings"]

_ARTICLE = {str: "a string", int: "a whole number", bool: "true or false", float: "a number"}


def names(group: str) -> list[str]:
    """Return the sorted names of the installed plug-ins of a group."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load(group: str, name: str, contract: type, make: Callable[[Any], Any]) -> Any:
    """Load a plug-in by its name, and check that it implements its interface (a runtime-checkable protocol).

    Args:
        group: Group of entry points, such as `penstock.workloads`.
        make: Function that calls the plug-in's factory. Exceptions of this function are not caught.

    Raises:
        ConfigError: The name is unknown or defined by two packages, or the plug-in cannot be loaded or does not
            implement the interface.
    """
    kind = contract.__name__.lower()
    found = {
        (entry.value, entry.dist.name if entry.dist else "?"): entry for entry in entry_points(group=group, name=name)
    }
    if not found:
        raise ConfigError(
            f"no {kind} `{name}` is installed", hint=f"use one of those installed: {', '.join(names(group)) or 'none'}"
        )
    if len(found) > 1:
        claims = ", ".join(f"{package} ({value})" for value, package in sorted(found))
        raise ConfigError(
            f"{kind} `{name}` is provided by {len(found)} packages: {claims}", hint="uninstall all but one"
        )
    ((value, package), entry) = next(iter(found.items()))
    try:
        factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} `{name}` of {package} cannot be loaded from {value}: {error}") from error
    made = make(factory)
    if not isinstance(made, contract):
        wanted = sorted(m for m in vars(contract) if not m.startswith("_") and callable(getattr(contract, m)))
        lacks = [m for m in wanted if not hasattr(made, m)]
        raise ConfigError(
            f"`{value}` of {package} is not a valid {kind}: {', '.join(lacks)} not implemented",
            hint=f"implement penstock.protocols.{contract.__name__}",
        )
    return made


def parse_settings(owner: str, settings: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a plug-in's settings with its defaults. Text from a command line is parsed as a number or boolean if the
    setting has that type.

    Args:
        owner: Kind and name of the plug-in, such as `engine hdfs`, for errors.
        known: Default of each setting, or its type if it has no default.

    Raises:
        ConfigError: A setting is unknown, or a value has another type.
    """
    found = {key: value for key, value in known.items() if not isinstance(value, type)}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(
                f"{owner}: unknown setting `{key}`",
                hint=f"use one of its settings: {', '.join(sorted(known)) or 'none'}",
            )
        kind = known[key] if isinstance(known[key], type) else type(known[key])
        if kind is bool and value in ("true", "false"):
            value = value == "true"
        elif kind is int and isinstance(value, str) and value.isdecimal():
            value = int(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"{owner}: {key} must be {_ARTICLE[kind]} (got {value!r})")
        found[key] = value
    return found
