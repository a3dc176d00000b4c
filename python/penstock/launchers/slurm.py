# SPDX-License-Identifier: Apache-2.0
"""`slurm`: runs commands as srun steps on the nodes of this process's allocation (sbatch, salloc).

Settings: `nodes` (`h1,h2` or `h[1-2]`; by default all nodes of the allocation), `srun` (arguments of every srun, such as
`--mpi=pmix --cpu-bind=none`), `python`. With `nodes`, command lines can be printed outside an allocation, too.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.launchers._shared.allocation import require_slurm_job, slurm_hosts
from penstock.launchers._shared.multi_rank_launcher import MultiRankLauncher
from penstock.launchers._shared.subprocess_launcher import check_request
from penstock.plugins import parse_settings
from penstock.protocols import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.protocols import Exit, RunRequest

__all__ = ["SlurmLauncher", "launcher"]


class SlurmLauncher(MultiRankLauncher):
    """Launcher that runs overlapping srun steps, so that a pool's daemons and the ranks share the allocation."""

    label = re.compile(rb"^\s*(?P<rank>\d+): ?")

    def __init__(self, environment: Mapping[str, str], nodes: list[Node], *, srun: list[str], python: str) -> None:
        # Variables of the batch script that would override the options of this launcher's srun steps, and are therefore
        # removed.
        own = (
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE",
            "SLURM_CPU_BIND",
            "SLURM_DISTRIBUTION",
        )
        super().__init__(
            {name: value for name, value in environment.items() if not name.startswith(own)}, python=python
        )
        self._nodes = nodes
        self._srun = srun

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def on_node(self, node: Node, argv: Sequence[str]) -> list[str]:
        require_slurm_job(self.environment)  # otherwise, each srun would wait for an allocation of its own
        return [*self._srun_argv([node], 1), "--", *argv]

    def run(self, request: RunRequest) -> list[Exit]:
        require_slurm_job(self.environment)
        return super().run(request)

    def check(self, request: RunRequest) -> None:
        check_request(request, takes_step=True)

    def launch_argv(self, request: RunRequest, argv: Sequence[str]) -> list[str]:
        rank_prefix = request.rank_prefix.launcher_args if request.rank_prefix else ()
        own = _srun_binding(request.bind)
        return [*self._srun_argv(request.on, request.ranks_per_node, own), "--label", *rank_prefix, "--", *argv]

    def _srun_argv(self, on: Sequence[Node], ranks_per_node: int, own: Sequence[str] = ()) -> list[str]:
        return [
            "srun", "--overlap", "--kill-on-bad-exit=0", f"--nodes={len(on)}", f"--ntasks={len(on) * ranks_per_node}",
            f"--ntasks-per-node={ranks_per_node}", f"--nodelist={','.join(node.name for node in on)}", *own, *self._srun,
        ]  # fmt: skip


def _srun_binding(bind: str | None) -> list[str]:
    """Options of srun for a binding. `show` keeps the site's default; the rank wrapper binds near devices."""
    if bind is None or bind == "show":
        return []
    own = {"core": "cores", "numa": "ldoms"}.get(bind, "none")
    return [f"--cpu-bind={own}"]


def launcher(settings: Mapping[str, Any], environment: Mapping[str, str]) -> SlurmLauncher:
    """Entry point `penstock.launchers: slurm`."""
    found = parse_settings("launcher slurm", settings, {"nodes": str, "srun": str, "python": str})
    names = slurm_hosts(environment, found.get("nodes", ""))
    if len(set(names)) < len(names):
        raise ConfigError(f"nodes: `{found['nodes']}` contains a host twice", where="nodes")
    nodes = [Node(name, name) for name in names]
    return SlurmLauncher(environment, nodes, srun=shlex.split(found.get("srun", "")), python=found.get("python", ""))
