# SPDX-License-Identifier: Apache-2.0
"""Container runtimes as command prefixes of ranks: Apptainer, Singularity, Docker, Podman, Charliecloud, Pyxis (srun).

Builds command lines and starts nothing. The tests run Charliecloud. For all other runtimes, the command lines are only
checked against the documented syntax.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, Unsupported
from penstock.protocols import RankPrefix

if TYPE_CHECKING:
    from penstock.protocols import Container, ContainerSpec

__all__ = ["apptainer", "charliecloud", "docker", "podman", "pyxis", "singularity"]

# Environment variables that ranks need in a container: rank numbers, and addresses of other ranks. Docker needs the
# name of each variable; Podman also accepts prefixes of names. Runtimes without a daemon pass on the whole environment.
_FAMILIES = (
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "HYDI_",
    "MPI_",
    "MV2_",
    "PALS_",
    "FLUX_",
    "SLURM_",
    "PBS_",
    "HOROVOD_",
    "NCCL_",
    "PENSTOCK_",
    "TORCHELASTIC_",
)
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
_NAMES = (
    *_TORCHRUN,
    *("PENSTOCK_NODE", "PENSTOCK_JOB_POOL"),
    *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK")),
    *("PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR", "PMIX_SYSTEM_TMPDIR", "PMIX_SECURITY_MODE", "PMIX_GDS_MODULE"),
    *(f"PMIX_SERVER_URI{version}" for version in ("", "2", "21", "3", "4", "41")),
    *("PMI_RANK", "PMI_SIZE", "PMI_JOBID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    *(f"SLURM_{name}" for name in ("JOB_ID", "STEP_ID", "PROCID", "NODEID", "LOCALID", "NTASKS", "NNODES", "JOB_NODELIST", "STEP_NUM_NODES", "STEP_NUM_TASKS")),
    *(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")),
)  # fmt: skip
_BIND = re.compile(r"(?P<src>/[^:,]*):(?P<dst>/[^:,]*)(?::(?P<mode>ro|rw))?")


def _binds(spec: ContainerSpec) -> list[tuple[str, str, bool]]:
    """Source, destination and read-only flag of every bind.

    Raises:
        ConfigError: A bind is not `SRC:DST` with absolute paths. Paths cannot contain commas or colons, because the
            runtimes use them as separators.
    """
    found = []
    for bind in spec.binds:
        match = _BIND.fullmatch(bind)
        if match is None:
            raise ConfigError(
                f"container: `{bind}` is not a valid bind; write /src:/dst or /src:/dst:ro, without commas"
            )
        found.append((match["src"], match["dst"], match["mode"] == "ro"))
    return found


def _image(spec: ContainerSpec) -> str:
    if not spec.image or spec.image.startswith("-"):
        raise ConfigError(f"container: `{spec.image}` is not a valid image")
    return spec.image


class _Apptainer:
    """`apptainer exec` or `singularity exec`, which need no daemon and pass on the environment."""

    def __init__(self, program: str) -> None:
        self._program = program

    def rank_prefix(self, spec: ContainerSpec) -> RankPrefix:
        binds = [f"--bind={src}:{dst}{':ro' if is_read else ''}" for src, dst, is_read in _binds(spec)]
        gpus = ["--nv"] if spec.has_gpus else []
        cwd = [f"--pwd={spec.cwd}"] if spec.cwd else []
        return RankPrefix((self._program, "exec", *binds, *gpus, *cwd, *spec.args, _image(spec)))


class _Daemon:
    """`docker run` and `podman run`. Ranks share the node's network, process and memory namespaces, as MPI needs."""

    def __init__(self, program: str, gpus: str, *, is_podman: bool) -> None:
        self._program = program
        self._gpus = gpus
        self._is_podman = is_podman
        self._passed = (*_TORCHRUN, *(f"{family}*" for family in _FAMILIES)) if is_podman else _NAMES

    def _mpi_options(self, spec: ContainerSpec) -> list[str]:
        """Podman's options for ranks of mpirun: the user's own id in a rootless container, and the folder in which
        Open MPI's mpirun makes its session folder.

        Source:
            podman.io/blogs/2019/09/26/podman-in-hpc
        """
        if not self._is_podman:
            return []
        tmp = tempfile.gettempdir()  # as mpirun: TMPDIR, else /tmp
        is_bound = any(tmp == dst for _, dst, _ in _binds(spec))
        return [
            *(["--userns=keep-id"] if os.geteuid() != 0 else []),
            *([f"--volume={tmp}:{tmp}"] if not is_bound else []),
        ]

    def rank_prefix(self, spec: ContainerSpec) -> RankPrefix:
        name = f"{spec.label}-{{rank}}"
        binds = [f"--volume={src}:{dst}{':ro' if is_read else ''}" for src, dst, is_read in _binds(spec)]
        # `--env=NAME` without a value copies the client's value. If the client does not have the variable, the variable
        # is not set in the container.
        passed = [f"--env={each}" for each in dict.fromkeys((*self._passed, *spec.env))]
        return RankPrefix(
            (
                self._program, "run", "--rm", "--init", f"--name={name}", "--network=host", "--ipc=host", "--pid=host",
                *self._mpi_options(spec), *binds, *passed, *([self._gpus] if spec.has_gpus else []), *([f"--workdir={spec.cwd}"] if spec.cwd else []), *spec.args,
                _image(spec),
            ),
            cleanup_argv=(self._program, "rm", "--force", name),
        )  # fmt: skip


class _Charliecloud:
    """Charliecloud's `ch-run`, which needs neither a daemon nor root.

    A container sees the node's /dev. GPUs work if `ch-fromhost --nvidia` has copied the driver's libraries into the
    image.
    """

    def rank_prefix(self, spec: ContainerSpec) -> RankPrefix:
        binds = _binds(spec)
        if any(is_read for *_, is_read in binds):
            raise Unsupported("container: ch-run does not support read-only binds", hint="omit `:ro`")
        options = [f"--bind={src}:{dst}" for src, dst, _ in binds]
        cwd = [f"--cd={spec.cwd}"] if spec.cwd else []
        # ch-run requires USER, which batch systems and minimal containers often leave unset.
        shell = ("sh", "-c", 'USER="${USER:-$(id -un)}" exec "$@"', "sh")
        return RankPrefix((*shell, "ch-run", *options, *cwd, *spec.args, _image(spec), "--"))


class _Pyxis:
    """Pyxis, srun's plug-in for Enroot, as arguments for srun. The rank wrapper runs in the container, so the image
    needs python3.
    """

    def rank_prefix(self, spec: ContainerSpec) -> RankPrefix:
        mounts = ",".join(f"{src}:{dst}{':ro' if is_read else ''}" for src, dst, is_read in _binds(spec))
        passed = ",".join(dict.fromkeys((*_TORCHRUN, *spec.env)))
        step = [f"--container-image={_image(spec)}", f"--container-env={passed}"]
        step += [f"--container-mounts={mounts}"] if mounts else []
        step += [f"--container-workdir={spec.cwd}"] if spec.cwd else []
        # Enroot's hook exposes the GPUs to the container if this variable is set.
        step += ["--export=ALL,NVIDIA_VISIBLE_DEVICES=all"] if spec.has_gpus else []
        if any("{" in option for option in step):
            raise Unsupported(
                "container: srun uses one command line for all nodes, so {node} and {rank} are not supported"
            )
        return RankPrefix(launcher_args=(*step, *spec.args))


def apptainer() -> Container:
    """Entry point `penstock.containers: apptainer`."""
    return _Apptainer("apptainer")


def singularity() -> Container:
    """Entry point `penstock.containers: singularity`."""
    return _Apptainer("singularity")


def docker() -> Container:
    """Entry point `penstock.containers: docker`."""
    return _Daemon("docker", "--gpus=all", is_podman=False)


def podman() -> Container:
    """Entry point `penstock.containers: podman`."""
    return _Daemon("podman", "--device=nvidia.com/gpu=all", is_podman=True)


def charliecloud() -> Container:
    """Entry point `penstock.containers: charliecloud`."""
    return _Charliecloud()


def pyxis() -> Container:
    """Entry point `penstock.containers: pyxis`."""
    return _Pyxis()
