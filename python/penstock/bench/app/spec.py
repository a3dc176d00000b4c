# SPDX-License-Identifier: Apache-2.0
"""Specification of a scaling sweep: command, sizes, variants and figure of merit, from flags or from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock import env
from penstock.bench.app.figure import Figure, checked_pattern, parse_figure
from penstock.bench.app.presets import PRESETS, prepare
from penstock.cluster.containers import NO_DIRECT_COPIES, parse_container, separates_ranks
from penstock.cpu_binding import binding_kind
from penstock.errors import ConfigError, NotFound
from penstock.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PLACEHOLDERS", "Scaling", "Size", "Spec", "Variant", "load_spec", "variants_of", "with_preset"]

Scaling = Literal["strong", "weak"]
PLACEHOLDERS = ("ranks", "nodes", "ranks_per_node", "size")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    pass


class Variant(_Part, frozen=True):
    """One way of running the command. All variants of a sweep are interleaved, and compared with the first variant.

    Attributes:
        container: `RUNTIME:IMAGE`; None runs natively.
        way: `host-mpirun` starts each rank in a container; `inside` also runs mpirun in the container.
        container_bind: Folders that the container sees, as `/src:/dst`.
        container_gpus: Make the node's GPUs visible in the container.
        container_arg: Further arguments of the runtime, before the image.
        bind: CPUs of each rank; see `penstock.protocols.RunRequest`.
        ranks_per_node: Ranks on each node. By default, the ranks use as few nodes as the sweep allows.
        env: Variables of the ranks.
        command: Command of this variant; by default, the command of the sweep.
        set: Settings of the launcher, in addition to the sweep's settings.
    """

    name: str
    container: str | None = None
    way: Literal["host-mpirun", "inside"] = "host-mpirun"
    container_bind: tuple[str, ...] = ()
    container_gpus: bool = False
    container_arg: tuple[str, ...] = ()
    bind: str | None = None
    ranks_per_node: int | None = None
    env: dict[str, str] = {}
    command: tuple[str, ...] = ()
    set: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.container is not None:
            parse_container(self.container)
        elif self.container_bind or self.container_gpus or self.container_arg or self.way != "host-mpirun":
            raise ConfigError(f"variant {self.name}: way and container-* need the key container")
        if self.bind is not None:
            try:
                binding_kind(self.bind)
            except ValueError as error:
                raise ConfigError(f"variant {self.name}: {error}") from None
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise ConfigError(f"variant {self.name}: ranks-per-node must be at least 1 (got {self.ranks_per_node})")


class Size(msgspec.Struct, frozen=True):
    """A number of ranks, and the number of nodes over which the ranks are spread evenly."""

    ranks: int
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes


class Spec(_Part, frozen=True):
    """A scaling sweep.

    Attributes:
        preset: Name of the preset that gave the command and the figure, in `presets.PRESETS`.
        command: Arguments, in which PLACEHOLDERS in braces are replaced; never a shell string.
        ranks: Total numbers of ranks, of all nodes together.
        node_counts: Numbers of nodes over which each number of ranks is spread. If empty, the fewest nodes that
            `ranks_per_node` allows are used, or one node if `ranks_per_node` is not set.
        size: Value of `{size}`. With weak scaling, it is multiplied by ranks / (smallest number of ranks).
        world: Regular expression for the number of ranks that the command itself reports. If this number differs from
            the real number of ranks, the run has failed.
        checks_mpi: Start a small MPI program before the sweep to find out whether the ranks form one job.
        timeout_s: Time limit of one run.
        cwd: Working folder of the ranks on their node, which is bound into containers. By default, the ranks in
            containers use the current folder if it can be bound.
        warm_up: Unrecorded runs of every size and variant.
    """

    command: tuple[str, ...]
    preset: str | None = None
    launcher: str = "mpi"
    set: dict[str, Any] = {}
    nodes: str | None = None
    ranks: tuple[int, ...] = (1, 2)
    node_counts: tuple[int, ...] = ()
    ranks_per_node: int | None = None
    scaling: Scaling = "strong"
    size: float = 1
    repeats: int = 3
    warm_up: int = 1
    timeout_s: float = 600.0
    figure: Figure | None = None
    world: str | None = None
    checks_mpi: bool = msgspec.field(default=True, name="mpi-check")
    cwd: str | None = None
    variant: tuple[Variant, ...] = (Variant(name="native"),)

    def __post_init__(self) -> None:
        if not self.command or not all(arg and "\0" not in arg for arg in self.command[:1]):
            raise ConfigError("command: must be a list of at least one argument")
        for name in ("ranks", "node_counts"):
            values = getattr(self, name)
            if any(value < 1 for value in values) or len(set(values)) < len(values):
                raise ConfigError(
                    f"{name.replace('_', '-')}: values must be whole numbers of at least 1, each given only once"
                    f" (got {values})"
                )
        if not self.ranks:
            raise ConfigError("ranks: at least one number is required")
        for name, least in (("repeats", 1), ("warm_up", 0), ("timeout_s", 0.1), ("size", 0), ("ranks_per_node", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name.replace('_', '-')}: must be at least {least} (got {value})")
        if self.world is not None:
            checked_pattern(self.world, "world")
        names = [each.name for each in self.variant]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                "variant: at least one [[variant]] is required, and all names must differ"
                f" (got {', '.join(names) or 'none'})"
            )

    def sizes(self, variant: Variant) -> list[Size]:
        """Sizes of a variant, smallest first.

        Raises:
            ConfigError: No number of ranks can be spread evenly over its nodes.
        """
        per_node = variant.ranks_per_node or self.ranks_per_node
        found = []
        for ranks in sorted(self.ranks):
            if self.node_counts:
                counts: Sequence[int] = sorted(self.node_counts)
            else:
                counts = [next(n for n in range(1, ranks + 1) if ranks % n == 0 and ranks <= n * (per_node or ranks))]
            found += [
                Size(ranks, nodes)
                for nodes in counts
                if ranks % nodes == 0 and (not per_node or ranks <= per_node * nodes)
            ]
        if not found:
            raise ConfigError(
                f"ranks: none of {', '.join(map(str, self.ranks))} can be spread evenly over"
                f" {', '.join(map(str, self.node_counts)) or 'the'} nodes"
                + (f" with {per_node} ranks per node" if per_node else "")
            )
        return found

    def problem_size(self, size: Size) -> float:
        """Value of `{size}` at this number of ranks; an int if the value is a whole number."""
        value = self.size * (size.ranks / min(self.ranks) if self.scaling == "weak" else 1)
        return int(value) if float(value).is_integer() else value

    def without_direct_copies(self) -> dict[str, str]:
        """Variables that all variants get because a variant runs each rank in a container of its own: between these,
        large messages of Open MPI hang. Empty if the user has set one of the variables.
        """
        if self.launcher not in ("mpi", "slurm", "pbs"):
            return {}
        if not any(separates_ranks(each.container, each.way) for each in self.variant):
            return {}
        names = {name for each in self.variant for name in each.env} | set(env.read())
        args = " ".join(str({**self.set, **each.set}.get("args", "")) for each in self.variant)
        if any(name in names or f" {name.removeprefix('OMPI_MCA_')} " in args for name in NO_DIRECT_COPIES):
            return {}
        return dict(NO_DIRECT_COPIES)

    def argv(self, size: Size, variant: Variant) -> list[str]:
        """The command with its placeholders replaced."""
        values = {
            "ranks": size.ranks,
            "nodes": size.nodes,
            "ranks_per_node": size.ranks_per_node,
            "size": self.problem_size(size),
        }
        made = []
        for arg in variant.command or self.command:
            for name in PLACEHOLDERS:
                arg = arg.replace("{" + name + "}", str(values[name]))
            made.append(arg)
        return made


def variants_of(container: str | None, ways: Sequence[str], binds: Sequence[str], **common: Any) -> tuple[Variant, ...]:
    """Variants that the command-line flags describe. For each binding: native first, then each way to use the
    container.

    Args:
        binds: Bindings to compare; empty for the launcher's default.
        common: Other attributes of all container variants.
    """
    made = []
    env = common.pop("env", {})
    for bind in binds or (None,):
        label = f", {bind}" if bind is not None and len(binds) > 1 else ""
        made.append(Variant(name=f"native{label}", bind=bind, env=env))
        if container is not None:
            runtime = parse_container(container)[0]
            for way in ways:
                where = "host mpirun" if way == "host-mpirun" else "mpirun inside"
                named = f"{runtime}, {where}{label}"
                made.append(Variant(name=named, container=container, way=way, bind=bind, env=env, **common))  # type: ignore[arg-type]
    return tuple(made)


def load_spec(path: Path, *, preset_folder: Path | None = None) -> Spec:
    """Read a sweep from a TOML file. Its keys are the flags of `penstock bench app`; docs/guides/containers.md contains
    an example.

    Args:
        preset_folder: Folder for the input files of a preset; None refuses presets with input files.
    Raises:
        NotFound: The file does not exist, or the preset's program or data is not installed.
        ConfigError: The file is not valid TOML, or a key or value is not valid.
    """
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist", where=str(path)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", where=str(path)) from None
    try:
        if isinstance(found.get("timeout"), str):
            found["timeout-s"] = parse_seconds(found.pop("timeout"))
        if isinstance(found.get("figure"), str):
            found["figure"] = parse_figure(found["figure"])
        if "preset" in found:
            found = with_preset(found, preset_folder)
        return msgspec.convert(found, Spec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", where=str(path)) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", where=str(path), hint=error.hint) from None


def with_preset(fields: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return fields of a sweep with the command, folder, figure and world of its `preset`. Fields that are given, except
    the command, replace those of the preset.

    Args:
        folder: Folder for the preset's input files; None refuses presets with input files.
    Raises:
        ConfigError: The preset is unknown, or its command is missing or given twice.
        NotFound: The preset's program or data is not installed.
    """
    name = fields["preset"]
    if name not in PRESETS:
        raise ConfigError(f"preset: `{name}` is not one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if folder is None and preset.files:
        raise ConfigError(f"preset {name}: needs a folder for its input files")
    ready = prepare(name, fields.get("command", ()), folder or Path(), env.read())
    given = {key: value for key, value in fields.items() if value is not None}
    made = {"command": ready.command, "cwd": ready.cwd or fields.get("cwd")}
    return {"figure": preset.figure, "world": preset.world, **given, **made}
