# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor`: list the properties of each node, and what each engine lacks there."""

from __future__ import annotations

import json

import click

from penstock.cli.cluster.options import json_flag, opened, reaching
from penstock.errors import redact

__all__ = ["command"]


@click.command("doctor")
@click.option(
    "--disk",
    default="/var/lib/penstock",
    show_default=True,
    metavar="DIR",
    help="Folder that a pool would use on each node.",
)
@click.option(
    "--copies",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of replicas of each object in the pool.",
)
@reaching("60s")
@json_flag
def command(
    disk: str,
    copies: int,
    launcher: str,
    nodes: str | None,
    on: tuple[str, ...],
    settings: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """List what each node lacks for each engine. Without --nodes: this machine.

    Exit code 1: only the `local` engine can run. 3: a node did not respond.
    """
    from penstock.cli.cluster.run import print_failures
    from penstock.cluster.facts import gather_facts
    from penstock.pool import engine_plugins, lifecycle
    from penstock.protocols import PoolSpec

    spec = PoolSpec("doctor", disk, copies)
    with opened(launcher, nodes, on, settings) as cluster:
        exits, facts = gather_facts(cluster, timeout_s=timeout)
        lacks = {
            name: [
                redact(lack)
                for lack in (*engine_plugins.load(name, {}).probe(spec, facts), *lifecycle.clock_skew_problems(facts))
            ]
            for name in engine_plugins.names()
        }
    if as_json:
        click.echo(json.dumps({"schema_version": 2, "nodes": facts, "missing": lacks}))
    else:
        for node, found in facts.items():
            java, fuse = found["java"] or "no Java", "FUSE" if found["fuse"] else "no FUSE"
            click.echo(f"{node}  {found['cores']} cores, {java}, {fuse}, Python {found['python']}")
        for name, missing in lacks.items():
            click.echo(f"{name}: {'nothing is missing' if not missing else f'{len(missing)} things are missing'}")
            for text in missing:
                click.echo(f"  {text}")
    bad = print_failures(exits)
    shared = [missing for name, missing in lacks.items() if name != "local"]
    return bad or (1 if all(shared) else 0)
