# SPDX-License-Identifier: Apache-2.0
"""`penstock study`: repeat published experiments. One module per subcommand, loaded when it is called."""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Subcommands and their descriptions. A table, so that `penstock study --help` does not import any of them.
VERBS = {
    "list": "List the studies, their parts and sizes.",
    "run": "Run a study, or parts of it, and write its report.",
    "report": "Write the report of a study again from its results.",
}


@click.group("study", cls=LazyGroup, package=__name__, verbs=VERBS)
def command() -> None:
    """Repeat published experiments, and compare each figure with the published one."""
