# SPDX-License-Identifier: Apache-2.0
"""`penstock pool status`: state of each node of a pool."""

from __future__ import annotations

import json

import click

from penstock.cli.pool.options import known, named, request

__all__ = ["command"]


@click.command("status")
@named("30s")
def command(
    name: str,
    engine: str | None,
    disk: str | None,
    launcher: str | None,
    nodes: str | None,
    settings: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Show the state of each node: up, degraded (it responds, but does not serve data) or lost. Exit code 1: a node is
    not up.
    """
    from penstock.errors import NotFound
    from penstock.pool import lifecycle

    record = request(name, engine, disk, launcher, nodes, settings)
    if record is None:
        raise NotFound(
            f"no pool `{name}` is recorded on this machine",
            hint=f"use one of the recorded pools: {', '.join(lifecycle.names()) or 'none'}",
        )
    with known(record) as cluster:
        states = lifecycle.status(cluster, record, timeout_s=timeout)
    url = record.pool.url if record.pool else None
    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema_version": 1,
                    "name": name,
                    "engine": record.engine,
                    "state": record.state,
                    "url": url,
                    "nodes": states,
                }
            )
        )
    else:
        click.echo(f"pool {name} ({record.engine}), {record.state}: {url or 'not ready'}")
        for node, state in states.items():
            click.echo(f"  {node}  {state}")
    return 0 if states and set(states.values()) == {"up"} else 1
