# SPDX-License-Identifier: Apache-2.0
"""`penstock pool down`: stop a pool and remove it from its nodes."""

from __future__ import annotations

import json

import click

from penstock.cli.pool.options import known, named, request

__all__ = ["command"]


@click.command("down")
@named("2min")
@click.option("--keep-data", is_flag=True, help="Keep the pool's data on the nodes' disks.")
@click.option(
    "--forget-lost",
    is_flag=True,
    help="Remove the nodes that do not respond from the record; their disks are not cleaned.",
)
def command(
    name: str,
    engine: str | None,
    disk: str | None,
    launcher: str | None,
    nodes: str | None,
    settings: tuple[str, ...],
    timeout: float,
    keep_data: bool,
    forget_lost: bool,
    as_json: bool,
) -> int:
    """Stop a pool: its processes, mounts and folders, including those that a killed `up` left. Running it twice is
    safe.

    Removes only what has a lease of this pool. Exit code 3: a node did not respond (run the same command again when it
    does), or the folder on a node does not belong to this pool.
    """
    from penstock.pool import lifecycle

    record = request(name, engine, disk, launcher, nodes, settings)
    if record is None:
        click.echo(
            json.dumps({"schema_version": 2, "name": name, "nodes": {}, "unreachable": [], "refused": {}})
            if as_json
            else f"pool {name}: it is not recorded on this machine"
        )
        return 0
    with known(record) as cluster:
        ended = lifecycle.down(cluster, record, keep_data=keep_data, timeout_s=timeout)
    if ended.unreached and not ended.refused and forget_lost:
        lifecycle.forget(name)
    if as_json:
        found = {"nodes": ended.receipts, "unreachable": ended.unreached, "refused": ended.refused}
        click.echo(json.dumps({"schema_version": 2, "name": name, **found}))
    else:
        for node, receipt in ended.receipts.items():
            counts = ", ".join(f"{len(found)} {what}" for what, found in receipt.items() if found) or "nothing was left"
            click.echo(f"{node}  {counts}")
    for node in ended.unreached:
        click.echo(f"error[unreachable]: {node}: did not respond, so the pool's files are still there", err=True)
    for text in ended.refused.values():
        click.echo(f"error[precondition]: {text}", err=True)
    if ended.refused:
        click.echo(f"  hint: run penstock pool audit --name {name} to list the remaining files and processes", err=True)
        return 3
    if ended.unreached and not forget_lost:
        click.echo("  hint: repeat the command when the node responds again, or with --forget-lost", err=True)
        return 3
    return 0
