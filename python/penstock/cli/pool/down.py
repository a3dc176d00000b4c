# SPDX-License-Identifier: Apache-2.0
"""`penstock pool down`: a pool's end."""

from __future__ import annotations

import json

import click

from penstock.cli.pool.options import asked, known, named

__all__ = ["command"]


@click.command("down")
@named("2min")
@click.option("--keep-data", is_flag=True, help="Leave what the pool holds on the nodes' disks.")
@click.option(
    "--forget-lost", is_flag=True, help="Nodes that do not answer will not come back: forget what is on them."
)
def command(
    name: str,
    engine: str | None,
    disk: str | None,
    launcher: str | None,
    nodes: str | None,
    settings: tuple[str, ...],
    deadline: float,
    keep_data: bool,
    forget_lost: bool,
    as_json: bool,
) -> int:
    """End a pool: its processes, mounts and folders, also those that a killed `up` left. Safe twice.

    Exit code 3 says that a node did not answer; what is on it is ended by the same command when it does.
    """
    from penstock.cluster import pools

    record = asked(name, engine, disk, launcher, nodes, settings)
    if record is None:
        click.echo(
            json.dumps({"schema_version": 1, "name": name, "nodes": {}, "unreached": []})
            if as_json
            else f"pool {name}: none is known here"
        )
        return 0
    with known(record) as cluster:
        ended = pools.down(cluster, record, keep_data=keep_data, deadline_s=deadline)
    if ended.unreached and forget_lost:
        pools.forget(name)
    if as_json:
        click.echo(
            json.dumps({"schema_version": 1, "name": name, "nodes": ended.receipts, "unreached": ended.unreached})
        )
    else:
        for node, receipt in ended.receipts.items():
            counts = (
                ", ".join(f"{len(found)} {what}" for what, found in receipt.items() if found) or "nothing was there"
            )
            click.echo(f"{node}  {counts}")
    for node in ended.unreached:
        click.echo(
            f"error[unreachable]: {node}: it did not answer, and what the pool has there is there still", err=True
        )
    if ended.unreached and not forget_lost:
        click.echo("  hint: run the same command when it answers again, or with --forget-lost", err=True)
        return 3
    return 0
