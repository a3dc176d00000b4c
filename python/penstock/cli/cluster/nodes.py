# SPDX-License-Identifier: Apache-2.0
"""`penstock cluster nodes`: list the nodes and their hardware."""

from __future__ import annotations

import json

import click

from penstock.cli.cluster.options import json_flag, opened, reaching
from penstock.cli.cluster.run import print_failures

__all__ = ["command"]


@click.command("nodes")
@reaching("60s")
@json_flag
def command(
    launcher: str, nodes: str | None, on: tuple[str, ...], settings: tuple[str, ...], timeout: float, as_json: bool
) -> int:
    """List the nodes with their cores, memory, GPUs and links, networks and disks.

    Exit code 3: a node did not respond.
    """
    from penstock.cluster.facts import gather_facts
    from penstock.units import format_bytes

    with opened(launcher, nodes, on, settings) as cluster:
        exits, facts = gather_facts(cluster, timeout_s=timeout)
        rows = [{"node": node.name, "address": node.address, "facts": facts.get(node.name)} for node in cluster.nodes]
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "nodes": rows}))
        return print_failures(exits)
    for node in rows:
        found = facts.get(str(node["node"]))
        if found is None:
            click.echo(f"{node['node']}  {node['address']}  did not respond")
            continue
        gpus = f", {len(found['gpus'])} x {found['gpus'][0]}" if found["gpus"] else ""
        click.echo(
            f"{node['node']}  {node['address']}  {found['cores']} cores, {format_bytes(found['memory_bytes'])}{gpus}; "
            f"{found['cpu']}; NICs {', '.join(found['nics']) or 'none'}"
        )
        for near in found["numa"]:
            devices = ", ".join([*near["gpus"], *near["nics"], *near["disks"]])
            apart = " ".join(map(str, near["distances"]))
            click.echo(
                f"  NUMA {near['node']}: cores {near['cores']}, {format_bytes(near['memory_bytes'])}, distances {apart}"
                f"{f'; {devices}' if devices else ''}"
            )
        if found["topology"]:
            click.echo("\n".join(f"  {line}" for line in found["topology"].splitlines() if line.strip()))
        for disk in found["disks"]:
            click.echo(
                f"  {disk['path']}  {disk['kind']}, {format_bytes(disk['free_bytes'])} free of {format_bytes(disk['size_bytes'])}"
            )
    return print_failures(exits)
