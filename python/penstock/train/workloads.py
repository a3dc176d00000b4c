# SPDX-License-Identifier: Apache-2.0
"""Workload registry: workloads by name, from the entry points `penstock.workloads`."""

from __future__ import annotations

from penstock import plugins
from penstock.protocols import Workload

__all__ = ["GROUP", "load_workload", "workload_names"]

GROUP = "penstock.workloads"


def workload_names() -> list[str]:
    """What can be named here, in order."""
    return plugins.names(GROUP)


def load_workload(name: str) -> Workload:
    """A workload by its name, fresh.

    Raises:
        ConfigError: No such name, two packages that both claim it, or one that does not load or is no workload.
    """
    made: Workload = plugins.load(GROUP, name, Workload, lambda factory: factory())
    return made
