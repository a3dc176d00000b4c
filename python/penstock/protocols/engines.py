# SPDX-License-Identifier: Apache-2.0
"""Interface of engines, which run a store over the nodes' disks: their input types, and the access to their objects."""

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
        name: Name of the pool: letters, digits and dashes. Two pools of one name cannot share a node.
        disk: Folder on every node that the pool may use; `{node}` is replaced by the node's name.
        copies: Number of copies of every object, 1 or more.
        need_bytes: Space that every node's disk must have free at the start.
    """

    name: str
    disk: str
    copies: int = 1
    need_bytes: int = 0


@dataclass(frozen=True)
class Pool:
    """A running pool, in plain values, so that it can be sent to every rank as JSON.

    Attributes:
        lease: Identifies this life of the pool; a pool that is started again has another lease.
        url: URL that a stage writes to and stores read from.
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
    """A piece of an object and the nodes that hold a copy of it, by name."""

    offset: int
    length: int
    nodes: tuple[str, ...]


class Runner(Protocol):
    """Gives an engine access to nodes: `penstock.cluster.Cluster` implements it."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes of the requested pool; the first leads."""
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
        """Run a command once on each of the nodes, like `Launcher.run`."""
        ...

    def copy_to_all(self, src: Path, dst: str, *, on: Sequence[Node], timeout_s: float) -> list[Exit]:
        """Copy a file or folder of this machine to each of the nodes."""
        ...


@runtime_checkable
class Access(Protocol):
    """A pool's objects, for a process on one of its nodes. Names are relative, with `/` between folders. All waits are
    bounded.
    """

    def names(self, prefix: str = "") -> list[str]:
        """Names of the objects that begin with `prefix`, sorted."""
        ...

    def put(self, name: str, source: Path) -> None:
        """Store a file as an object, atomically, with its first copy on this node. Replaces an object of that name."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of an object; fewer at its end. Raises NotFound if no copy is left."""
        ...

    def locate(self, names: Sequence[str]) -> dict[str, list[Located]]:
        """Location of the objects' pieces; a piece that no node holds has no nodes."""
        ...

    def fast_path(self, name: str) -> Path | None:
        """A plain local file with exactly the object's bytes, or None if this node has none."""
        ...

    def mount_path(self, name: str) -> Path | None:
        """The path by which programs open the object, or None if the engine has no mount."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects; missing ones are ignored."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Starts a store over the nodes' disks, and stops it without remains. Every wait ends at the given deadline."""

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Requirements of the engine that nodes lack, one text each, with the node's name first; empty if nothing is
        missing.

        `facts` is the result of `penstock.cluster.inventory` for each node.
        """
        ...

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        """Start the pool under that lease, or raise; `down` then removes what was already started."""
        ...

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        """Each node's state: `up`, `degraded` (reached, but not serving) or `lost`."""
        ...

    def access(self, pool: Pool, node: str) -> Access:
        """Access to the pool's objects, for a process on that node."""
        ...

    def heal(self, pool: Pool, runner: Runner, *, timeout_s: float) -> list[str]:
        """After nodes were lost: names of objects without a complete copy, which the caller fetches again."""
        ...

    def down(
        self, spec: PoolSpec, runner: Runner, *, lease: str, keep_data: bool, timeout_s: float
    ) -> dict[str, dict[str, Any]]:
        """End everything of the pool on every node that answers, also the remains of a failed `up`; safe to call twice.
        With a lease, only that life of the pool; without one, any.

        Returns for each node what was removed (`processes`, `mounts`, `folders`), or `refused` with a message if the
        folder is not the pool's. A node that did not answer is missing.
        """
        ...

    def audit(self, spec: PoolSpec, runner: Runner, *, timeout_s: float) -> dict[str, list[str]]:
        """Remains of the pool on each node that answers, as messages: processes, mounts, folders, ports."""
        ...
