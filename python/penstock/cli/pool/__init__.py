# SPDX-License-Identifier: Apache-2.0
"""`penstock pool`: a store that runs on the job's own nodes. One module per subcommand, loaded when it is called."""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Subcommands and their descriptions. A table, so that `penstock pool --help` does not import any of them.
VERBS: dict[str, str] = {
    "up": "Start a pool on the nodes; if it is not ready in time, remove it.",
    "status": "Show the state of each node of a pool.",
    "down": "Stop a pool, and remove everything that it created on the nodes.",
    "audit": "Search the nodes for leftovers of a pool.",
}


@click.group("pool", cls=LazyGroup, package=__name__, verbs=VERBS, unlisted=("exec",))
def command() -> None:
    """Run a file system on the job's own nodes for the duration of the job."""
