# SPDX-License-Identifier: Apache-2.0
"""Flags of benchmarks that can run on many hosts, and the function that runs a benchmark on this machine or on the
nodes of a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.bench.output import deliver
from penstock.cli.cluster.options import opened, reaching
from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.distributed.config import Objects, Storage
    from penstock.bench.phases import Hooks
    from penstock.bench.rows import Row

__all__ = ["is_many", "measured", "on_hosts"]


def on_hosts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --launcher, --nodes, --on, --set, --timeout, --max-skew and --node-python."""
    for option in (
        click.option("--node-python", default="", metavar="PATH", help="Python interpreter with Penstock on the nodes.  [default: this one's path]"),
        click.option("--max-skew", type=SECONDS, default="1s", show_default=True, metavar="TIME", help="Maximum clock skew between hosts; a smaller skew is corrected."),
        reaching("2h"),
    ):  # fmt: skip
        command = option(command)
    return command


def is_many(given: dict[str, Any]) -> bool:
    """Whether the flags select a cluster."""
    return given["nodes"] is not None or bool(given["on"] or given["settings"]) or given["launcher"] != "local"


def measured(
    work: Storage | Objects, here: Callable[[Hooks], list[Row]], spec: dict[str, Any], given: dict[str, Any]
) -> None:
    """Run a benchmark on this machine, or on all nodes of the cluster that the flags select. Output its rows.

    Args:
        work: The benchmark that the nodes run.
        here: Function that runs the benchmark on this machine.
        spec: Settings of the benchmark, in the form that is stored with the results.
    """
    from penstock.bench.phases import Hooks
    from penstock.cli.bench.table import Table

    table = Table(silent=given["as_json"])
    hooks = Hooks(on_row=table.row, on_progress=table.on_progress)
    if not is_many(given):
        deliver(here(hooks), spec, table, given)
        return
    from penstock.bench.distributed import Fleet

    with opened(given["launcher"], given["nodes"], given["on"], given["settings"]) as cluster:
        fleet = Fleet(cluster, python=given["node_python"], max_skew_s=given["max_skew"], timeout_s=given["timeout"])
        rows, machine = fleet.run(work, hooks)
        table.hosts(len(cluster.nodes), fleet.clock_skew_s, rows)
        deliver(rows, {**spec, "hosts": len(cluster.nodes)}, table, given, machine=machine)
