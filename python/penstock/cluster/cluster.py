# SPDX-License-Identifier: Apache-2.0
"""The `Cluster` class: runs commands on a set of nodes by a deadline, returns one `Exit` per rank, and copies files."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from penstock import env, plugins
from penstock.cluster.exits import raise_for_failures
from penstock.cluster.logs import Logs
from penstock.errors import ConfigError, NotFound
from penstock.protocols import Launcher, RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from penstock.protocols import Exit, Node, NodeSlice, OnLine, RankPrefix

__all__ = ["DEADLINE_S", "GROUP", "Cluster", "launcher_names"]

GROUP = "penstock.launchers"
DEADLINE_S = 600.0


def launcher_names() -> list[str]:
    """Names of the installed launchers, sorted."""
    return plugins.names(GROUP)


class Cluster:
    """The nodes of one launcher. Every call ends by its deadline. If a node fails, its Exit contains the error."""

    def __init__(self, launcher: Launcher, *, only: Sequence[str] = ()) -> None:
        """`only` limits the cluster to these nodes, in their launcher's order.

        Raises:
            NotFound: `only` contains a name that no node has.
        """
        self.launcher = launcher
        found = list(launcher.nodes())
        for name in only:
            if not any(node.name == name for node in found):
                raise NotFound(f"unknown node `{name}`; the nodes are {_names_of(found)}", where=name)
        self.nodes = tuple(node for node in found if not only or node.name in only)
        if not self.nodes:
            raise ConfigError("the cluster has no nodes")

    @classmethod
    def open(cls, launcher: str, settings: Mapping[str, Any], *, only: Sequence[str] = ()) -> Cluster:
        """Open a cluster, given the launcher's name and settings.

        Raises:
            ConfigError: The launcher is unknown, or rejects a setting.
        """
        made: Launcher = plugins.load(GROUP, launcher, Launcher, lambda factory: factory(dict(settings), env.read()))
        try:
            return cls(made, only=only)
        except BaseException:
            made.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the launcher, which terminates the commands that it is still running."""
        self.launcher.close()

    @property
    def leader(self) -> Node:
        """The first node."""
        return self.nodes[0]

    def node(self, name: str) -> Node:
        """Return a node by its name.

        Raises:
            NotFound: No node has this name.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise NotFound(f"unknown node `{name}`; the nodes are {_names_of(self.nodes)}", where=name)

    def run(
        self,
        argv: Sequence[str],
        *,
        on: Sequence[Node] | None = None,
        ranks_per_node: int = 1,
        timeout_s: float = DEADLINE_S,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
        logs: Path | None = None,
        expand_placeholders: bool = False,
        rank_prefix: RankPrefix | None = None,
        node_slice: NodeSlice | None = None,
        bind: str | None = None,
        stops_on_failure: bool = False,
    ) -> list[Exit]:
        """Run a command concurrently on all ranks of all nodes (or of the nodes in `on`).

        `protocols.RunRequest` documents the other arguments.

        Args:
            logs: Folder for one log file per node. Every log line starts with its time, rank and stream.
        """
        with ExitStack() as held:
            if logs is not None:
                on_line = held.enter_context(Logs(logs, on_line)).on_line
            return self.launcher.run(
                RunRequest(
                    argv, self.nodes if on is None else on, ranks_per_node, timeout_s=timeout_s, env=env or {}, cwd=cwd,
                    stdin=stdin, on_line=on_line, expand_placeholders=expand_placeholders, rank_prefix=rank_prefix, node_slice=node_slice,
                    bind=bind, stops_on_failure=stops_on_failure,
                )
            )  # fmt: skip

    def run_on_leader(self, argv: Sequence[str], **options: Any) -> Exit:
        """Run a command on the first node."""
        return self.run(argv, on=[self.leader], **options)[0]

    def copy_to_all(
        self, src: Path, dst: str, *, on: Sequence[Node] | None = None, timeout_s: float = DEADLINE_S
    ) -> list[Exit]:
        """Copy a file or folder from this machine to all nodes (or to the nodes in `on`)."""
        _require_path(src)
        return self.launcher.copy(src, dst, self.nodes if on is None else on, timeout_s=timeout_s)

    def copy_to_leader(self, src: Path, dst: str, *, timeout_s: float = DEADLINE_S) -> Exit:
        """Copy a file or folder from this machine to the first node."""
        return self.copy_to_all(src, dst, on=[self.leader], timeout_s=timeout_s)[0]

    def copy_from(self, node: Node, src: str, dst: Path, *, timeout_s: float = DEADLINE_S) -> Exit:
        """Copy a file or folder from one node to this machine."""
        return self.launcher.fetch(src, dst, node, timeout_s=timeout_s)

    def copy_from_leader(self, src: str, dst: Path, *, timeout_s: float = DEADLINE_S) -> Exit:
        """Copy a file or folder from the first node to this machine."""
        return self.copy_from(self.leader, src, dst, timeout_s=timeout_s)

    def barrier(self, *, timeout_s: float = 60.0) -> float:
        """Run `true` on every node and wait until all have finished; return the seconds this took.

        Raises:
            PenstockError: A node did not respond or failed; the error contains its name.
        """
        began = time.monotonic()
        raise_for_failures(self.run(["true"], timeout_s=timeout_s), "barrier")
        return time.monotonic() - began


def _names_of(nodes: Sequence[Node]) -> str:
    names = [node.name for node in nodes[:8]]
    return ", ".join(names) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")


def _require_path(src: Path) -> None:
    if not src.exists():
        raise NotFound(f"{src} does not exist", where=str(src))
