# SPDX-License-Identifier: Apache-2.0
"""The contracts that plug-ins fulfil, and the nouns that cross them. Imports nothing of Penstock.

A plug-in package names a factory under an entry point, and is found by the same door as ours:

    [project.entry-points."penstock.workloads"]
    mine = "mypackage:workload"          # called with no argument, returns a Workload
    [project.entry-points."penstock.launchers"]
    mine = "mypackage:launcher"          # called with (settings, environment), returns a Launcher
    [project.entry-points."penstock.containers"]
    mine = "mypackage:container"         # called with no argument, returns a Container
    [project.entry-points."penstock.engines"]
    mine = "mypackage:engine"            # called with (settings, environment), returns an Engine
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Access",
    "Around",
    "Batch",
    "Box",
    "Call",
    "Container",
    "Demand",
    "Engine",
    "Exit",
    "FieldSpec",
    "Hear",
    "Launcher",
    "Located",
    "Node",
    "Part",
    "Pool",
    "PoolSpec",
    "Runner",
    "StepCost",
    "Workload",
    "WorkloadSpec",
]

Batch = Mapping[str, Any]
"""Field name -> array (NumPy or torch, as the Demand asked), samples along the first axis; `bytes` fields -> list of buffers."""


@dataclass(frozen=True)
class FieldSpec:
    """One field of a sample as it is stored: dtype by NumPy's name, shape without the batch axis.

    Two dtypes are not NumPy's: `bytes`, as long as they are stored (a list of buffers in the batch; shape ()), and `image`, a
    picture decoded to uint8 of the shape (height, width, 3).
    """

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WorkloadSpec:
    """What a workload is told of the run that it is part of.

    Attributes:
        seed: Of weights and everything else that is random in a step.
        global_batch: Samples of all ranks in one step.
        rank, world: This worker and the number of them; in a world above 1, torch's default process group is up.
        device: `cpu` or `cuda:N`.
        accelerator: Name of an accelerator to emulate in place of the step; None trains.
        settings: The workload's own, as its documentation lists them. Unknown names are refused by the workload.
    """

    seed: int
    global_batch: int
    rank: int = 0
    world: int = 1
    device: str = "cpu"
    accelerator: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Demand:
    """What a workload eats.

    Attributes:
        fields: Of a sample, as stored.
        arrays: Kind of array that `step` takes.
        sample_bytes: Of one sample, decoded.
        samples_per_s: That one rank takes when nothing holds it up; None where only a measurement can tell.
        facts: What belongs into the result beside the settings (parameter count, deviation from a published model).
    """

    fields: Mapping[str, FieldSpec]
    arrays: Literal["numpy", "torch"]
    sample_bytes: int
    samples_per_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepCost:
    """What a step took.

    Attributes:
        samples: Of this rank's slice.
        compute_s: Spent computing (or emulating it); overshoot of an emulated step is not in it.
        sync_s: Spent waiting for other ranks, where it can be told from computing.
        loss: Of this rank's slice; None where nothing is learnt.
    """

    samples: int
    compute_s: float
    sync_s: float = 0.0
    loss: float | None = None


@runtime_checkable
class Workload(Protocol):
    """What eats samples at the end of the feed. Calls come in the order below, from one thread."""

    def demand(self, spec: WorkloadSpec) -> Demand:
        """What it will want under this spec. Cheap, and made before anything else; refuses bad settings with ConfigError."""
        ...

    def prepare(self, spec: WorkloadSpec) -> None:
        """Builds what the steps need. Called once."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch, counted from 0, begins or is resumed."""
        ...

    def step(self, batch: Batch) -> StepCost:
        """Eats one training batch; returns when its cost is known."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Metrics over this rank's slices of a validation set, already reduced over all ranks. Slices may be empty."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a later `load_state_dict` needs to go on bit for bit; the same on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; called after `prepare`."""
        ...

    def cleanup(self) -> None:
        """Frees what `prepare` took; safe twice."""
        ...


# ---------------------------------------------------------------- launchers


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


# ---------------------------------------------------------------- engines


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
        fills: bool = False,
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
    """Brings a store up over the nodes' disks, and takes it down with nothing left. Waits for nothing longer than it is told."""

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """What the nodes lack for it, one text a lack, the node's name first; empty when all is there.

        `facts` is what `penstock.cluster.survey` says of each node.
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

        What was removed, by node: `processes`, `mounts`, `folders`. A node that did not answer is not in it.
        """
        ...

    def audit(self, spec: PoolSpec, runner: Runner, *, deadline_s: float) -> dict[str, list[str]]:
        """What is left of the pool on each node that answers, in words: processes, mounts, folders, ports."""
        ...
