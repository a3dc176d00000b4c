# SPDX-License-Identifier: Apache-2.0
"""Flags of `pool status`, `pool down` and `pool audit`. Finds a pool by its name in this machine's records, or builds a record from the
flags.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.cluster.options import settings_of
from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.cluster import Cluster
    from penstock.pool.lifecycle import PoolRecord

__all__ = ["known", "named", "request"]


def named(default_s: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --name and --timeout, and the flags that describe a pool without a record on this machine."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout."),
            click.option("--timeout", type=SECONDS, default=default_s, show_default=True, metavar="TIME", help="Time limit of the whole command."),
            click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Setting of the launcher; repeatable."),
            click.option("--nodes", metavar="N|HOST,HOST|@FILE", help="Nodes of a pool that this machine has no record of."),
            click.option("--launcher", metavar="NAME", help="Launcher that reaches those nodes. [local]"),
            click.option("--disk", metavar="DIR", help="Folder on each node that the pool was started with."),
            click.option("--engine", metavar="NAME", help="Engine that the pool was started with. [local]"),
            click.option("--name", default="pool", show_default=True, metavar="NAME", help="Name of the pool."),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


def request(
    name: str, engine: str | None, disk: str | None, launcher: str | None, nodes: str | None, settings: tuple[str, ...]
) -> PoolRecord | None:
    """Return the record of the pool that the flags select. None if this machine has no record of the pool, and the
    flags do not describe the pool.

    Raises:
        ConfigError: The name is invalid, or the record belongs to a pool with another disk or engine.
    """
    from penstock.errors import ConfigError
    from penstock.pool import lifecycle
    from penstock.protocols import PoolSpec

    found = lifecycle.find(name)
    if found is not None:
        for flag, requested_record, kept in (("--disk", disk, found.spec.disk), ("--engine", engine, found.engine)):
            if requested_record is not None and requested_record != kept:
                raise ConfigError(
                    f"{flag}: the record of pool `{name}` has {kept}, not {requested_record}",
                    where=flag,
                    hint=f"omit {flag} to use the recorded pool",
                )
    if found is not None or disk is None:
        return found
    given: dict[str, Any] = settings_of(settings) | ({} if nodes is None else {"nodes": nodes})
    return lifecycle.PoolRecord(
        state="unknown", engine=engine or "local", engine_settings={}, spec=PoolSpec(name, disk), lease="",
        launcher=launcher or "local", launcher_settings=given,
    )  # fmt: skip


@contextmanager
def known(record: PoolRecord) -> Iterator[Cluster]:
    """Open the nodes of a record through the recorded launcher."""
    from penstock.cluster import Cluster

    with Cluster.open(record.launcher, record.launcher_settings, only=record.nodes) as cluster:
        yield cluster
