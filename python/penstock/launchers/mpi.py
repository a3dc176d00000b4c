# SPDX-License-Identifier: Apache-2.0
"""`mpi`: runs commands with mpirun of Open MPI or of the MPICH family (Hydra).

Settings: `nodes` (`h1,h2`; by default the nodes of this Slurm, PBS or Azure Batch job), `program` ([mpirun]), `args`
(arguments of every mpirun, such as `--mca btl tcp,self`), `python`. Hydra also inserts labels into lines of more than
64 KiB. These labels are not recognized, and stay in the output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, NotFound
from penstock.launchers._shared.allocation import allocated_hosts
from penstock.launchers._shared.multi_rank_launcher import MultiRankLauncher
from penstock.launchers._shared.subprocess_launcher import check_request
from penstock.plugins import parse_settings
from penstock.protocols import Node, RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MpiLauncher", "launcher"]

_COMMAND_TIMEOUT_S = 20
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OPEN = re.compile(rb"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:")
# Open MPI 5 adds a blank after the label. With Open MPI 4, a blank after the label belongs to the rank's output.
_OPEN_5 = re.compile(_OPEN.pattern + rb" ")
_HYDRA = re.compile(rb"^\[(?P<rank>\d+)\] ")


class MpiLauncher(MultiRankLauncher):
    """Launcher that runs one mpirun per request."""

    def __init__(
        self,
        environment: Mapping[str, str],
        nodes: list[Node],
        *,
        program: str,
        label: re.Pattern[bytes],
        args: list[str],
        python: str,
    ) -> None:
        super().__init__(environment, python=python)
        self._nodes = nodes
        self._program = program
        self._is_open = label is not _HYDRA
        self._args = args
        self.label = label

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def on_node(self, node: Node, argv: Sequence[str]) -> list[str]:
        return self._mpirun_argv(RunRequest(argv, [node]), argv, labels=[])

    def check(self, request: RunRequest) -> None:
        check_request(request, takes_outermost=self._is_open)

    def launch_argv(self, request: RunRequest, argv: Sequence[str]) -> list[str]:
        return self._mpirun_argv(request, argv, labels=["--tag-output"] if self._is_open else ["-prepend-rank"])

    def _mpirun_argv(self, request: RunRequest, argv: Sequence[str], *, labels: list[str]) -> list[str]:
        hosts = ",".join(f"{node.name}:{request.ranks_per_node}" for node in request.on)
        count = ["-np", str(request.world)]
        if not self._is_open:
            # A failure of one rank must not end the other ranks, because the caller decides what to do.
            own = ["-bind-to", str(request.bind)] if request.bind in (*self.own_bindings, "none") else []
            return [self._program, *count, "-hosts", hosts, "-disable-auto-cleanup", *own, *labels, *self._args, *argv]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        alone = ["--mca", "orte_abort_on_non_zero_status", "0", *_open_mpi_binding(request.bind), "--oversubscribe"]
        inside = list(request.rank_prefix.argv) if request.rank_prefix and request.rank_prefix.is_outermost else []
        # mpirun inside a container has no srun to start its daemons on other nodes. Therefore, ssh starts these
        # daemons, also inside the container.
        daemons = (
            ["--mca", "plm", "rsh", "--mca", "orte_launch_agent", shlex.join([*inside, "orted"])] if inside else []
        )
        passed = [item for name in request.env for item in ("-x", name)]
        return [
            *inside, self._program, *root, *alone, *daemons, *count, "--host", hosts, "--map-by", f"ppr:{request.ranks_per_node}:node",
            *labels, *passed, *self._args, *argv,
        ]  # fmt: skip


def _open_mpi_binding(bind: str | None) -> list[str]:
    """Options of Open MPI's mpirun for a binding. `show` keeps mpirun's default; the rank wrapper binds near devices."""
    if bind == "show":
        return []
    return ["--bind-to", f"{bind}:overload-allowed" if bind in MpiLauncher.own_bindings else "none"]


def launcher(settings: Mapping[str, Any], environment: Mapping[str, str]) -> MpiLauncher:
    """Entry point `penstock.launchers: mpi`."""
    found = parse_settings("launcher mpi", settings, {"nodes": str, "program": str, "args": str, "python": str})
    program = found.get("program", "mpirun")
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if environment.get(name, "1") != "1":
            raise ConfigError(
                f"launcher mpi: this process is already one of the {environment[name]} ranks of an mpirun ({name})",
                hint="omit --launcher, or start penstock without mpirun",
            )
    try:
        version_text = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        raise NotFound(
            f"launcher mpi: {program} is not installed",
            hint="install openmpi-bin or mpich (Debian), or set an installed program: --set program=mpiexec.hydra",
        ) from None
    if found.get("nodes"):
        names = [item.strip() for item in found["nodes"].split(",") if item.strip()]
    else:
        names = allocated_hosts(environment)
    for name in names:
        if not _HOST.fullmatch(name):
            raise ConfigError(f"nodes: `{name}` is not a valid host name")
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"nodes: `{found.get('nodes', '')}` must contain at least one host, and no host twice")
    return MpiLauncher(
        environment, [Node(name, name) for name in names], program=program, label=_label_pattern(version_text),
        args=shlex.split(found.get("args", "")), python=found.get("python", ""),
    )  # fmt: skip


def _label_pattern(version_text: str) -> re.Pattern[bytes]:
    """Return the pattern of line labels for an mpirun, given its `--version` output."""
    found = re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)", version_text)
    if found is None:
        return _HYDRA
    return _OPEN if int(found[1]) < 5 else _OPEN_5
