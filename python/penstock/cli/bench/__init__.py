# SPDX-License-Identifier: Apache-2.0
"""`penstock bench`: measure a path and find its limit. One module per sub-verb, loaded when it is called."""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Sub-verbs and their descriptions. A table, so that `penstock bench --help` does not import any of them.
VERBS = {
    "storage": "Measure disks, pools and anything else with a path.",
    "object": "Measure an object store: its requests, and what it refuses.",
    "disk-trace": "Run a command, and say which limit of its disk it hits.",
    "accelerator": "Feed emulated accelerators, and say how busy the storage keeps them.",
    "ab": "Say which of two commands is better, or that none is shown to be.",
    "classify": "Name the limit of each point of a sweep, measured by any tool.",
    "feed": "Read a dataset with our loader and with others, side by side.",
}


@click.group("bench", cls=LazyGroup, package=__name__, verbs=VERBS)
def command() -> None:
    """Measure a path; name its limit and what to change."""
