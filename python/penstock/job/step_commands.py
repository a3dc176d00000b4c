# SPDX-License-Identifier: Apache-2.0
"""Builds the command lines of a job's steps from the job file and the dataset's path. Starts nothing."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any

from penstock.cluster.containers import container_prefix
from penstock.protocols import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.job.spec import Job, PoolSection
    from penstock.protocols import NodeSlice, RankPrefix

__all__ = ["StepCommands", "pool_up_flags", "settings_flags"]


def pool_up_flags(section: PoolSection) -> list[str]:
    """Flags of `penstock pool up` for a `[pool]` section, except the pool's name and nodes."""
    return [
        "--engine", section.engine, "--disk", section.disk, "--copies", str(section.copies), "--timeout", section.timeout,
        *settings_flags("--engine-set", section.settings),
    ]  # fmt: skip


def settings_flags(flag: str, settings: Mapping[str, Any]) -> list[str]:
    """Convert settings to command-line flags: `FLAG NAME=VALUE` for each setting."""
    spelt = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    return [arg for name, value in spelt.items() for arg in (flag, f"{name}={value}")]


class StepCommands:
    """Command lines of one job's steps. The launcher fills in `{node}` and `{rank}`."""

    def __init__(self, job: Job, node_slice: NodeSlice | None = None) -> None:
        """`node_slice` is set if this machine is a single node of a job whose other nodes are started separately."""
        self._job = job
        self._node_slice = node_slice
        self._penstock = list(job.cluster.penstock) or [sys.executable, "-m", "penstock"]

    def data(self, pool_url: str) -> str:
        """Path or URL of the staged dataset; empty if the job does not stage data."""
        job = self._job
        if job.pool is not None:
            return f"{pool_url.rstrip('/')}/data"
        return job.stage.destination or "" if job.stage else ""

    def pool_up(self) -> list[str]:
        """Command for a user to start the job's pool by hand."""
        section, nodes = self._job.pool, self._job.cluster
        assert section is not None
        given = [] if nodes.nodes is None else ["--nodes", str(nodes.nodes)]
        settings = settings_flags("--set", nodes.settings)
        return [
            "penstock", "pool", "up", "--name", self._job.name, *pool_up_flags(section), "--launcher", nodes.launcher, *given, *settings
        ]  # fmt: skip

    def pool_exec(self, engine: str, node: str, requests: str) -> list[str]:
        """Command that runs pool requests (see `pool.exec`) on a node. The command reads the pool from
        stdin.
        """
        return [*self._penstock, "pool", "exec", engine, node, requests]

    def stage(self, data: str) -> list[str]:
        """Command that stages a node's share of the dataset to `data`."""
        section, pool = self._job.stage, self._job.pool
        assert section is not None
        decompress = ["--decompress"] if section.decompress else []
        journal = []
        if pool and "://" in data:
            # The default journal is in the home folder, which nodes often share. Therefore, each node stores its
            # journal in the pool's folder on its own disk. The journal is removed with the pool.
            journal = ["--journal", f"{pool.disk}/penstock-pool-{self._job.name}/journal"]
        share = (
            ["--node", str(self._node_slice.node), "--nodes", str(self._node_slice.nodes)] if self._node_slice else []
        )
        return [*self._penstock, "stage", section.source, data, *decompress, "--quiet", *share, *journal, *section.args]

    def ranks(self, data: str, variables: Iterable[str]) -> tuple[list[str], RankPrefix | None]:
        """Return the workload's command line, and the prefix that runs every rank in its container.

        Args:
            variables: Names of the environment variables that the job sets for its ranks.

        Raises:
            ConfigError: The container runtime is unknown, or a bind is invalid.
            Unsupported: The runtime does not support an option of the job.
        """
        rank_prefix, seen = self._rank_prefix(data, variables)
        return [arg.replace("{data}", seen) for arg in self._job.run.argv], rank_prefix

    def archive(self) -> list[str]:
        """Command that copies a node's outputs to the archive."""
        section = self._job.archive
        assert section is not None
        to = f"{section.to.rstrip('/')}/{{node}}" if section.on == "all" else section.to
        # `--nodes 1`: each node copies all of its own outputs; the outputs are not split between the nodes.
        return [*self._penstock, "stage", section.source, to, "--node", "0", "--nodes", "1", "--quiet"]

    def _rank_prefix(self, data: str, variables: Iterable[str]) -> tuple[RankPrefix | None, str]:
        """Return the prefix that runs every rank in its container, and the dataset's path inside the container."""
        section = self._job.container
        if section is None:
            return None, data
        binds = section.binds
        if data.startswith("/"):
            binds = (f"{data}:{section.data_at}", *binds)
            data = section.data_at
        # At a deadline, containers are removed by name. The random suffix protects containers of another job that has
        # the same name.
        label = f"penstock-{self._job.name}-{secrets.token_hex(4)}"
        spec = ContainerSpec(
            section.image, binds, tuple(variables), has_gpus=section.gpus, cwd=section.cwd, args=section.args, label=label
        )  # fmt: skip
        way = "inside" if section.holds_launcher else "host-mpirun"
        return container_prefix(section.runtime, spec, way=way), data
