# SPDX-License-Identifier: Apache-2.0
"""`penstock cluster copy`: copy a file or folder to all nodes, or from one node."""

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.cli.cluster.options import json_flag, opened, reaching
from penstock.cli.cluster.run import as_row, print_failures

__all__ = ["command"]


@click.command("copy")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@reaching("10min")
@click.option("--leader", is_flag=True, help="Copy to or from the first node only.")
@click.option(
    "--back", is_flag=True, help="Copy from a node to this machine: SRC is on the node. Needs --leader or one --on."
)
@json_flag
def command(
    source: str,
    destination: str,
    launcher: str,
    nodes: str | None,
    on: tuple[str, ...],
    settings: tuple[str, ...],
    timeout: float,
    leader: bool,
    back: bool,
    as_json: bool,
) -> int:
    """Copy a file or folder to the same path on all nodes, atomically.

    A folder is merged into an existing one; nothing is deleted. --back copies from a node.
    """
    from penstock.errors import ConfigError

    with opened(launcher, nodes, on, settings) as cluster:
        chosen = [cluster.leader] if leader else list(cluster.nodes)
        if back and len(chosen) != 1:
            raise ConfigError(
                f"--back: {len(chosen)} nodes would write the same path", hint="choose one with --on, or use --leader"
            )
        if back:
            exits = [cluster.copy_from(chosen[0], source, Path(destination), timeout_s=timeout)]
        else:
            exits = cluster.copy_to_all(Path(source), destination, on=chosen, timeout_s=timeout)
    if as_json:
        click.echo(json.dumps({"schema_version": 2, "exits": [as_row(each) for each in exits]}))
    return print_failures(exits)
