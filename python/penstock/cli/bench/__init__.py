# SPDX-License-Identifier: Apache-2.0
"""`penstock bench`: measure a path and find its limit. One module per subcommand, loaded when it is called."""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Subcommands and their descriptions. A table, so that `penstock bench --help` does not import any of them.
VERBS = {
    "storage": "Measure a disk, a pool or any other mounted file system.",
    "object": "Measure the rate, latency and throttling of an object store.",
    "net": "Measure latency, bandwidth and collectives between ranks, and find slow links.",
    "disk-trace": "Run a command, and report which limit of its disk it reaches.",
    "accelerator": "Feed emulated accelerators, and report their utilisation.",
    "ab": "Compare two commands, and report which is better or that no difference was found.",
    "classify": "Report the limit of each point of a sweep that any tool measured.",
    "app": "Measure how a program scales over ranks and nodes, natively and in a container.",
    "feed": "Compare Penstock's loader with other loaders on one dataset.",
}


@click.group("bench", cls=LazyGroup, package=__name__, verbs=VERBS)
def command() -> None:
    """Measure a storage path, and report its limit and what to change."""
