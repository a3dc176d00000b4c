# SPDX-License-Identifier: Apache-2.0
"""Contract of engines, which run a store over the nodes' disks; the types they receive, and the access to their objects."""

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
    """A pool as it is asked for.

    Attributes:
        name: Of the pool; letters, digits and dashes. Two pools of one name cannot share a node, two names can.
        disk: The folder that the pool may use, on every node; `{node}` in it is the node's name.
        copies: Of every object, 1 or more.
        need_bytes: That every node's disk must have free at the start.
    """

    name: str
    disk: str
    copies: int = 1
    need_bytes: int = 0


@dataclass(frozen=True)
class Pool:
    """A pool that is up: plain values, so that it goes to every rank as JSON.

    Attributes:
        lease: Names this life of the pool; a pool brought up again has another.
        url: Where the stage writes and stores read.
        facts: The engine's own, as plain values.
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
    """What an engine is given to reach nodes: `penstock.cluster.Cluster` is one."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes of the pool that is asked for; the first leads."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        on: Sequence[Node],
        deadline_s: float,
        stdin: bytes | None = None,
        expand_placeholders: bool = False,
    ) -> list[Exit]:
        """A command once on each of the nodes, as `Launcher.run` does it."""
        ...

    def copy_to_all(self, src: Path, dst: str, *, on: Sequence[Node], deadline_s: float) -> list[Exit]:
        """A file or folder of this machine to each of the nodes."""
        ...


@runtime_checkable
class Access(Protocol):
    """A pool's objects, for a process on one of its nodes. Names are relative, with `/` between folders. Every wait has an end."""

    def names(self, prefix: str = "") -> list[str]:
        """The objects whose name begins with `prefix`, sorted."""
        ...

    def put(self, name: str, source: Path) -> None:
        """A file as an object, with its first copy on this node: whole under its name, or not there. Replaces one of that name."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of an object; fewer at its end. NotFound where no copy is left."""
        ...

    def locate(self, names: Sequence[str]) -> dict[str, list[Located]]:
        """Where the objects lie; a piece that no node holds has no nodes."""
        ...

    def fast_path(self, name: str) -> Path | None:
        """A plain local file with exactly the object's bytes, or None where this node has none."""
        ...

    def mount_path(self, name: str) -> Path | None:
        """The path by which programs open the object, or None where the engine mounts nothing."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Removes objects; those that are not there are no error."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Brings a store up over the nodes' disks, and takes it down with nothing left. Every wait ends at the given deadline."""

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """What the nodes lack for it, one text a lack, the node's name first; empty when all is there.

        `facts` is what `penstock.cluster.inventory` says of each node.
        """
        ...

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, deadline_s: float) -> Pool:
        """Brings the pool up under that lease, or raises; what it has begun by then is `down`'s to remove."""
        ...

    def status(self, pool: Pool, runner: Runner, *, deadline_s: float) -> dict[str, str]:
        """Each node's state: `up`, `degraded` (reached, but not serving) or `lost`."""
        ...

    def access(self, pool: Pool, node: str) -> Access:
        """The pool's objects, for a process on that node."""
        ...

    def heal(self, pool: Pool, runner: Runner, *, deadline_s: float) -> list[str]:
        """After nodes were lost: the names of objects of which no whole copy is left, which the caller fetches again."""
        ...

    def down(
        self, spec: PoolSpec, runner: Runner, *, lease: str, keep_data: bool, deadline_s: float
    ) -> dict[str, dict[str, Any]]:
        """Ends everything of the pool on every node that answers, also what a broken `up` left; safe twice. With a lease
        only that life of the pool; with none, whoever's it is.

        What was removed, by node: `processes`, `mounts`, `folders`; or `refused`, in words, where what lies at the pool's place
        is not the pool's. A node that did not answer is not in it.
        """
        ...

    def audit(self, spec: PoolSpec, runner: Runner, *, deadline_s: float) -> dict[str, list[str]]:
        """What is left of the pool on each node that answers, in words: processes, mounts, folders, ports."""
        ...
