# SPDX-License-Identifier: Apache-2.0
"""Interfaces `Engine` (runs a store on the nodes' disks) and `Access` (reads and writes the objects in such a
store).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads Pool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.protocols.launchers import Node  # noqa: TC001 - the same

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.protocols.launchers import Exit

__all__ = ["Access", "Engine", "Located", "Pool", "PoolSpec", "Runner"]


@dataclass(frozen=True)
class PoolSpec:
    """Specification of a requested pool.

    Attributes:
        name: Name of the pool: letters, digits and dashes. Two pools with the same name cannot share a node.
        disk: Folder on every node that the pool may use; `{node}` is replaced by the node's name.
        copies: Number of copies of every object, 1 or more.
        need_bytes: Free space that is required on every node's disk at the start.
    """

    name: str
    disk: str
    copies: int = 1
    need_bytes: int = 0


@dataclass(frozen=True)
class Pool:
    """A running pool, in plain values, so that it can be sent to every rank as JSON.

    Attributes:
        lease: Identifies one start of the pool; a pool that is started again gets another lease.
        url: URL to which a stage writes the data, and from which ranks read it.
        facts: The engine's own data, in plain values.
    """

    name: str
    engine: str
    lease: str
    url: str
    nodes: tuple[Node, ...]
    copies: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Located:
    """A piece of an object, and the names of the nodes that store a copy of this piece."""

    offset: int
    length: int
    nodes: tuple[str, ...]


class Runner(Protocol):
    """Gives an engine access to nodes. `penstock.cluster.Cluster` implements it."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes of the requested pool; the first is the leader."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        on: Sequence[Node],
        timeout_s: float,
        stdin: bytes | None = None,
        expand_placeholders: bool = False,
    ) -> list[Exit]:
        """Run a command once on each of the nodes in `on`, like `Launcher.run`."""
        ...

    def copy_to_all(self, src: Path, dst: str, *, on: Sequence[Node], timeout_s: float) -> list[Exit]:
        """Copy a file or folder from this machine to each of the nodes in `on`."""
        ...


@runtime_checkable
class Access(Protocol):
    """Access to a pool's objects, for a process on one of the pool's nodes.

    Object names are relative paths with `/` between folders. Every wait has a timeout.
    """

    def names(self, prefix: str = "") -> list[str]:
        """Sorted names of the objects that begin with `prefix`."""
        ...

    def put(self, name: str, source: Path) -> None:
        """Store a file as an object, atomically, with the first copy on this node. Replaces an existing object."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read a range of an object; the result is shorter at the object's end. Raises NotFound if no copy is left."""
        ...

    def locate(self, names: Sequence[str]) -> dict[str, list[Located]]:
        """Return the pieces of each object and their nodes. If no node stores a piece, its `nodes` is empty."""
        ...

    def fast_path(self, name: str) -> Path | None:
        """Path of a plain local file with exactly the object's bytes; None if this node has no such file."""
        ...

    def mount_path(self, name: str) -> Path | None:
        """Path through which programs can open the object; None if the engine has no mount."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Missing objects are ignored."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Starts a store on the nodes' disks, and stops it without leaving anything. All calls end by their deadline."""

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the engine's unmet requirements as messages, each starting with the node's name.

        Empty if all nodes meet the requirements. `facts` is the result of `penstock.cluster.inventory` for each node.
        """
        ...

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        """Start the pool with this lease, or raise an error. After an error, `down` removes the started parts."""
        ...

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        """State of each node: `up`, `degraded` (it responds but does not serve data) or `lost`."""
        ...

    def access(self, pool: Pool, node: str) -> Access:
        """Return an `Access` to the pool's objects for a process on `node`."""
        ...

    def heal(self, pool: Pool, runner: Runner, *, timeout_s: float) -> list[str]:
        """After a loss of nodes, return the names of objects without a complete copy. The caller fetches them again."""
        ...

    def down(
        self, spec: PoolSpec, runner: Runner, *, lease: str, keep_data: bool, timeout_s: float
    ) -> dict[str, dict[str, Any]]:
        """Remove everything of the pool from every node that responds, even after a failed `up`. Safe to call twice.

        With a `lease`, only the pool that was started with this lease is removed; with an empty `lease`, any pool of
        this name.

        Returns for each node what was removed (`processes`, `mounts`, `folders`), or `refused` with a message if the
        folder does not belong to the pool. A node that did not respond is not in the result.
        """
        ...

    def audit(self, spec: PoolSpec, runner: Runner, *, timeout_s: float) -> dict[str, list[str]]:
        """List what is left of the pool on each node that responds, as messages: processes, mounts, folders, ports."""
        ...
