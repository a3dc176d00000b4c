# SPDX-License-Identifier: Apache-2.0
"""Workload registry: finds and loads workloads by name, from the `penstock.workloads` entry-point group."""

from __future__ import annotations

from penstock import plugins
from penstock.protocols import Workload

__all__ = ["GROUP", "load_workload", "workload_names"]

GROUP = "penstock.workloads"


def workload_names() -> list[str]:
    """Names of the installed workloads, sorted."""
    return plugins.names(GROUP)


def load_workload(name: str) -> Workload:
    """Create a new instance of a workload, by its name.

    Raises:
        ConfigError: The name is unknown, two packages define it, or the entry point cannot be loaded or is not a
            workload.
    """
    made: Workload = plugins.load(GROUP, name, Workload, lambda factory: factory())
    return made
