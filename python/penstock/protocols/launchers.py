# SPDX-License-Identifier: Apache-2.0
"""Interfaces of launchers and container runtimes, which start commands on nodes, and their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Container", "ContainerSpec", "Exit", "Launcher", "Node", "NodeSlice", "OnLine", "RankPrefix", "RunRequest"]


@dataclass(frozen=True)
class Node:
    """One host of a cluster: `name` in logs, errors and flags, `address` for connections from other nodes."""

    name: str
    address: str


@dataclass(frozen=True)
class Exit:
    """How one rank of a command ended.

    Attributes:
        node: The node's name.
        rank: Number of the rank in the command, counted from 0 node after node.
        code: Exit code, or 128 + the signal that ended it. None if the command did not run to an end; `fault` has the reason.
        out, err: The end of its output; a launcher keeps at least the last MiB of each.
        seconds: From start to end, as the launcher measured.
        fault: Reason for a missing code (unreachable, refused, past the deadline); the text names the node.
    """

    node: str
    rank: int
    code: int | None
    out: bytes = b""
    err: bytes = b""
    seconds: float = 0.0
    fault: Exception | None = None


OnLine = Callable[[str, int, str, bytes], None]
"""Callback for every output line of a running command: node name, rank, `out` or `err`, line without its end. From any thread."""


@dataclass(frozen=True)
class RankPrefix:
    """Command prefix of every rank of a request; most often it enters a container.

    Attributes:
        argv: Inserted before the rank's own command on its node, such as `apptainer exec IMAGE`. `{rank}`, `{world}`,
            `{local_rank}` and `{node}` in them and in `cleanup_argv` are always expanded.
        launcher_args: Arguments of the one program that starts all ranks, such as `--container-image=IMAGE` for srun;
            launchers without such a program refuse them.
        is_outermost: `argv` is also inserted before that program, on this machine and on every node: the launcher is
            inside.
        cleanup_argv: Command for a node that ends what `argv` started, if ending its process is not enough (a daemon's
            container).
    """

    argv: tuple[str, ...] = ()
    launcher_args: tuple[str, ...] = ()
    is_outermost: bool = False
    cleanup_argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeSlice:
    """Position of a request's nodes in a larger job.

    Attributes:
        node: Number of the first of these nodes in the job.
        nodes: Number of nodes of the job.
        rendezvous: Host and port of the ranks' rendezvous (torch's MASTER_ADDR and MASTER_PORT).
    """

    node: int
    nodes: int
    rendezvous: tuple[str, int]


@dataclass(frozen=True)
class RunRequest:
    """A command to run on every rank of some nodes.

    Attributes:
        argv: The command, always a list. With `expand_placeholders`, `{rank}`, `{world}`, `{local_rank}` and `{node}` in it
            become each rank's own.
        on: The nodes, in the order of their ranks.
        timeout_s: The command is ended on its node after this time.
        env: Variables set over the node's own; never put on a command line.
        cwd: Working directory on the node.
        stdin: Goes to every rank; needs one rank per node.
        on_line: Called for every output line.
        rank_prefix: Command prefix of every rank.
        node_slice: Position of these nodes in a larger job whose other nodes are started elsewhere; for launchers that
            number ranks themselves.
    """

    argv: Sequence[str]
    on: Sequence[Node]
    ranks_per_node: int = 1
    timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes | None = None
    on_line: OnLine | None = None
    expand_placeholders: bool = False
    rank_prefix: RankPrefix | None = None
    node_slice: NodeSlice | None = None

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.on) * self.ranks_per_node


@dataclass(frozen=True)
class ContainerSpec:
    """Container of a job.

    Attributes:
        image: Image in the runtime's own form: a file, a folder, or a name in a registry.
        binds: `SRC:DST` or `SRC:DST:ro`: folders of the node, and their paths inside.
        env: Names of the variables that ranks get besides those of their launcher.
        has_gpus: The node's GPUs are visible inside.
        cwd: Working directory inside; by default the runtime's or the image's own.
        args: Further arguments of the runtime, before the image.
        label: Name of one request's containers, if the runtime needs names.
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
    """A container runtime, as a command prefix. Starts nothing by itself."""

    def rank_prefix(self, spec: ContainerSpec) -> RankPrefix:
        """The prefix that runs every rank in the container. Raises Unsupported for what the runtime cannot do."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """Starts commands on nodes. Command lines are argument lists from end to end; no call outlives its deadline by
    more than ten seconds, and what it started on a node ends with the call, even if the node becomes unreachable.
    """

    def nodes(self) -> Sequence[Node]:
        """The nodes, in an order that does not change; the first leads. Contacts no node."""
        ...

    def line(self, request: RunRequest) -> Sequence[Sequence[str]]:
        """The command lines that `run` would start on this machine, for people to read; empty if it starts none."""
        ...

    def run(self, request: RunRequest) -> list[Exit]:
        """Run all ranks at once; return one Exit per rank, in order, when all have ended.

        A rank's failure is in its Exit; only an invalid request (no node, no command) raises.
        """
        ...

    def copy(self, src: Path, dst: str, on: Sequence[Node], *, timeout_s: float) -> list[Exit]:
        """Copy a file or folder of this machine to the path `dst` of every node; complete, or not there."""
        ...

    def fetch(self, src: str, dst: Path, on: Node, *, timeout_s: float) -> Exit:
        """Copy a file or folder of one node to the path `dst` here; complete, or not there."""
        ...

    def close(self) -> None:
        """End what still runs and release everything; safe to call twice."""
        ...
