# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor`: check the connection to a store, or list what each node lacks for each engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster.options import json_flag, opened, reaching
from penstock.errors import redact

if TYPE_CHECKING:
    from penstock.probe.doctor import Check

__all__ = ["command"]


@click.command("doctor")
@click.argument("url", metavar="[URL]", required=False)
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
    url: str | None,
    disk: str,
    copies: int,
    launcher: str,
    nodes: str | None,
    on: tuple[str, ...],
    settings: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """With URL: check the connection to the store. Without: list what each node lacks for each engine.

    \b
    penstock doctor s3://bucket/train
    penstock doctor --nodes node1,node2

    With URL (s3, az, gs, http, https, or a path), print one line per property: endpoint, proxy, DNS, TCP, TLS, clock,
    region, credentials (their source and expiry, never their value), permission to list and read, and packet size. Each
    line is ok, warn, fail or skip, and states what to do next. The check only reads, and ends within 2 minutes. Exit
    code 3: a check failed.

    Without URL, the nodes are those of --nodes, or this machine. Exit code 1: only the `local` engine can run. 3: a
    node did not respond.
    """  # noqa: D301 - click reads the \b, and not its spelling
    if url is not None:
        return _of_url(url, as_json=as_json)
    from penstock.cli.cluster.run import print_failures
    from penstock.cluster.facts import gather_facts
    from penstock.pool import engine_registry, lifecycle
    from penstock.protocols import PoolSpec

    spec = PoolSpec("doctor", disk, copies)
    with opened(launcher, nodes, on, settings) as cluster:
        exits, facts = gather_facts(cluster, timeout_s=timeout)
        lacks = {
            name: [
                redact(lack)
                for lack in (*engine_registry.load(name, {}).probe(spec, facts), *lifecycle.clock_skew_problems(facts))
            ]
            for name in engine_registry.names()
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


def _of_url(url: str, *, as_json: bool) -> int:
    from penstock import env
    from penstock.probe.doctor import Doctor

    checks = Doctor(url, env.read(), on_check=lambda check: None if as_json else _echo(check)).run()
    if as_json:
        import msgspec

        document = {"schema_version": 1, "url": redact(url), "checks": msgspec.to_builtins(checks)}
        click.echo(json.dumps(document))
    return 3 if any(check.state == "fail" for check in checks) else 0


def _echo(check: Check) -> None:
    click.echo(f"{check.state:<5} {check.name:<11} {check.text}")
    if check.hint and check.state != "ok":
        click.echo(f"      {'':<11} hint: {check.hint}")
