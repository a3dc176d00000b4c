# SPDX-License-Identifier: Apache-2.0
"""`local`: nodes on this machine, as plain processes or as emulated hosts (network namespaces) for rehearsals.

Settings: `nodes` (number of nodes), `first` (number in the name of the first node, [0]), `hosts` (name of emulated
hosts, created by `penstock cluster rehearse` or `Hosts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.launchers._shared.subprocess_launcher import SubprocessLauncher
from penstock.launchers.netns_hosts import Hosts
from penstock.plugins import parse_settings
from penstock.protocols import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LocalLauncher", "launcher"]


class LocalLauncher(SubprocessLauncher):
    """Runs commands on this machine or, if `hosts` is given, on its emulated hosts."""

    def __init__(
        self, environment: Mapping[str, str], *, nodes: int, hosts: Hosts | None, first: int = 0, python: str = ""
    ) -> None:
        super().__init__(environment, python=python)
        self._hosts = hosts
        self._nodes = (
            [Node(f"n{at}", "127.0.0.1") for at in range(first, first + nodes)] if hosts is None else hosts.nodes()
        )

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def on_node(self, node: Node, argv: Sequence[str]) -> list[str]:
        return list(argv) if self._hosts is None else self._hosts.enter(node.name, argv)


def launcher(settings: Mapping[str, Any], environment: Mapping[str, str]) -> LocalLauncher:
    """Entry point `penstock.launchers: local`."""
    found = parse_settings("launcher local", settings, {"nodes": int, "first": int, "hosts": str, "python": str})
    nodes, hosts = found.get("nodes", 1), None
    if not 1 <= nodes <= 1024:
        raise ConfigError(f"launcher local: nodes = {nodes} is not between 1 and 1024")
    if "hosts" in found:
        hosts = Hosts.attach(found["hosts"])
        if "nodes" in found and nodes != len(hosts.nodes()):
            raise ConfigError(
                f"launcher local: nodes = {nodes}, but `{hosts.name}` has {len(hosts.nodes())} emulated hosts"
            )
    return LocalLauncher(
        environment, nodes=nodes, hosts=hosts, first=found.get("first", 0), python=found.get("python", "")
    )
