# SPDX-License-Identifier: Apache-2.0
"""`penstock pool orders`, which no help shows: what `penstock run` starts on a node to reach its pool's objects from there."""

from __future__ import annotations

import sys

import click

__all__ = ["command"]


@click.command("orders", hidden=True)
@click.argument("engine")
@click.argument("node")
@click.argument("orders")
def command(engine: str, node: str, orders: str) -> int:
    """Do ORDERS on the objects of the pool on stdin, seen from NODE; stdout has the answers."""
    from penstock.pool.rpc import answers

    click.echo(answers(engine, node, orders, sys.stdin.buffer.read()))
    return 0
