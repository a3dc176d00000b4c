# SPDX-License-Identifier: Apache-2.0
"""`penstock pool up`: start an engine on the nodes. If the engine is not ready by the deadline, the start is rolled
back.
"""

from __future__ import annotations

import json
import time

import click

from penstock.cli.cluster.options import json_flag, opened, reaching, settings_of
from penstock.cli.parameters import BYTES

__all__ = ["command"]


@click.command("up")
@click.option(
    "--engine",
    default="local",
    show_default=True,
    metavar="NAME",
    help="Engine: local, hdfs, moosefs, mount, fuse, beeond (experimental), or an engine from a plug-in.",
)
@click.option(
    "--disk",
    required=True,
    metavar="DIR",
    help="Folder that the pool may use on each node; {node} in it is the node's name.",
)
@click.option(
    "--name",
    default="pool",
    show_default=True,
    metavar="NAME",
    help="Name of the pool; pools of different names can share nodes.",
)
@click.option(
    "--copies",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of replicas of each object.",
)
@click.option(
    "--min-free", type=BYTES, default="0", metavar="SIZE", help="Minimum free space on the disk of each node."
)
@click.option(
    "--engine-set", "engine_settings", multiple=True, metavar="NAME=VALUE", help="Setting of the engine; repeatable."
)
@reaching("3min")
@json_flag
def command(
    engine: str,
    disk: str,
    name: str,
    copies: int,
    min_free: int,
    engine_settings: tuple[str, ...],
    launcher: str,
    nodes: str | None,
    on: tuple[str, ...],
    settings: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Start a pool. If it is not ready within --timeout, it is removed completely. If it is already running, nothing is
    done.

    To copy objects into it, run `penstock stage SRC URL` on the nodes, with the URL that this command prints.
    """
    from penstock.pool import lifecycle
    from penstock.protocols import PoolSpec
    from penstock.units import format_seconds

    given = settings_of(settings) | ({} if nodes is None else {"nodes": nodes})
    spec = PoolSpec(name, disk, copies, min_free)
    began = time.monotonic()
    with opened(launcher, nodes, on, settings) as cluster:
        pool, was_up = lifecycle.up(
            cluster, spec, engine, settings_of(engine_settings), timeout_s=timeout, launcher=launcher, launcher_settings=given
        )  # fmt: skip
    took = time.monotonic() - began
    if as_json:
        rows = [{"node": node.name, "address": node.address} for node in pool.nodes]
        click.echo(
            json.dumps(
                {
                    "schema_version": 1,
                    "name": name,
                    "engine": engine,
                    "url": pool.url,
                    "nodes": rows,
                    "was_up": was_up,
                    "seconds": took,
                }
            )
        )
    else:
        how = "was up already" if was_up else f"ready in {format_seconds(took)}"
        click.echo(f"pool {name} ({engine}, {len(pool.nodes)} nodes) {how}: {pool.url}")
    return 0
