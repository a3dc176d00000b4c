# SPDX-License-Identifier: Apache-2.0
"""Flags of all verbs that connect to nodes: launcher, nodes and deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import SECONDS
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cluster import Cluster

__all__ = ["json_flag", "opened", "reaching", "settings_of", "spelt"]


def reaching(default_s: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --launcher, --nodes, --on, --set and --timeout as keyword arguments with the same names (but `set` becomes
    `settings`).
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--timeout", type=SECONDS, default=default_s, show_default=True, metavar="TIME", help="Time limit of the whole command; the error names the nodes that did not respond by then."),
            click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Setting of the launcher, such as user=alice or hosts=rehearsal; repeatable."),
            click.option("--on", multiple=True, metavar="NODE", help="Use this node only; repeatable."),
            click.option("--nodes", metavar="N|HOST,HOST|@FILE", help="Number of nodes (local), or their names (ssh; @FILE has one per line). Slurm and MPI provide their own."),
            click.option("--launcher", default="local", show_default=True, metavar="NAME", help="Launcher that starts commands on nodes: local, ssh, slurm, mpi, pbs (experimental), or a plug-in's."),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


def json_flag(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")(command)


def settings_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE words into a mapping."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"`{pair}` is not NAME=VALUE", where="--set")
        found[name] = value
    return found


def opened(launcher: str, nodes: str | None, on: tuple[str, ...], settings: tuple[str, ...]) -> Cluster:
    """Open the cluster that the flags select."""
    from penstock.cluster import Cluster

    found = settings_of(settings)
    if nodes is not None:
        found["nodes"] = nodes
    return Cluster.open(launcher, found, only=on)


def spelt(argv: list[str]) -> str:
    """Quote a command line for a shell."""
    import shlex

    return shlex.join(argv)
