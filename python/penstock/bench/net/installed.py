# SPDX-License-Identifier: Apache-2.0
"""Runs the OSU benchmarks and nccl-tests, if installed, on the same ranks; compares their figures with Penstock's."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.net.nccl_format import parse_nccl
from penstock.bench.net.osu_format import parse_osu
from penstock.bench.net.plan import POINT_TO_POINT
from penstock.bench.net.result import NetTable
from penstock.cluster import raise_for_failures
from penstock.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.bench.net.plan import NetPlan
    from penstock.cluster import Cluster

__all__ = ["Compared", "compare_tables", "find_programs", "run_program"]


class Compared(msgspec.Struct, frozen=True):
    """One size, measured by Penstock and by an installed program: microseconds, MB/s, or GB/s of busbw (nccl-tests)."""

    size_bytes: int
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else 0.0


def find_programs(plan: NetPlan, folder: Path | None) -> dict[str, str]:
    """Find the installed programs of a plan's operations in a folder and its subfolders, or on PATH.

    Raises:
        NotFound: The given folder contains no program of these operations.
    """
    found = {}
    for operation in plan.operations:
        name = plan.names[operation]
        if folder is None:
            path = shutil.which(name)
        else:
            here = [folder / name, *sorted(folder.glob(f"**/{name}"))]
            path = next((str(each) for each in here if each.is_file()), None)
        if path is not None:
            found[operation] = path
    if folder is not None and not found:
        names = ", ".join(plan.names[each] for each in plan.operations)
        raise NotFound(f"{folder}: contains none of {names}", where=str(folder))
    return found


def run_program(
    plan: NetPlan, operation: str, path: str, cluster: Cluster, *, ranks_per_node: int, timeout_s: float
) -> tuple[NetTable, str]:
    """Run one program on the ranks of a plan; return its table and its output.

    Raises:
        RankFailed: The program ended with an error.
        Corrupt: The output does not come from OSU or nccl-tests.
    """
    nodes, each = list(cluster.nodes), ranks_per_node
    if operation in POINT_TO_POINT:
        # OSU's point-to-point programs accept exactly two ranks.
        a, b = (nodes[rank // ranks_per_node] for rank in plan.pair)
        nodes, each = ([a], 2) if a == b else ([a, b], 1)
    exits = cluster.run(
        [path, *_options(plan, operation, world=len(nodes) * each)], on=nodes, ranks_per_node=each, timeout_s=timeout_s
    )
    raise_for_failures(exits, plan.names[operation])
    text = exits[0].out.decode(errors="replace")
    table = NetTable(operation, plan.names[operation], source=path)
    if plan.convention == "osu":
        table.rows = list(parse_osu(text)[0].rows)
    else:
        table.rows = list(parse_nccl(text).rows)
    return table, text


def _options(plan: NetPlan, operation: str, *, world: int) -> list[str]:
    found = []
    if plan.convention == "nccl":
        sizes = plan.sizes(operation, world)
        found = ["-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "2", "-c", str(int(plan.validates))]
        found += [] if plan.iterations is None else ["-n", str(plan.iterations)]
        return found + ([] if plan.warm_up is None else ["-w", str(plan.warm_up)])
    found += [] if plan.iterations is None else ["-i", str(plan.iterations)]
    found += [] if plan.warm_up is None else ["-x", str(plan.warm_up)]
    if operation not in POINT_TO_POINT and operation != "barrier":
        # The point-to-point programs of version 5 have no option for sizes.
        sizes = plan.sizes(operation, world)
        found += ["-m", f"{sizes[0]}:{sizes[-1]}", "-f"]
    return found


def compare_tables(ours: NetTable, theirs: NetTable) -> list[Compared]:
    """Compare the sizes that both tables have."""
    other = dict(_figures(theirs))
    return [Compared(size, value, other[size]) for size, value in _figures(ours) if size in other]


def _figures(table: NetTable) -> list[tuple[int, float]]:
    found = [(row.size_bytes, row.value) for row in table.osu_rows()]
    return found + [(row.size_bytes, row.out_of_place.busbw) for row in table.nccl_rows() if row.out_of_place]
