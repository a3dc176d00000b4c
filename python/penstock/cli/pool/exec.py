# SPDX-License-Identifier: Apache-2.0
"""`penstock pool exec` (hidden): object operations on a pool. `penstock run` starts it on a node of the pool."""

from __future__ import annotations

import sys

import click

__all__ = ["command"]


@click.command("exec", hidden=True)
@click.argument("engine")
@click.argument("node")
@click.argument("requests")
def command(engine: str, node: str, requests: str) -> int:
    """Run REQUESTS (a JSON list) on the objects of the pool on stdin, as seen from NODE; print the answers."""
    from penstock.pool.exec import execute_all

    click.echo(execute_all(engine, node, requests, sys.stdin.buffer.read()))
    return 0
