# SPDX-License-Identifier: Apache-2.0
"""Flags of verbs that start ranks: containers, the ways to start them, and the binding of ranks to CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import Several

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BIND_HELP", "in_containers"]

BIND_HELP = (
    "CPUs of each rank: none, show (the launcher's default), core, numa, near-gpu, near-nic[:DEVICE] or cpus:LIST/LIST"
    " (one list per local rank)."
)


def in_containers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --container, --container-bind, --container-gpus, --container-arg, --ways and --bind."""
    from penstock.cluster.containers import WAYS

    for option in (
        click.option("--bind", "binds", multiple=True, metavar="BINDING", help=f"{BIND_HELP} Repeat it to compare bindings."),
        click.option("--ways", type=Several(click.Choice(WAYS), "ways"), default="host-mpirun", show_default=True, metavar="WAY,WAY", help="host-mpirun: the launcher starts each rank in a container. inside: mpirun itself runs in the container, and starts daemons on other nodes by ssh, in the container, too."),
        click.option("--container-arg", "container_args", multiple=True, metavar="ARG", help="Further argument of the runtime, such as --container-arg=--security-opt=label=disable; repeatable."),
        click.option("--container-gpus", is_flag=True, help="Make the nodes' GPUs visible in the container."),
        click.option("--container-bind", "container_binds", multiple=True, metavar="/SRC:/DST", help="Folder that the container sees; repeatable."),
        click.option("--container", metavar="RUNTIME:IMAGE", help="Also run in this container, and compare with the native runs. Runtimes: charliecloud; experimental: apptainer, singularity, docker, podman, pyxis."),
    ):  # fmt: skip
        command = option(command)
    return command
