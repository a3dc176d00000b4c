# SPDX-License-Identifier: Apache-2.0
"""Runs a scaling sweep: every size of every variant once per round, in alternating order.

A failed run is counted in its row with the reason, and the sweep continues. A cell that failed twice is not run again.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.bench.app.cells import Cell, Run
from penstock.bench.app.figure import read_figure, read_worlds
from penstock.bench.app.torchrun import torchrun_argv
from penstock.bench.interleaved import abba_order
from penstock.cluster import Cluster
from penstock.cluster.containers import check_container, command_line_prefix, folder_in_container, make_mount_points
from penstock.cluster.exits import describe, first_failure
from penstock.cluster.mpi_check import check_mpi
from penstock.errors import ConfigError, PenstockError, RankFailed
from penstock.ranks import in_batch_job, rendezvous_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.app.spec import Size, Spec, Variant
    from penstock.protocols import Exit, Node, RankPrefix

__all__ = ["Cell", "Run", "command_lines", "measure"]

# Launchers that start MPI jobs. With any other launcher, every rank of an MPI program is a separate job.
_HOST_PROGRAMS = {"mpi": "mpirun", "slurm": "srun", "pbs": "mpirun"}


class _Runner:
    """Runs the cells of one variant on its cluster."""

    def __init__(self, spec: Spec, variant: Variant, cluster: Cluster) -> None:
        self.spec, self.variant, self.cluster = spec, variant, cluster
        self.is_torchrun = spec.launcher == "torchrun"
        self.is_here = all(node.address in ("localhost", "127.0.0.1") for node in cluster.nodes)
        self.notes: list[str] = []
        self.binds, self.container_cwd = self._container_cwd()

    def _container_cwd(self) -> tuple[tuple[str, ...], str | None]:
        """Binds of the container, and its working folder: --cwd, by default the current folder if it can be bound.

        Raises:
            ConfigError: The container cannot see --cwd.
        """
        container, binds = self.variant.container, self.variant.container_bind
        folder = self.spec.cwd or str(Path.cwd())
        if container is None or folder == "/":
            return binds, folder if container is not None and self.spec.cwd else None
        # Apptainer's own default is the current folder; it omits folders that it cannot bind.
        if self.spec.cwd is None and container.startswith(("apptainer:", "singularity:")):
            return binds, None
        # Other nodes can have a copy of the image, in which this machine cannot create a mount point.
        creates = self.is_here or self.spec.cwd is not None
        found = folder_in_container(container, binds, folder, creates_mount_point=creates)
        if found is not None and (self.spec.cwd or not set(folder) & set(":,{")):
            return (*binds, *found[0]), found[1]
        if self.spec.cwd is not None:
            raise ConfigError(
                f"cwd: {container} cannot see the folder {folder}",
                hint=f"bind it to a folder that the image has, for example --container-bind {folder}:/mnt",
            )
        self.notes.append(f"the container cannot see the current folder, {folder}")
        return binds, None

    def request(self, size: Size) -> tuple[list[str], dict[str, Any]]:
        """Command and options of `Cluster.run` for a size."""
        nodes = list(self.cluster.nodes[: size.nodes])
        argv = self.spec.argv(size, self.variant)
        per_node = size.ranks_per_node
        if self.is_torchrun:
            argv, per_node = torchrun_argv(argv, nodes, per_node), 1
        options: dict[str, Any] = {
            "on": nodes,
            "ranks_per_node": per_node,
            "env": self._variables(nodes),
            # In a container, the prefix sets the working folder.
            "cwd": self.spec.cwd if self.variant.container is None else None,
        }
        return argv, {
            **options,
            "bind": self.variant.bind,
            "rank_prefix": self._prefix(list(options["env"])),
            "expand_placeholders": True,
        }

    def _variables(self, nodes: list[Node]) -> dict[str, str]:
        """Environment variables of the ranks, with torch's rendezvous address for mpirun and srun, which do not set
        one.
        """
        if self.spec.launcher not in _HOST_PROGRAMS:
            return dict(self.variant.env)
        meeting = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(rendezvous_port())}
        return {**self.spec.without_direct_copies(), **meeting, **self.variant.env}

    def _prefix(self, variables: list[str]) -> RankPrefix | None:
        variant = self.variant
        if variant.container is None:
            return None
        return command_line_prefix(
            variant.container,
            way=variant.way,
            binds=self.binds,
            env=variables,
            gpus=variant.container_gpus,
            cwd=self.container_cwd,
            args=variant.container_arg,
        )

    def check_container(self) -> None:
        """Check that the runtime and the image exist, if the ranks run on this machine. Create missing mount points.

        Raises:
            NotFound: The runtime or the image is missing.
        """
        if self.variant.container is None:
            return
        if self.is_here:
            check_container(self.variant.container)
        make_mount_points(self.variant.container, self.binds)

    def check(self, size: Size) -> str | None:
        """Check that the ranks form one MPI job; return the name of the library."""
        if self.is_torchrun or size.ranks == 1 or not self.spec.checks_mpi:
            return None
        argv, options = self.request(size)
        host = str({**self.spec.set, **self.variant.set}.get("program", _HOST_PROGRAMS.get(self.spec.launcher, "")))
        return check_mpi(
            self.cluster,
            argv,
            where=self.variant.container or "",
            host_program=host or f"launcher {self.spec.launcher}, which starts no MPI jobs",
            **options,
        )

    def run(self, size: Size, round_number: int) -> Run:
        """Run the command once.

        Raises:
            PenstockError: A rank failed, the output lacks the figure, or the ranks do not form one job.
        """
        argv, options = self.request(size)
        began = time.perf_counter()
        exits = self.cluster.run(argv, timeout_s=self.spec.timeout_s, stops_on_failure=True, **options)
        wall_s = time.perf_counter() - began
        _raise_for_failure(exits)
        outputs = [each.out.decode(errors="replace") + "\n" + each.err.decode(errors="replace") for each in exits]
        if self.spec.world is not None:
            _check_world(self.spec.world, outputs, size.ranks)
        value = read_figure(self.spec.figure, outputs) if self.spec.figure is not None else None
        return Run(round=round_number, wall_s=wall_s, value=value, cpus=tuple(each.cpus for each in exits))


def _raise_for_failure(exits: list[Exit]) -> None:
    first = first_failure(exits)
    if first is None:
        return
    bad = [each for each in exits if each.code != 0 or each.fault is not None]
    more = f" (and {len(bad) - 1} more of {len(exits)} ranks)" if len(bad) > 1 else ""
    fault = first.fault if isinstance(first.fault, PenstockError) else None
    raise RankFailed(f"rank {first.rank} on {describe(first)}{more}", hint=fault.hint if fault else None)


def _check_world(pattern: str, outputs: list[str], ranks: int) -> None:
    found = read_worlds(pattern, outputs)
    if not found:
        raise ConfigError(f"world: {pattern!r} matches nothing in the output")
    if set(found) != {ranks}:
        worlds = ", ".join(map(str, sorted(set(found))))
        every = f"{len(found)} ranks each report" if len(found) > 1 else "the command reports"
        raise RankFailed(
            f"{every} world size {worlds} instead of {ranks}: the ranks do not form one job",
            hint="use the launcher of the MPI with which the command was built",
        )


def _opened(spec: Spec, variant: Variant) -> Cluster:
    settings = {**spec.set, **variant.set}
    launcher = spec.launcher
    if launcher == "torchrun":
        launcher = str(settings.pop("via", "local"))
    if spec.nodes is not None:
        settings["nodes"] = spec.nodes
    elif launcher == "mpi" and not in_batch_job(env.read()):
        settings.setdefault("nodes", "localhost")
    elif launcher == "local":
        settings.setdefault("nodes", max(size.nodes for size in spec.sizes(variant)))
    return Cluster.open(launcher, settings)


def _runners(spec: Spec, held: ExitStack) -> dict[str, _Runner]:
    made = {}
    for variant in spec.variant:
        runner = _Runner(spec, variant, held.enter_context(_opened(spec, variant)))
        wanted, have = max(size.nodes for size in spec.sizes(variant)), len(runner.cluster.nodes)
        if wanted > have:
            raise ConfigError(
                f"nodes: {variant.name} needs {wanted} nodes, but the launcher has {have}",
                hint="name more nodes with --nodes, or pass smaller --node-counts",
            )
        made[variant.name] = runner
    return made


def _cells(spec: Spec) -> list[tuple[Cell, Size]]:
    """All cells: sizes from small to large, and within a size all variants."""
    found = [
        (Cell(variant=v.name, ranks=s.ranks, nodes=s.nodes, problem_size=spec.problem_size(s)), s)
        for v in spec.variant
        for s in spec.sizes(v)
    ]
    return sorted(found, key=lambda pair: (pair[1].ranks, pair[1].nodes))


def command_lines(spec: Spec) -> list[Cell]:
    """Cells with the command lines that `measure` would start, for `--dry-run`. Starts nothing."""
    from penstock.protocols import RunRequest

    with ExitStack() as held:
        runners = _runners(spec, held)
        cells = []
        for cell, size in _cells(spec):
            runner = runners[cell.variant]
            argv, options = runner.request(size)
            on: list[Node] = options.pop("on")
            request = RunRequest(argv, on, timeout_s=spec.timeout_s, **options)
            cell.line = [list(line) for line in runner.cluster.launcher.line(request)]
            cells.append(cell)
        return cells


def measure(
    spec: Spec,
    *,
    on_run: Callable[[Cell, Run | None, int, int], None] = lambda _cell, _run, _done, _total: None,
    into: list[Cell] | None = None,
) -> list[Cell]:
    """Run the whole sweep.

    Args:
        on_run: Called after each run (None for a failed one) with the number of finished runs and the total number.
        into: List that receives the cells before the first run, so that a caller has them after an interruption.
    Raises:
        ConfigError: The launcher, its nodes or a variant is not valid. Failures of runs are in their cells.
    """
    cells = [] if into is None else into
    with ExitStack() as held:
        runners = _runners(spec, held)
        sized = _cells(spec)
        for runner in runners.values():
            runner.check_container()
        for cell, _ in sized:
            cell.notes += runners[cell.variant].notes
            cells.append(cell)
        sizes = {cell.key: size for cell, size in sized}
        _check_all(spec, runners, sized)
        by_key = {cell.key: cell for cell in cells}
        order = [key for _ in range(spec.warm_up) for key in by_key] + abba_order(list(by_key), spec.repeats)
        for at, key in enumerate(order):
            cell = by_key[key]
            round_number = at // len(cells) - spec.warm_up
            if cell.is_abandoned:
                continue
            run = None
            try:
                run = runners[cell.variant].run(sizes[key], round_number)
            except PenstockError as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                cell.record_failure(error)
            if run is not None and round_number >= 0:
                cell.runs.append(run)
                _note(cell, run)
            on_run(cell, run, at + 1, len(order))
    return cells


def _check_all(spec: Spec, runners: dict[str, _Runner], sized: list[tuple[Cell, Size]]) -> None:
    """Check MPI once per variant, at its smallest size with several ranks. A failure applies to all sizes with several
    ranks.
    """
    for variant in spec.variant:
        mine = [(cell, size) for cell, size in sized if cell.variant == variant.name and size.ranks > 1]
        if not mine:
            continue
        try:
            library = runners[variant.name].check(mine[0][1])
        except RankFailed as error:
            for cell, _ in mine:
                cell.error, cell.hint, cell.is_abandoned = str(error), error.hint, True
        else:
            for cell, _ in mine:
                cell.mpi = library


def _note(cell: Cell, run: Run) -> None:
    """Add a note to a cell whose ranks share CPUs, because ranks that share CPUs disturb each other."""
    from penstock.cpu_binding import parse_cpus

    per_node = cell.ranks // cell.nodes
    first = [parse_cpus(text) for text in run.cpus[:per_node]]
    together = len({cpu for cpus in first for cpu in cpus})
    note = f"{per_node} ranks share {together} CPU{'s' if together != 1 else ''}"
    if first and all(first) and together < per_node and note not in cell.notes:
        cell.notes.append(note)
