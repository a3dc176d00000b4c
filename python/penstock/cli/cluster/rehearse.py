# SPDX-License-Identifier: Apache-2.0
"""`penstock cluster rehearse`: create emulated hosts on this machine, which run until they are stopped."""

from __future__ import annotations

import json

import click

from penstock.cli.parameters import RATE, SECONDS

__all__ = ["command"]


@click.command("rehearse")
@click.argument("name", metavar="NAME")
@click.option("--nodes", type=click.IntRange(1, 64), default=3, show_default=True, metavar="N")
@click.option(
    "--rate",
    type=RATE,
    metavar="RATE",
    help="Bandwidth of each host's link in each direction, such as 1Gbit/s. [unlimited]",
)
@click.option(
    "--latency",
    type=SECONDS,
    default=0.0,
    metavar="DURATION",
    help="Longest delay of a packet between two hosts, such as 100us; a round trip takes one or two such delays. [0]",
)
@click.option("--end", is_flag=True, help="Stop the hosts of this name, and all processes in them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")
def command(name: str, nodes: int, rate: float | None, latency: float, end: bool, as_json: bool) -> int:
    """Create hosts h1, h2, .. on this machine, each with its own network, name, processes and disk.

    The hosts exist until --end. `--launcher local --set hosts=NAME` uses them. Needs root.
    """
    from penstock.launchers.netns_hosts import Hosts

    if end:
        Hosts.attach(name).down()
        click.echo(json.dumps({"schema_version": 1, "name": name, "nodes": []}) if as_json else f"{name}: ended")
        return 0
    hosts = Hosts.up(name, nodes, rate_bytes_per_s=rate, latency_s=latency, stays=True)
    rows = [{"node": node.name, "address": node.address} for node in hosts.nodes()]
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "name": name, "disk": hosts.own_disk, "nodes": rows}))
    else:
        click.echo("\n".join(f"{row['node']}  {row['address']}" for row in rows))
        click.echo(
            f"each sees its own disk at {hosts.own_disk}; --launcher local --set hosts={name} reaches them", err=True
        )
    return 0
