# SPDX-License-Identifier: Apache-2.0
"""Part `sweep`: a pool, and the published sweep of sizes and threads on all its nodes at once.

Small sizes rehearse on hosts of this machine; `full` uses the nodes of --launcher. The data, the pool and the hosts are
removed at the end, also after Ctrl-C.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock.bench.distributed import Fleet
from penstock.bench.distributed.config import Storage
from penstock.bench.phases import Hooks
from penstock.bench.results import provenance
from penstock.bench.rows import write_results
from penstock.bench.storage import Point, StorageBench
from penstock.bench.verdict import classify
from penstock.errors import ConfigError
from penstock.pool import lifecycle
from penstock.protocols import PoolSpec
from penstock.study.result import Chart, Claim, Line, PartResult, Table, Text, Value
from penstock.units import format_bytes

from .hosts import rehearsed
from .prediction import pool_bytes_per_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.bench.rows import Row
    from penstock.bench.verdict import Judged
    from penstock.cluster import Cluster
    from penstock.study.run import Context

__all__ = ["claims_of", "points_of", "run"]

_UP_S = 120.0
_OPERATIONS = ("WRITE", "READ")
_LITTLE = 0.8  # large files with the most threads keep this share of the best rate: "more threads cost little"
_NEAR = 0.2
_FALLS = 0.97  # below this share of the best, the rate has fallen


def run(context: Context) -> PartResult:
    """Start the pool, run the sweep, and judge each point."""
    size, limits = context.size, context.study.tables["limits"]
    with ExitStack() as running:
        cluster, disk = running.enter_context(_nodes(context))
        context.progress(f"starting {size['engine']} on {len(cluster.nodes)} nodes")
        url = running.enter_context(_pool(cluster, disk, size))
        rows = _measure(context, cluster, f"{url}/bench")
        hosts = len(cluster.nodes)
    write_results(context.out / "sweep", rows, spec={"study": "ondemand-pool", "hosts": hosts}, provenance=provenance())
    cells = [cell for cell in classify(rows).cells if cell.operation in _OPERATIONS]
    note = f"{hosts} hosts" + (f", F = {size['F']:g}" if size["F"] != 1 else "")
    return PartResult(
        measured=_measured(cells, size["F"], note),
        claims=(*claims_of(cells), _limit_claim(cells, limits, hosts, size["F"])),
        blocks=(
            Text(title="The sweep", text=_about(size, hosts)),
            *_charts(cells),
            _verdicts(cells),
        ),
        not_measured=("a second metadata server: MooseFS has one",) if size["engine"] == "moosefs" else (),
        data=[_plain(cell) for cell in cells],
    )


def points_of(size: Mapping[str, Any]) -> tuple[Point, ...]:
    """Points of the sweep: files per host are the same for all points, split among the threads."""
    return tuple(
        Point(
            threads=threads, files=max(1, size["files_per_host"] // threads), file_size_bytes=length,
            block_size_bytes=length,
        )
        for length in size["file_bytes"]
        for threads in size["threads"]
    )  # fmt: skip


@contextmanager
def _nodes(context: Context) -> Iterator[tuple[Cluster, str]]:
    """The selected nodes and their disk; without a selection, hosts on this machine."""
    size, limits = context.size, context.study.tables["limits"]
    if context.size_name == "full":
        if context.open_cluster is None:
            raise ConfigError(
                "size full needs a cluster",
                where="--size",
                hint="select its nodes with --launcher slurm, or ssh and --nodes",
            )
        with context.open_cluster() as cluster:
            yield cluster, size["disk"]
        return
    context.progress(f"creating {size['hosts']} hosts with disks and links at F = {size['F']:g}")
    rates = (limits["nvme_bytes_per_s"] * size["F"], limits["fabric_bytes_per_s"] * size["F"])
    with rehearsed(context, *rates) as found:
        yield found


@contextmanager
def _pool(cluster: Cluster, disk: str, size: Mapping[str, Any]) -> Iterator[str]:
    spec = PoolSpec(f"study-{uuid4().hex[:8]}", disk)
    pool, _ = lifecycle.up(cluster, spec, size["engine"], size.get("engine_settings", {}), timeout_s=_UP_S)
    try:
        yield pool.url
    finally:
        record = lifecycle.find(spec.name)
        if record is not None:
            lifecycle.down(cluster, record, timeout_s=_UP_S)


def _measure(context: Context, cluster: Cluster, path: str) -> list[Row]:
    bench = StorageBench(phases=("mkdirs", "write", "read", "stat", "delete"), repeats=context.size["repeats"])
    points = points_of(context.size)
    done = 0

    def on_row(row: Row) -> None:
        nonlocal done
        if row.operation == "READ":
            done += 1
            length = format_bytes(row.file_size_bytes or 0, binary=True)
            context.progress(
                f"point {done} of {len(points)}: {length}, {row.threads} threads on each of {row.hosts} hosts"
            )

    fleet = Fleet(cluster, timeout_s=context.timeout_s)
    rows, _ = fleet.run(Storage(path=path, bench=bench, points=points), Hooks(on_row=on_row))
    return rows


def _best(cells: Sequence[Judged], operation: str, length: int) -> Judged | None:
    found = [cell for cell in cells if (cell.operation, cell.file_size_bytes) == (operation, length)]
    return max(found, key=lambda cell: cell.bytes_per_s, default=None)


def _lengths(cells: Sequence[Judged]) -> list[int]:
    return sorted({cell.file_size_bytes for cell in cells if cell.file_size_bytes})


def _measured(cells: Sequence[Judged], scale: float, note: str) -> dict[str, Value]:
    lengths = _lengths(cells)
    found: dict[str, Value] = {}
    for operation in _OPERATIONS:
        best = _best(cells, operation, lengths[-1])
        if best is not None:
            rate = best.bytes_per_s / 1e9
            text = f"{note}; {best.threads} threads a host; divided by F: {rate / scale:.3g} GB/s"
            found[f"{operation.lower()}-large"] = Value(rate, text, scale=scale)
            if operation == "READ":
                found["node-rate"] = Value(rate / best.hosts, note, scale=scale)
    small = _best(cells, "READ", lengths[0])
    if small is not None:
        found["small-files"] = Value(small.entries_per_s, f"{note}; files per second are not scaled")
        found["small-peak"] = Value(float(small.threads), note, is_comparable=False)
    return found


def claims_of(cells: Sequence[Judged]) -> list[Claim]:
    """The published reading of the sweep: two regimes, and what threads do in each."""
    lengths = _lengths(cells)
    claims = []
    for operation in _OPERATIONS:
        for length, regime in ((lengths[0], "metadata"), (lengths[-1], "bandwidth")):
            line = _line(cells, operation, length)
            # The regime of the most threads: with one thread, nothing is saturated.
            found = [cell.regime for cell in line if cell.threads > 1]
            here = ", ".join(
                f"{cell.threads} threads {cell.regime}{' (retrograde)' * cell.retrograde}" for cell in line
            )
            name = f"{operation.lower()} of {format_bytes(length, binary=True)}"
            claims.append(
                Claim(f"{name} with several threads is limited by {regime}", here, holds=_mostly(found, regime))
            )
    line = _line(cells, "READ", lengths[0])
    rates = {cell.threads: cell.entries_per_s for cell in line}
    best = max(rates, key=lambda threads: rates[threads])
    shown = ", ".join(f"{threads}: {rate:,.0f}" for threads, rate in rates.items())
    claims.append(
        Claim("reading small files rises with threads, then stalls or falls", f"files/s by threads: {shown}",
              holds=rates[best] > 1.1 * line[0].entries_per_s and line[-1].entries_per_s <= rates[best] and _stalls(line))
    )  # fmt: skip
    claims.append(
        Claim("reading small files falls when the metadata server is overloaded", f"best with {best} threads; with {line[-1].threads}: {line[-1].entries_per_s / rates[best]:.0%} of it",
              holds=line[-1].entries_per_s < _FALLS * rates[best])
    )  # fmt: skip
    line = _line(cells, "READ", lengths[-1])
    top = max(cell.bytes_per_s for cell in line)
    claims.append(
        Claim("large files: more threads cost little", f"{line[-1].threads} threads have {line[-1].bytes_per_s / top:.0%} of the best rate",
              holds=line[-1].bytes_per_s >= _LITTLE * top)
    )  # fmt: skip
    return claims


def _limit_claim(cells: Sequence[Judged], limits: Mapping[str, Any], hosts: int, scale: float) -> Claim:
    """Reads of the largest files against the limit that the prediction uses, at the same F."""
    limit, what = pool_bytes_per_s(hosts, limits["nvme_bytes_per_s"] * scale, limits["fabric_bytes_per_s"] * scale)
    best = max(cell.bytes_per_s for cell in _line(cells, "READ", _lengths(cells)[-1]))
    here = f"{best / 1e6:.0f} MB/s of {limit / 1e6:.0f} MB/s ({best / limit - 1:+.0%}), {what}"
    return Claim(
        "reads of the largest files reach the predicted limit within 20 %", here, holds=abs(best / limit - 1) <= _NEAR
    )


def _line(cells: Sequence[Judged], operation: str, length: int) -> list[Judged]:
    found = [cell for cell in cells if (cell.operation, cell.file_size_bytes) == (operation, length)]
    return sorted(found, key=lambda cell: cell.threads)


def _mostly(found: Sequence[str], regime: str) -> bool:
    return sum(each == regime for each in found) * 2 > len(found)


def _stalls(line: Sequence[Judged]) -> bool:
    """Whether the last increase of threads brings less than a third of a proportional gain."""
    last, before = line[-1], line[-2]
    return last.entries_per_s / before.entries_per_s < 1 + (last.threads / before.threads - 1) / 3


def _charts(cells: Sequence[Judged]) -> list[Chart]:
    charts = []
    for operation, verb in zip(_OPERATIONS, ("Writing", "Reading"), strict=True):
        lines = tuple(
            Line(format_bytes(length, binary=True), tuple((float(cell.threads), cell.entries_per_s) for cell in _line(cells, operation, length)))
            for length in _lengths(cells)
        )  # fmt: skip
        charts.append(
            Chart(
                f"files-{operation.lower()}", f"{verb}: files per second", "threads of each host", "files/s", lines,
                "One line for each file size. Lines that lie together are limited by opening files; a line of large files"
                " lies lower, because bytes limit it.",
                log_x=True, log_y=True,
            )
        )  # fmt: skip
    return charts


def _verdicts(cells: Sequence[Judged]) -> Table:
    rows = tuple(
        (
            cell.operation.lower(), format_bytes(cell.file_size_bytes or 0, binary=True), str(cell.threads),
            f"{cell.bytes_per_s / 1e6:.1f}", f"{cell.entries_per_s:,.0f}",
            cell.regime + (", retrograde" if cell.retrograde else ""), cell.evidence["reason"],
        )
        for cell in cells
    )  # fmt: skip
    head = ("phase", "file", "threads of a host", "MB/s", "files/s", "limited by", "evidence")
    return Table("Limit of each point (the verdict of `penstock bench classify`)", head, rows, left=1)


def _about(size: Mapping[str, Any], hosts: int) -> str:
    return (
        f"{size['engine']} on {hosts} nodes; {size['files_per_host'] * hosts:,} files for each point, written and synced"
        " by all nodes at once, then read by all after the caches were dropped."
    )


def _plain(cell: Judged) -> dict[str, Any]:
    return dict(msgspec.to_builtins(cell))
