# SPDX-License-Identifier: Apache-2.0
"""The one door by which workloads come in: the entry points `penstock.workloads`, ours and strangers' alike."""

from __future__ import annotations

from importlib.metadata import entry_points

from penstock.errors import ConfigError
from penstock.protocols import Workload

__all__ = ["GROUP", "load_workload", "workload_names"]

GROUP = "penstock.workloads"


def workload_names() -> list[str]:
    """What can be named here, in order."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_workload(name: str) -> Workload:
    """A workload by its name, fresh.

    Raises:
        ConfigError: No such name, two packages that both claim it, or one that does not load or is no workload.
    """
    found = {
        (entry.value, entry.dist.name if entry.dist else "?"): entry for entry in entry_points(group=GROUP, name=name)
    }
    if not found:
        raise ConfigError(
            f"no workload `{name}` is installed", hint=f"installed: {', '.join(workload_names()) or 'none'}"
        )
    if len(found) > 1:
        claims = ", ".join(f"{package} ({value})" for value, package in sorted(found))
        raise ConfigError(
            f"workload `{name}` is claimed by {len(found)} packages: {claims}", hint="uninstall all but one"
        )
    ((value, package), entry) = next(iter(found.items()))
    try:
        made = entry.load()()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"workload `{name}` of {package} does not load from {value}: {error}") from error
    if not isinstance(made, Workload):
        lacks = [
            m
            for m in (
                "demand",
                "prepare",
                "begin_epoch",
                "step",
                "evaluate",
                "state_dict",
                "load_state_dict",
                "cleanup",
            )
            if not hasattr(made, m)
        ]
        raise ConfigError(
            f"`{value}` of {package} gives no workload: it lacks {', '.join(lacks)}",
            hint="penstock.protocols.Workload is the contract",
        )
    return made
