# SPDX-License-Identifier: Apache-2.0
"""Plug-ins by entry points, Penstock's own and third-party ones alike. Contains no interface itself."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load", "names"]


def names(group: str) -> list[str]:
    """Names of the installed plug-ins of a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load(group: str, name: str, contract: type, make: Callable[[Any], Any]) -> Any:
    """Load a plug-in by its name, and check that it implements its interface (a runtime-checkable protocol).

    Args:
        group: Group of entry points, such as `penstock.workloads`.
        make: Calls the factory; its exceptions are passed on.

    Raises:
        ConfigError: The name is unknown, two packages define it, or it does not load or does not implement the
            interface.
    """
    kind = contract.__name__.lower()
    found = {
        (entry.value, entry.dist.name if entry.dist else "?"): entry for entry in entry_points(group=group, name=name)
    }
    if not found:
        raise ConfigError(f"no {kind} `{name}` is installed", hint=f"installed: {', '.join(names(group)) or 'none'}")
    if len(found) > 1:
        claims = ", ".join(f"{package} ({value})" for value, package in sorted(found))
        raise ConfigError(
            f"{kind} `{name}` is claimed by {len(found)} packages: {claims}", hint="uninstall all but one"
        )
    ((value, package), entry) = next(iter(found.items()))
    try:
        factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} `{name}` of {package} does not load from {value}: {error}") from error
    made = make(factory)
    if not isinstance(made, contract):
        wanted = sorted(m for m in vars(contract) if not m.startswith("_") and callable(getattr(contract, m)))
        lacks = [m for m in wanted if not hasattr(made, m)]
        raise ConfigError(
            f"`{value}` of {package} gives no {kind}: it lacks {', '.join(lacks)}",
            hint=f"penstock.protocols.{contract.__name__} is the contract",
        )
    return made
