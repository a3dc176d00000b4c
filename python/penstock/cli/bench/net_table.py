# SPDX-License-Identifier: Apache-2.0
"""Terminal output of `bench net`: OSU's and nccl-tests' tables, the matrix of pairs, the topology and the verdict.

stdout gets the tables that OSU's programs or nccl-tests would print, and the matrix. All other output goes to stderr.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from penstock import __version__
from penstock.bench.net.nccl_format import nccl_footer, nccl_header, nccl_line
from penstock.bench.net.osu_format import osu_header, osu_line
from penstock.cpu_binding import format_cpus
from penstock.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.net.place import Place
    from penstock.bench.net.result import Compared, NetResult
    from penstock.bench.net.verdict import NetVerdict, PairFigure

__all__ = ["NetTable", "labels_of", "matrix_lines", "topology_lines"]

_SHADES = " ░▒▓█"
_CELL_WIDTH = 9


class NetTable:
    """Prints messages as they arrive. With `silent`, nothing is printed on stdout, because the caller prints JSON
    there.
    """

    def __init__(self, *, silent: bool, full: bool) -> None:
        self._silent = silent
        self._full = full
        self._has_bar = False

    def message(self, message: dict[str, Any], result: NetResult) -> None:
        """Print a message of rank 0, which `result` already contains."""
        if "pair" in message:
            self._progress(result)
        if self._silent:
            return
        if "places" in message:
            hosts = len({place.host for place in result.places})
            click.echo(f"{result.library}: {plural(result.world, 'rank')} on {plural(hosts, 'host')}", err=True)
        elif "table" in message:
            self._end_table(result, before_last=True)
            self._begin_table(result)
        elif "row" in message:
            table = result.tables[-1]
            if result.plan.convention == "osu":
                click.echo(osu_line(table.operation, table.osu_rows()[-1], full=self._full), nl=False)
            else:
                click.echo(nccl_line(table.nccl_rows()[-1]), nl=False)

    def end(self, result: NetResult) -> None:
        """End the last table, and report sizes that were skipped."""
        if self._has_bar:
            click.echo("\r\x1b[K", nl=False, err=True)
        if not self._silent:
            self._end_table(result, before_last=False)
        for table in result.tables:
            if table.skipped:
                sizes = ", ".join(map(str, table.skipped))
                click.echo(
                    f"{table.program}: {result.plan.backend} cannot run {sizes} bytes on {result.world} ranks", err=True
                )

    def verdict(self, verdict: NetVerdict, result: NetResult) -> None:
        """Print the matrix on stdout, and the topology and the findings on stderr."""
        if self._silent:
            return
        if verdict.pairs:
            for line in matrix_lines(verdict.pairs, result):
                click.echo(line)
        click.echo("", err=True)
        for line in topology_lines(result.places):
            click.echo(line, err=True)
        for finding in verdict.findings:
            click.echo(finding.text, err=True)

    def compared(self, found: Sequence[Compared]) -> None:
        """Print Penstock's results beside the results of an installed program, on stderr."""
        if self._silent or not found:
            return
        click.echo(f"\n{found[0].program}, beside {found[0].source} ({found[0].unit}):", err=True)
        click.echo(f"{'size':>12}{'ours':>12}{'theirs':>12}{'ratio':>8}", err=True)
        for each in found:
            ratio = "–" if each.ratio is None else f"{each.ratio:.3f}"
            click.echo(f"{each.size_bytes:>12}{each.ours:>12.2f}{each.theirs:>12.2f}{ratio:>8}", err=True)

    # ------------------------------------------------------------ internals

    def _begin_table(self, result: NetResult) -> None:
        plan, table = result.plan, result.tables[-1]
        if plan.convention == "osu":
            header = osu_header(
                table.operation, full=self._full, on_device=plan.device == "cuda", comment=_origin(result)
            )
        else:
            sizes = plan.sizes(table.operation, result.world)
            count = plan.count(table.operation, sizes[0])
            header = nccl_header(
                table.operation, low=sizes[0], high=sizes[-1], warm_up=count.warm_up, iterations=count.timed,
                validates=plan.validates,
            )  # fmt: skip
            header = f"# {_origin(result)}\n{header}"
        click.echo(header, nl=False)

    def _end_table(self, result: NetResult, *, before_last: bool) -> None:
        tables = result.tables[:-1] if before_last else result.tables
        if result.plan.convention == "nccl" and tables:
            click.echo(nccl_footer(tables[-1].operation, tables[-1].nccl_rows()), nl=False)

    def _progress(self, result: NetResult) -> None:
        if sys.stderr.isatty():
            total = result.world * (result.world - 1) // 2 * result.plan.rounds
            click.echo(f"\r\x1b[Kpair {len(result.pairs)} of {total}", nl=False, err=True)
            self._has_bar = True


def _origin(result: NetResult) -> str:
    """Program, library and ranks that produced a table, so that a saved table is not mistaken for OSU's own."""
    return f"Penstock {__version__}, {result.library}, {plural(result.world, 'rank')}"


def labels_of(places: Sequence[Place]) -> list[str]:
    """Label of each rank: its number and host. If all ranks are on one host, the host is left out."""
    is_one = len({place.host for place in places}) == 1
    return [str(place.rank) if is_one else f"{place.rank} {place.host}" for place in places]


def matrix_lines(pairs: Sequence[PairFigure], result: NetResult) -> list[str]:
    """Two tables: one-way latency, and bandwidth from the rank of the row to the rank of the column. `!` marks a slow
    pair.
    """
    size = format_bytes(result.plan.matrix_bytes, binary=True)
    labels, world = labels_of(result.places), result.world
    latency: dict[tuple[int, int], tuple[float, bool]] = {}
    rates: dict[tuple[int, int], tuple[float, bool]] = {}
    for pair in pairs:
        for at in ((pair.a, pair.b), (pair.b, pair.a)):
            latency[at] = (pair.latency_us, pair.is_latency_slow)
        rates[pair.a, pair.b] = (pair.a_to_b / 1e6, pair.is_a_to_b_slow)
        rates[pair.b, pair.a] = (pair.b_to_a / 1e6, pair.is_b_to_a_slow)
    return [
        "# One-way latency of 8 bytes (µs); darker is slower, ! is slow",
        *_table(latency, labels, world, slower_is_higher=True),
        f"# Bandwidth of {size} from row to column (MB/s); darker is slower, ! is slow",
        *_table(rates, labels, world, slower_is_higher=False),
    ]


def _table(
    cells: dict[tuple[int, int], tuple[float, bool]], labels: Sequence[str], world: int, *, slower_is_higher: bool
) -> list[str]:
    values = [value for value, _ in cells.values()]
    low, high = min(values), max(values)
    first = max(len(label) for label in labels) + 1
    lines = [" " * first + "".join(f"{rank:>{_CELL_WIDTH + 2}}" for rank in range(world))]
    for row in range(world):
        line = labels[row].ljust(first)
        for column in range(world):
            if row == column:
                line += f"{'–':>{_CELL_WIDTH + 2}}"
                continue
            value, is_slow = cells[row, column]
            share = (value - low) / (high - low) if high > low * 1.05 else 0.0
            shade = _SHADES[
                round((share if slower_is_higher or high <= low * 1.05 else 1 - share) * (len(_SHADES) - 1))
            ]
            line += f"{value:>{_CELL_WIDTH}.4g}{shade}{'!' if is_slow else ' '}"
        lines.append(line.rstrip())
    return lines


def topology_lines(places: Sequence[Place]) -> list[str]:
    """Describe each host: its NUMA nodes, network interfaces and GPUs, and the cores of its ranks."""
    lines = []
    for host in dict.fromkeys(place.host for place in places):
        here = [place for place in places if place.host == host]
        lines.append(f"{host}: {here[0].core_count} cores")
        for node in here[0].topology:
            near = [*_names(node.get("nics")), *_names(node.get("gpus"))]
            lines.append(
                f"  NUMA node {node['node']}: cores {node['cores']}{', with ' + ', '.join(near) if near else ''}"
            )
        for name, nic in here[0].nics.items():
            speed = "speed not reported" if nic["mbit_per_s"] is None else f"{nic['mbit_per_s'] / 1000:g} Gbit/s"
            numa = "" if nic["numa"] is None else f", NUMA node {nic['numa']}"
            lines.append(f"  interface {name}: {speed}, MTU {nic['mtu']}{numa}")
        for address, numa_node in here[0].gpus.items():
            lines.append(f"  GPU {address}: NUMA node {'not reported' if numa_node is None else numa_node}")
        alike: dict[str, list[int]] = {}
        for place in here:
            sockets = ", ".join(map(str, place.sockets)) or "not reported"
            alike.setdefault(f"cores {format_cpus(place.cores)}, socket {sockets}", []).append(place.rank)
        for text, ranks in alike.items():
            lines.append(f"  rank{'s' if len(ranks) > 1 else ''} {format_cpus(ranks)}: {text}")
    return lines


def _names(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []
