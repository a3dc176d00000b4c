# SPDX-License-Identifier: Apache-2.0
"""Runs the OSU benchmarks and nccl-tests, if installed, on the same ranks and with the same settings as Penstock."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

from penstock.bench.net.nccl_format import parse_nccl
from penstock.bench.net.osu_format import parse_osu
from penstock.bench.net.plan import OSU_WINDOW, POINT_TO_POINT
from penstock.bench.net.result import NetTable
from penstock.cluster import raise_for_failures
from penstock.errors import NotFound, Unsupported

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.bench.net.plan import NetPlan
    from penstock.cluster import Cluster
    from penstock.protocols import Node

__all__ = ["find_programs", "program_options", "run_program"]

# An option in the help of OSU's programs, such as `  -W, --window-size SIZE` or `  -x ITER` (5.3).
_OPTION = re.compile(r"^\s*-([A-Za-z])\b", re.MULTILINE)
_HELP_TIMEOUT_S = 60.0


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
            # Resolve: `.` followed by a name has no slash, so the name would be searched on PATH.
            here = [folder.resolve() / name, *sorted(folder.resolve().glob(f"**/{name}"))]
            path = next((str(each) for each in here if each.is_file()), None)
        if path is not None:
            found[operation] = path
    if folder is not None and not found:
        names = ", ".join(plan.names[each] for each in plan.operations)
        raise NotFound(f"{folder}: contains none of {names}", where=str(folder))
    return found


def run_program(
    plan: NetPlan, operation: str, path: str, cluster: Cluster, *,
    ranks_per_node: int, timeout_s: float, bind: str | None = None,
) -> tuple[NetTable, str]:  # fmt: skip
    """Run one program on the ranks of a plan; return its table and its output.

    Raises:
        RankFailed: The program ended with an error.
        Unsupported: The program has no option for GPU buffers or for the window, and the plan needs it.
        Corrupt: The output does not come from OSU or nccl-tests.
    """
    nodes, each = list(cluster.nodes), ranks_per_node
    if operation in POINT_TO_POINT:
        # OSU's point-to-point programs accept exactly two ranks.
        a, b = (nodes[rank // ranks_per_node] for rank in plan.pair)
        nodes, each = ([a], 2) if a == b else ([a, b], 1)
    known = _known_options(path, cluster, nodes, each) if plan.convention == "osu" else None
    exits = cluster.run(
        [path, *program_options(plan, operation, world=len(nodes) * each, known=known)],
        on=nodes, ranks_per_node=each, timeout_s=timeout_s, bind=bind,
    )  # fmt: skip
    raise_for_failures(exits, plan.names[operation])
    text = exits[0].out.decode(errors="replace")
    table = NetTable(operation, plan.names[operation], plan.unit(operation), source=path)
    if plan.convention == "osu":
        table.rows = list(parse_osu(text)[0].rows)
    else:
        table.rows = list(parse_nccl(text).rows)
    return table, text


def _known_options(path: str, cluster: Cluster, nodes: list[Node], ranks_per_node: int) -> set[str] | None:
    """Letters of the options in the help of an OSU program; None if it prints no help. The versions differ: 5.3 has no
    -W, and no -m for two ranks.
    """
    exits = cluster.run([path, "-h"], on=nodes, ranks_per_node=ranks_per_node, timeout_s=_HELP_TIMEOUT_S)
    text = b"\n".join(part for each in exits for part in (each.out, each.err)).decode(errors="replace")
    return set(_OPTION.findall(text)) if "Usage:" in text else None


def program_options(plan: NetPlan, operation: str, *, world: int, known: set[str] | None = None) -> list[str]:
    """Arguments of an installed program for a plan.

    Args:
        known: Options of the program; None for those of the current version.

    Raises:
        Unsupported: The program has no option for GPU buffers or for the window, and the plan needs it.
    """
    sizes = plan.sizes(operation, world)
    if plan.convention == "nccl":
        flags: dict[str, Any] = {
            "-b": sizes[0], "-e": sizes[-1], "-f": 2, "-c": int(plan.validates), "-n": plan.iterations, "-w": plan.warm_up,
        }  # fmt: skip
        return [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]
    carries_data = operation != "barrier"
    # A smallest size of 0, that of latency, is OSU's default, and its -m does not accept it.
    span = f"{sizes[0]}:{sizes[-1]}" if sizes[0] else str(sizes[-1])
    window = plan.window if operation in ("bw", "bibw") else None
    flags = {
        "-i": plan.iterations, "-x": plan.warm_up, "-m": span if carries_data else None,
        "-c": "" if carries_data and plan.validates else None,
        "-f": "" if carries_data and operation not in POINT_TO_POINT else None,
        "-W": window, "-d": "cuda" if plan.device == "cuda" else None,
    }  # fmt: skip
    if known is not None:
        if flags["-d"] and "d" not in known:
            raise Unsupported(
                f"{plan.names[operation]}: built without CUDA, so it cannot be compared with --device cuda",
                hint="build OSU's programs with --enable-cuda",
            )
        if window not in (None, OSU_WINDOW) and "W" not in known:
            raise Unsupported(
                f"{plan.names[operation]}: has no option -W, so it cannot be compared with --window {window}",
                hint=f"install a current version of OSU's programs, or set --window {OSU_WINDOW}",
            )
        flags = {flag: value for flag, value in flags.items() if flag[1:] in known}
    found = [part for flag, value in flags.items() if value is not None for part in (flag, str(value)) if part]
    return [*found, "D", "D"] if "-d" in found and operation in POINT_TO_POINT else found
