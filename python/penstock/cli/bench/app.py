# SPDX-License-Identifier: Apache-2.0
"""`penstock bench app`: measure how an MPI or torchrun program scales, natively and in a container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.cluster.placement import in_containers
from penstock.cli.parameters import SECONDS, Several

if TYPE_CHECKING:
    from penstock.bench.app.cells import Cell
    from penstock.bench.app.figure import Figure
    from penstock.bench.app.spec import Spec

__all__ = ["command"]

_LAUNCHERS = ("mpi", "local", "slurm", "torchrun", "ssh", "pbs")
_PRESETS = ("lammps-lj", "lammps-rhodo", "hoomd-hexagon", "gromacs", "tf-cnn")
_COUNTS = Several(click.IntRange(min=1), "counts")
# Flags that have the same name as a key of a sweep file. On the command line, these flags override the file.
_KEYS = (
    *("launcher", "nodes", "ranks", "node_counts", "ranks_per_node", "scaling", "size", "repeats", "warm_up"),
    *("world", "checks_mpi", "cwd"),
)
# Flags that apply only to containers.
_OF_CONTAINERS = ("container_binds", "container_gpus", "container_args", "ways")
# If the load average per core is above this value, a note states that the machine was busy.
_BUSY = 0.5


@click.command("app", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option(
    "--sweep",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with these flags as keys, and variants to compare. Flags on the command line override it.",
)
@click.option("--preset", type=click.Choice(_PRESETS), help="Known benchmark: its command, input and figure of merit.")
@click.option(
    "--launcher",
    type=click.Choice(_LAUNCHERS),
    default="mpi",
    show_default=True,
    help="Launcher that starts the ranks. torchrun starts one torchrun per node, and also accepts SCRIPT.py or -m MODULE.",
)
@click.option(
    "--nodes",
    metavar="HOST,HOST",
    help="Names of the nodes (mpi, ssh), or their number (local).  [default: those of the batch job, else this machine]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of the launcher, such as program=mpirun.openmpi; repeatable.",
)
@click.option("--ranks", type=_COUNTS, default="1,2", show_default=True, metavar="N,N", help="Total numbers of ranks.")
@click.option(
    "--node-counts",
    type=_COUNTS,
    metavar="N,N",
    help="Numbers of nodes over which each number of ranks is spread.  [default: as few as --ranks-per-node allows]",
)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of ranks on a node.  [default: all on one node]",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="strong: the same problem for all sizes. weak: {size} grows with the ranks.",
)
@click.option(
    "--size", type=float, default=1, show_default=True, help="Value of {size} at the smallest number of ranks."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Number of rounds; each runs every size once.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Unrecorded rounds before the first one.",
)
@click.option(
    "--timeout", type=SECONDS, default="10min", show_default=True, metavar="TIME", help="Time limit of one run."
)
@click.option(
    "--figure",
    metavar="NAME=REGEX",
    help=r"Figure of merit in the output, such as 'ns/day=Performance:\s+([0-9.]+)'.  [default: wall seconds]",
)
@click.option(
    "--figure-kind",
    type=click.Choice(["total-rate", "step-rate", "seconds"]),
    default="total-rate",
    show_default=True,
    help="Work of all ranks per second (images/s), steps per second (timesteps/s, ns/day), or a duration.",
)
@click.option(
    "--pick",
    type=click.Choice(["only", "first", "last", "mean", "sum"]),
    default="only",
    show_default=True,
    help="Match to use if the expression matches several times; only: an error.",
)
@click.option(
    "--world",
    metavar="REGEX",
    help="Expression for the number of ranks that the program reports; a run that reports another number fails.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Variable of the ranks; repeatable.")
@click.option(
    "--cwd",
    metavar="DIR",
    callback=lambda _context, _parameter, value: value and str(Path(value).absolute()),
    help="Working folder of the ranks, natively and in the container.  [default: the current folder; in the container,"
    " only if it can be bound]",
)
@click.option(
    "--mpi-check/--no-mpi-check",
    "checks_mpi",
    default=True,
    show_default=True,
    help="Check first that the ranks form one MPI job.",
)
@in_containers
@click.option("--dry-run", is_flag=True, help="Print the command lines, and start nothing.")
@click.option("--label", default="", help="Name for the results.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for scaling.json, for `penstock report`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def command(argv: tuple[str, ...], **given: Any) -> int:  # fmt: skip
    """Run CMD at several numbers of ranks and nodes, and print its speed-up, efficiency, a fit and a verdict.

    {ranks}, {nodes}, {ranks_per_node} and {size} in CMD are replaced. Sizes, bindings and containers are interleaved,
    so that slow drift of the machine affects all of them. A run that fails is a row with the reason, and the sweep goes
    on. Exit code 1: at least one run failed.

    \b
    penstock bench app --preset lammps-lj --ranks 1,2,4 --repeats 5
    penstock bench app --figure 'ns/day=Performance: +([0-9.]+)' --ranks 2,4,8 -- gmx_mpi mdrun -s bench.tpr
    penstock bench app --container charliecloud:/images/md --ways host-mpirun,inside -- lmp -in in.lj
    """  # noqa: D301 - click's \b keeps the line breaks
    from penstock.bench.app.document import document, save
    from penstock.bench.app.presets import PRESETS, input_folder
    from penstock.bench.app.run import command_lines, measure
    from penstock.bench.app.summary import summarise
    from penstock.cli.bench.app_output import print_lines, print_summary, run_printer

    with input_folder() as folder:
        spec = _spec(argv, given, Path(folder))
        notes = [*([PRESETS[spec.preset].note] if spec.preset and PRESETS[spec.preset].note else []), *_load_notes()]
        if given["dry_run"]:
            print_lines(command_lines(spec), as_json=given["as_json"])
            return 0
        cells: list[Cell] = []
        is_complete = False
        try:
            measure(spec, on_run=run_printer(spec), into=cells)
            is_complete = True
        finally:
            if given["output"] is not None and cells:
                made = document(
                    spec, cells, summarise(spec, cells), complete=is_complete, label=given["label"], notes=notes
                )
                save(made, given["output"])
    summary = summarise(spec, cells)
    if given["as_json"]:
        import msgspec

        click.echo(msgspec.json.encode(document(spec, cells, summary, label=given["label"], notes=notes)))
    else:
        print_summary(summary, notes)
    return 1 if summary.failed else 0


def _spec(argv: tuple[str, ...], given: dict[str, Any], folder: Path) -> Spec:
    """Build the sweep from the flags, the file and the preset."""
    import msgspec

    from penstock.bench.app.figure import parse_figure
    from penstock.bench.app.spec import Spec, load_spec, variants_of, with_preset
    from penstock.cli.cluster.options import settings_of

    context = click.get_current_context()
    changed = {name for name in given if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    chosen = {
        name: given[name] for name in _KEYS if given[name] is not None and (name in changed or given["sweep"] is None)
    }
    settings = settings_of(given["settings"])
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if given["sweep"] is None or "timeout" in changed:
        chosen["timeout_s"] = given["timeout"]
    if given["figure"] is not None:
        chosen["figure"] = parse_figure(given["figure"], given["pick"], given["figure_kind"])
    if given["sweep"] is not None:
        refused = {"preset", "container", *_OF_CONTAINERS, "binds", "env"} & changed
        if refused:
            raise click.UsageError(
                f"{flags[min(refused)]} cannot be combined with --sweep; describe it in a [[variant]] of the sweep file"
            )
        spec = load_spec(given["sweep"], preset_folder=folder)
        chosen["figure"] = _figure(chosen.get("figure", spec.figure), given, changed)
        if settings:
            chosen["set"] = {**spec.set, **settings}
        return msgspec.structs.replace(spec, **chosen, **({"command": argv} if argv else {}))
    if given["container"] is None and (unused := changed.intersection(_OF_CONTAINERS)):
        raise click.UsageError(f"{flags[min(unused)]} needs --container")
    chosen["command"] = argv
    if given["preset"] is not None:
        chosen = with_preset({**chosen, "preset": given["preset"]}, folder)
    chosen["figure"] = _figure(chosen.get("figure"), given, changed)
    if not chosen["command"]:
        raise click.UsageError("give a command after --, or use --preset or --sweep")
    variants = variants_of(
        given["container"], given["ways"], given["binds"], container_bind=given["container_binds"],
        container_gpus=given["container_gpus"], container_arg=given["container_args"], env=settings_of(given["env"]),
    )  # fmt: skip
    return Spec(set=settings, variant=variants, **chosen)


def _figure(figure: Figure | None, given: dict[str, Any], changed: set[str]) -> Figure | None:
    """Return the figure of merit from the flags, the file or the preset, with --pick and --figure-kind applied."""
    import msgspec

    flags = {"pick": "pick", "figure_kind": "kind"}
    own = {key: given[flag] for flag, key in flags.items() if flag in changed}
    if own and figure is None:
        raise click.UsageError("--pick and --figure-kind need --figure, or a preset or sweep with a figure of merit")
    return msgspec.structs.replace(figure, **own) if figure is not None else None


def _load_notes() -> list[str]:
    """Return a note if other programs use this machine's processors."""
    import os

    from penstock.cluster import inventory

    load, cores = os.getloadavg()[0], inventory.cores()
    if load < _BUSY * cores:
        return []
    return [
        f"the load average was {load:.1f} on {cores} cores before the first run: other programs disturbed the figures"
    ]
