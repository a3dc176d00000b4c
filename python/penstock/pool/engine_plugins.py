# SPDX-License-Identifier: Apache-2.0
"""Engine plug-ins by name: the installed file systems that can hold a pool. Reaches no node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import env, plugins
from penstock.protocols import Engine

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GROUP", "load", "names"]

GROUP = "penstock.engines"


def names() -> list[str]:
    """Names of the installed engines, sorted."""
    return plugins.names(GROUP)


def load(name: str, settings: Mapping[str, Any]) -> Engine:
    """Load an engine by its name, with its settings.

    Raises:
        ConfigError: The engine is not installed, or it refuses a setting.
    """
    made: Engine = plugins.load(GROUP, name, Engine, lambda factory: factory(dict(settings), env.read()))
    return made
