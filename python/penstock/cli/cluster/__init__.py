# SPDX-License-Identifier: Apache-2.0
"""`penstock cluster`: operations on a set of nodes behind one launcher. One module per subcommand, loaded when it is
called.
"""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Subcommands and their descriptions. A table, so that `penstock cluster --help` does not import any of them.
VERBS: dict[str, str] = {
    "nodes": "List the nodes with the hardware of each.",
    "run": "Run a command on all nodes, or on some.",
    "copy": "Copy a file or folder to the nodes, or from one.",
    "rehearse": "Create isolated hosts on this machine, to rehearse a cluster.",
}


@click.group("cluster", cls=LazyGroup, package=__name__, verbs=VERBS)
def command() -> None:
    """Run commands on a set of nodes through ssh, Slurm or MPI, or on this machine."""
