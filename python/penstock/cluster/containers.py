# SPDX-License-Identifier: Apache-2.0
"""Containers around the ranks of a command line: parses `RUNTIME:IMAGE`, and builds the prefix for each of two ways.

`host-mpirun`: the launcher runs on the host, and starts every rank in a separate container. `inside`: mpirun itself
runs in the container, and starts its daemons on other nodes by ssh, wrapped in the same container.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from penstock import env as environment
from penstock import plugins
from penstock.errors import ConfigError, NotFound
from penstock.protocols import Container, ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import RankPrefix

__all__ = [
    "GROUP",
    "NO_DIRECT_COPIES",
    "WAYS",
    "check_container",
    "command_line_prefix",
    "container_prefix",
    "folder_in_container",
    "make_mount_points",
    "parse_container",
    "separates_ranks",
]

GROUP = "penstock.containers"
WAYS = ("host-mpirun", "inside")
# Open MPI copies large messages directly between the memories of two processes (CMA). Linux refuses this between two
# user namespaces; Open MPI 4.1.4 then waits forever. The first variable is for Open MPI up to version 4, the second for
# version 5 and later, where the framework smsc makes these copies. Each version ignores the other one's variable.
NO_DIRECT_COPIES = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"}
# Program of each runtime, and the package that contains it.
_PROGRAMS = {
    "apptainer": ("apptainer", "Apptainer (the package apptainer of Fedora, EPEL and apptainer.org)"),
    "singularity": ("singularity", "SingularityCE (the package singularity-ce of sylabs.io)"),
    "docker": ("docker", "Docker (Debian's package docker.io)"),
    "podman": ("podman", "Podman (Debian's package podman)"),
    "charliecloud": ("ch-run", "Charliecloud (Debian's package charliecloud-runtime)"),
}
# Folders of the host that ch-run mounts in every container.
_CH_RUN_MOUNTS = ("/dev", "/proc", "/sys")
_TMP = "/tmp"  # noqa: S108 - where ch-run mounts the host's TMPDIR


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
    container: str,
    *,
    way: str,
    binds: Sequence[str],
    env: Sequence[str],
    gpus: bool,
    cwd: str | None = None,
    args: Sequence[str] = (),
) -> RankPrefix:
    """Return the prefix for the flags of a command line: `--container`, `--container-bind`, `--container-gpus` and
    `--container-arg`.

    Args:
        env: Names of the variables that ranks get in addition to the launcher's variables.
        cwd: Working folder in the container.
    """
    runtime, image = parse_container(container)
    # Containers of a daemon are removed by name, so names of two runs must differ.
    label = f"penstock-{secrets.token_hex(4)}"
    return container_prefix(
        runtime,
        ContainerSpec(image, tuple(binds), tuple(env), has_gpus=gpus, cwd=cwd, args=tuple(args), label=label),
        way=way,
    )


def separates_ranks(container: str | None, way: str) -> bool:
    """Whether each rank of a node runs in a user namespace of its own. Pyxis starts one container per node."""
    return container is not None and way == "host-mpirun" and parse_container(container)[0] != "pyxis"


def folder_in_container(
    container: str, binds: Sequence[str], folder: str, *, creates_mount_point: bool
) -> tuple[tuple[str, ...], str] | None:
    """Return the binds that make a folder of this machine visible in the container, and its path there.

    Args:
        binds: The container's other binds.
        creates_mount_point: Whether `make_mount_points` may create the folder in an image folder.
    Returns:
        No bind if the container already sees the folder; None if it cannot see it.
    """
    runtime, image = parse_container(container)
    path = PurePosixPath(folder)
    mounts = [(source, target.split(":")[0]) for source, _, target in (bind.partition(":") for bind in binds)]
    for source, target in reversed(mounts):
        if path.is_relative_to(source):
            return (), str(PurePosixPath(target) / path.relative_to(source))
    if any(path.is_relative_to(target) for _, target in mounts):
        return None
    if runtime == "charliecloud":
        tmp = os.path.realpath(environment.read().get("TMPDIR") or _TMP)
        if path.is_relative_to(tmp):
            return (), str(PurePosixPath(_TMP) / path.relative_to(tmp))
        if any(path.is_relative_to(mount) for mount in _CH_RUN_MOUNTS):
            return (), folder
        point = None if path.is_relative_to(_TMP) else _mount_point(Path(image), folder)
        if point is None or not (creates_mount_point or point.is_dir()):
            return None
    return (f"{folder}:{folder}",), folder


def _mount_point(image: Path, folder: str) -> Path | None:
    """The folder of an image folder on which ch-run mounts `folder`; None if it is missing and cannot be created.

    ch-run mounts the image read-only, so it cannot create mount points itself.
    """
    point = image / folder.lstrip("/")
    above = next((each for each in (point, *point.parents) if each.exists()), image)
    # An absolute symbolic link in the image points to a folder of the host here.
    if not image.is_dir() or not above.resolve().is_relative_to(image.resolve()):
        return None
    return point if above.is_dir() and (above == point or os.access(above, os.W_OK)) else None


def check_container(container: str) -> None:
    """Check that this machine has the runtime and the image.

    Raises:
        NotFound: The runtime or the image is missing.
    """
    runtime, image = parse_container(container)
    program, package = _PROGRAMS.get(runtime, ("", ""))
    if program and shutil.which(program) is None:
        raise NotFound(f"container: {program} is not installed", hint=f"install {package}")
    if image.startswith(("/", "./", "../")) and not Path(image).exists():
        raise NotFound(f"container: the image {image} does not exist", hint="check the path after --container RUNTIME:")


def make_mount_points(container: str, binds: Sequence[str]) -> None:
    """Create the missing mount points in an image folder of Charliecloud, if it is writable."""
    runtime, image = parse_container(container)
    if runtime != "charliecloud":
        return
    for bind in binds:
        source, _, rest = bind.partition(":")
        target = rest.split(":")[0]
        point = _mount_point(Path(image), target) if target.startswith("/") else None
        is_mounted = any(PurePosixPath(target).is_relative_to(each) for each in (*_CH_RUN_MOUNTS, _TMP))
        if point is not None and not is_mounted and not Path(source).is_file():
            point.mkdir(parents=True, exist_ok=True)
