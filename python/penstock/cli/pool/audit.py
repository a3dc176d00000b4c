# SPDX-License-Identifier: Apache-2.0
"""`penstock pool audit`: list everything that a pool has left on its nodes."""

from __future__ import annotations

import json

import click

from penstock.cli.pool.options import known, named, request

__all__ = ["command"]


@click.command("audit")
@named("60s")
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
    """Search for processes, mounts, folders, ports and keys of a pool. Exit code 1: something was found.

    After `pool down`, this machine has no record of the pool; give its nodes and disk with --nodes and --disk.
    """
    from penstock.errors import ConfigError
    from penstock.pool import lifecycle

    record = request(name, engine, disk, launcher, nodes, settings)
    if record is None:
        raise ConfigError(
            f"no pool `{name}` is recorded on this machine",
            hint="give the --nodes, --disk and --launcher of `pool up` to search for leftovers",
        )
    with known(record) as cluster:
        ended = lifecycle.audit(cluster, record, timeout_s=timeout)
    left = {node: found["left"] for node, found in ended.receipts.items()}
    if as_json:
        click.echo(json.dumps({"schema_version": 2, "name": name, "leftovers": left, "unreachable": ended.unreached}))
    else:
        for node, texts in left.items():
            for text in texts:
                click.echo(f"{node}  {text}")
        if not any(left.values()):
            click.echo(f"pool {name}: nothing is left on {len(left)} nodes")
    for node in ended.unreached:
        click.echo(f"error[unreachable]: {node}: did not respond", err=True)
    if ended.unreached:
        return 3
    return 1 if any(left.values()) else 0
