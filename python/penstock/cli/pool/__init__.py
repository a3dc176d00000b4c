# SPDX-License-Identifier: Apache-2.0
"""`penstock pool`: a store over the job's own nodes. One file per sub-verb, loaded when it is called."""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Sub-verb -> what it is for. Kept here so that `penstock pool --help` imports none of them.
VERBS: dict[str, str] = {
    "up": "Bring a pool up on the nodes: ready by the deadline, or taken back.",
    "status": "Say how each node of a pool is.",
    "down": "End a pool, with nothing left on the nodes.",
    "audit": "Look on the nodes for what a pool has left.",
}


@click.group("pool", cls=LazyGroup, package=__name__, verbs=VERBS, unlisted=("exec",))
def command() -> None:
    """Bring an existing file system up on the job's own nodes, for the length of the job."""
