# SPDX-License-Identifier: Apache-2.0
"""What starts commands on nodes: the contracts of launchers and containers, and their nouns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Around", "Box", "Call", "Container", "Exit", "Hear", "Launcher", "Node", "Part"]


@dataclass(frozen=True)
class Node:
    """One host of a cluster: `name` is what logs, errors and flags call it, `address` where other nodes reach it."""

    name: str
    address: str


@dataclass(frozen=True)
class Exit:
    """How one rank of a command ended.

    Attributes:
        node: Its name.
        rank: Of the command, counted from 0 node after node.
        code: Exit code, or 128 + the signal that ended it. None where it did not run to an end: `fault` says why.
        out, err: What it wrote last; a launcher keeps at least the last MiB of each.
        seconds: From its start to its end, as the launcher saw it.
        fault: Why there is no code (unreachable, refused, past its deadline), in words that name the node.
    """

    node: str
    rank: int
    code: int | None
    out: bytes = b""
    err: bytes = b""
    seconds: float = 0.0
    fault: Exception | None = None


Hear = Callable[[str, int, str, bytes], None]
"""Told of every line while a command runs: node's name, rank, `out` or `err`, the line without its end. From any thread."""


@dataclass(frozen=True)
class Around:
    """What stands around every rank of a call: a container, most often.

    Attributes:
        words: Before the rank's own, on its node, as `apptainer exec IMAGE`. `{rank}`, `{world}`, `{local_rank}` and
            `{node}` in them and in `ends` are always filled.
        step: For the one program that starts all ranks, as `--container-image=IMAGE` for srun; launchers that have no such
            program refuse them.
        is_outermost: `words` stand before that program too, on this machine and on every node: the launcher is inside.
        ends: The command that ends on a node what `words` began, where the end of its process does not (a daemon's container).
    """

    words: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    is_outermost: bool = False
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """The place of a call's nodes in a larger job.

    Attributes:
        node: The number of the first of them there.
        nodes: The number of the job's.
        meet: Host and port where the job's ranks meet.
    """

    node: int
    nodes: int
    meet: tuple[str, int]


@dataclass(frozen=True)
class Call:
    """A command on every rank of some nodes, as a launcher is asked for it.

    Attributes:
        argv: Its words, from end to end a list. With `fills`, `{rank}`, `{world}`, `{local_rank}` and `{node}` in them
            become each rank's own.
        on: The nodes, in the order in which their ranks are counted.
        deadline_s: After which the command is ended, on its node.
        env: Set over what the node has; crosses no command line.
        cwd: The folder that it starts in, on the node.
        stdin: Goes to every rank of a call of one rank a node.
        hear: Told of every line.
        around: What stands around every rank.
        part: Where these nodes stand in a larger job, whose other nodes somebody else starts; for launchers that number
            ranks themselves.
    """

    argv: Sequence[str]
    on: Sequence[Node]
    ranks_per_node: int = 1
    deadline_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes | None = None
    hear: Hear | None = None
    fills: bool = False
    around: Around | None = None
    part: Part | None = None

    @property
    def world(self) -> int:
        """The number of its ranks."""
        return len(self.on) * self.ranks_per_node


@dataclass(frozen=True)
class Box:
    """A container as a job asks for it.

    Attributes:
        image: As the runtime names it: a file, a folder, or a name in a registry.
        binds: `SRC:DST` or `SRC:DST:ro`: folders of the node, and where ranks see them.
        env: Names of variables that ranks are to get beside those of their launcher.
        has_gpus: The node's GPUs are shown.
        cwd: The folder that ranks start in, inside; else the runtime's or the image's own.
        args: Further words for the runtime, before the image.
        label: Names the containers of one call where the runtime wants names.
    """

    image: str
    binds: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    has_gpus: bool = False
    cwd: str | None = None
    args: tuple[str, ...] = ()
    label: str = "penstock"


@runtime_checkable
class Container(Protocol):
    """A container runtime, as words around a rank's own. Starts nothing by itself."""

    def around(self, box: Box) -> Around:
        """What puts every rank of a call into the container. Refuses with Unsupported what the runtime cannot."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """Starts commands on nodes. Command lines are argument lists from end to end; no call outlives its deadline by
    more than ten seconds, and what it started on a node ends with the call, also where the node cannot be reached any more.
    """

    def nodes(self) -> Sequence[Node]:
        """The nodes, in an order that does not change; the first leads. Asks no node for anything."""
        ...

    def line(self, call: Call) -> Sequence[Sequence[str]]:
        """The command lines that `run` would start on this machine, for people to read; empty where it starts none."""
        ...

    def run(self, call: Call) -> list[Exit]:
        """Runs all ranks at once; returns when all have ended, one Exit a rank, in order.

        A rank's failure is its Exit; only a call that cannot be (no node, no command) raises.
        """
        ...

    def copy(self, src: Path, dst: str, on: Sequence[Node], *, deadline_s: float) -> list[Exit]:
        """A file or folder of this machine to the path `dst` of every node; whole under its name, or not there."""
        ...

    def fetch(self, src: str, dst: Path, on: Node, *, deadline_s: float) -> Exit:
        """A file or folder of one node to the path `dst` here; whole under its name, or not there."""
        ...

    def close(self) -> None:
        """Ends what still runs and gives back what was taken; safe twice."""
        ...
