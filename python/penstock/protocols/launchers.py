# SPDX-License-Identifier: Apache-2.0
"""Interfaces (protocols) of launchers, which start commands on nodes, and of container runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Container", "ContainerSpec", "Exit", "Launcher", "Node", "NodeSlice", "OnLine", "RankPrefix", "RunRequest"]


@dataclass(frozen=True)
class Node:
    """One host of a cluster. `name` is used in logs, errors and flags; `address` is used for connections from other
    nodes.
    """

    name: str
    address: str


@dataclass(frozen=True)
class Exit:
    """Result of one rank of a command.

    Attributes:
        node: Name of the rank's node.
        rank: Number of the rank, counted from 0 node by node.
        code: Exit code, or 128 + the number of the signal that ended the command. None if the command did not start or
            did not finish; in this case, `fault` is set.
        out, err: The end of the command's stdout and stderr: at least the last MiB of each.
        seconds: Duration from start to end, measured by the launcher.
        fault: Reason for a missing exit code, such as an unreachable node or a timeout. The text contains the node's
            name.
        cpus: CPUs that the rank was allowed to use at its start, such as `0-3,8`; empty if unknown.
    """

    node: str
    rank: int
    code: int | None
    out: bytes = b""
    err: bytes = b""
    seconds: float = 0.0
    fault: Exception | None = None
    cpus: str = ""


OnLine = Callable[[str, int, str, bytes], None]
"""Callback for every output line of a running command: node name, rank, `out` or `err`, line without its line ending.
The callback may be called from any thread.
"""


@dataclass(frozen=True)
class RankPrefix:
    """Command prefix of every rank of a request. Typically, the prefix runs the rank in a container.

    Attributes:
        argv: Arguments inserted before the rank's command on its node, such as `apptainer exec IMAGE`. `{rank}`,
            `{world}`, `{local_rank}` and `{node}` in `argv` and `cleanup_argv` are always replaced.
        launcher_args: Arguments for the program that starts all ranks (srun), such as `--container-image=IMAGE`.
            Launchers without such a program reject these arguments.
        is_outermost: `argv` is also inserted before the program that starts all ranks (mpirun), on this machine and on
            every node, so that the program itself runs in the container.
        cleanup_argv: Command that ends what `argv` has started on a node. Needed for anything that survives the end of
            the `argv` process, such as a container of a daemon.
    """

    argv: tuple[str, ...] = ()
    launcher_args: tuple[str, ...] = ()
    is_outermost: bool = False
    cleanup_argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeSlice:
    """Position of a request's nodes in a larger job.

    Attributes:
        node: Number of the request's first node in the job.
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
        argv: The command, always a list. With `expand_placeholders`, `{rank}`, `{world}`, `{local_rank}` and `{node}`
            in it are replaced by the values of each rank.
        on: The nodes, in rank order.
        timeout_s: Time after which the command is terminated on its node.
        env: Variables that are added to the node's environment. These variables never appear on a command line.
        cwd: Working directory on the node.
        stdin: Input for every rank; requires one rank per node.
        on_line: Called for every output line.
        rank_prefix: Command prefix of every rank.
        node_slice: Position of these nodes in a larger job, if the job's other nodes are started separately. Only for
            launchers in which Penstock numbers the ranks.
        bind: CPUs that each rank may use: `none` (all), `show` (the launcher's default), `core`, `numa`, `near-gpu`,
            `near-nic[:DEVICE]` or `cpus:LIST/LIST` (one list per local rank). None keeps the launcher's settings.
        stops_on_failure: If a rank fails, stop the others soon, because they may wait for it. If False, only a rank that
            a signal has killed stops the others.
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
    bind: str | None = None
    stops_on_failure: bool = False

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.on) * self.ranks_per_node


@dataclass(frozen=True)
class ContainerSpec:
    """Container in which the ranks of a job run.

    Attributes:
        image: Image in the runtime's format: a file, a folder, or a name in a registry.
        binds: Folders of the node and their paths in the container, as `SRC:DST` or `SRC:DST:ro`.
        env: Names of the variables that ranks get in addition to the launcher's variables.
        has_gpus: Make the node's GPUs visible in the container.
        cwd: Working directory in the container; by default, the working directory that the runtime or the image
            defines.
        args: Further arguments of the runtime, before the image.
        label: Name of the containers of one request, for runtimes that need names.
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
        """Return the prefix that runs every rank in the container. Raises Unsupported for unsupported options."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """Starts commands on nodes.

    Commands are passed to the nodes as argument lists, never as shell text. Every call returns at most ten seconds
    after its deadline. Processes that a call has started on a node end with the call, even if the node becomes
    unreachable.
    """

    def nodes(self) -> Sequence[Node]:
        """Return the nodes in a fixed order; the first is the leader. Contacts no node."""
        ...

    def line(self, request: RunRequest) -> Sequence[Sequence[str]]:
        """Return the command lines that `run` would start on this machine, for display; empty if it starts none."""
        ...

    def run(self, request: RunRequest) -> list[Exit]:
        """Run all ranks concurrently; when all have ended, return one Exit per rank, in rank order.

        If a rank fails, its Exit contains the error. Only an invalid request (no node, no command) raises an error.
        """
        ...

    def copy(self, src: Path, dst: str, on: Sequence[Node], *, timeout_s: float) -> list[Exit]:
        """Copy a file or folder from this machine to the path `dst` on every node. No partial file appears at `dst`."""
        ...

    def fetch(self, src: str, dst: Path, on: Node, *, timeout_s: float) -> Exit:
        """Copy a file or folder from one node to the path `dst` on this machine. No partial file appears at `dst`."""
        ...

    def close(self) -> None:
        """End all running commands and release all resources. Safe to call twice."""
        ...
