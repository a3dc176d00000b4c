# SPDX-License-Identifier: Apache-2.0
"""Containers around the ranks of a command line: parses `RUNTIME:IMAGE`, and builds the prefix for each of two ways.

`host-mpirun`: the launcher runs on the host, and starts every rank in a separate container. `inside`: mpirun itself
runs in the container, and starts its daemons on other nodes by ssh, wrapped in the same container.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import plugins
from penstock.errors import ConfigError
from penstock.protocols import Container, ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import RankPrefix

__all__ = ["GROUP", "WAYS", "command_line_prefix", "container_prefix", "parse_container"]

GROUP = "penstock.containers"
WAYS = ("host-mpirun", "inside")


def parse_container(text: str) -> tuple[str, str]:
    """Split `RUNTIME:IMAGE`, such as `apptainer:train.sif`, into runtime and image.

    Raises:
        ConfigError: The text has another form, or the runtime is not installed as a plug-in.
    """
    runtime, colon, image = text.partition(":")
    known = plugins.names(GROUP)
    if not colon or not image or runtime not in known:
        raise ConfigError(
            f"container: `{text}` is not RUNTIME:IMAGE", hint=f"use one of the runtimes {', '.join(known)}"
        )
    return runtime, image


def container_prefix(runtime: str, spec: ContainerSpec, *, way: str = "host-mpirun") -> RankPrefix:
    """Return the prefix that runs every rank, or with the way `inside` also mpirun, in a container.

    Raises:
        ConfigError: The runtime or the way is unknown, a bind is invalid, or the runtime cannot run mpirun inside.
        Unsupported: The runtime does not support an option of the spec.
    """
    if way not in WAYS:
        raise ConfigError(f"container: way `{way}` is not one of {', '.join(WAYS)}")
    made: Container = plugins.load(GROUP, runtime, Container, lambda factory: factory())
    prefix = made.rank_prefix(spec)
    if way == "host-mpirun":
        return prefix
    if not prefix.argv or prefix.cleanup_argv:
        raise ConfigError(
            f"container: {runtime} does not support mpirun inside the container",
            hint="use apptainer, singularity or charliecloud, or the way host-mpirun",
        )
    return replace(prefix, is_outermost=True)


def command_line_prefix(
    container: str, *, way: str, binds: Sequence[str], env: Sequence[str], gpus: bool
) -> RankPrefix:
    """Return the prefix for the flags of a command line: `--container`, `--container-bind` and `--container-gpus`.

    Args:
        env: Names of the variables that ranks get in addition to the launcher's variables.
    """
    runtime, image = parse_container(container)
    # Containers of a daemon are removed by name, so names of two runs must differ.
    label = f"penstock-{secrets.token_hex(4)}"
    return container_prefix(
        runtime, ContainerSpec(image, tuple(binds), tuple(env), has_gpus=gpus, label=label), way=way
    )
