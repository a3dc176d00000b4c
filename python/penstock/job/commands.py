# SPDX-License-Identifier: Apache-2.0
"""Command lines of a job's steps, made from the job file and the dataset's path. Starts nothing."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock import plugins
from penstock.errors import ConfigError
from penstock.protocols import Box, Container

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.job.spec import Job, PoolSection
    from penstock.protocols import Around, Part

__all__ = ["GROUP", "StepCommands", "pool_up_flags", "settings_flags"]

GROUP = "penstock.containers"


def pool_up_flags(part: PoolSection) -> list[str]:
    """Flags of `pool up` for a pool, without its name and nodes."""
    return [
        "--engine", part.engine, "--disk", part.disk, "--copies", str(part.copies), "--deadline", part.deadline,
        *settings_flags("--engine-set", part.settings),
    ]  # fmt: skip


def settings_flags(flag: str, settings: Mapping[str, Any]) -> list[str]:
    """Settings as command-line flags: FLAG NAME=VALUE for each."""
    spelt = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    return [word for name, value in spelt.items() for word in (flag, f"{name}={value}")]


class StepCommands:
    """Command lines of one job's steps. The launcher fills `{node}` and `{rank}` in them."""

    def __init__(self, job: Job, part: Part | None = None) -> None:
        """`part`: this machine is one node of a larger job, whose other nodes are started elsewhere."""
        self._job = job
        self._part = part
        self._penstock = list(job.cluster.penstock) or [sys.executable, "-m", "penstock"]

    def data(self, pool_url: str) -> str:
        """Path or URL of the staged dataset; empty if the job stages nothing."""
        job = self._job
        if job.pool is not None:
            return f"{pool_url.rstrip('/')}/data"
        return job.stage.destination or "" if job.stage else ""

    def pool_up(self) -> list[str]:
        """The command that brings the pool up by hand."""
        part, nodes = self._job.pool, self._job.cluster
        assert part is not None
        given = [] if nodes.nodes is None else ["--nodes", str(nodes.nodes)]
        settings = settings_flags("--set", nodes.settings)
        return [
            "penstock", "pool", "up", "--name", self._job.name, *pool_up_flags(part), "--launcher", nodes.launcher, *given, *settings
        ]  # fmt: skip

    def pool_exec(self, engine: str, node: str, requests: str) -> list[str]:
        """The command that runs `pool.rpc` requests on a node; it reads the pool from stdin."""
        return [*self._penstock, "pool", "exec", engine, node, requests]

    def stage(self, data: str) -> list[str]:
        """The command that stages a node's share of the dataset to `data`."""
        part, pool = self._job.stage, self._job.pool
        assert part is not None
        inflate = ["--inflate"] if part.inflate else []
        journal = []
        if pool and "://" in data:
            # Beside the pool and gone with it; homes are shared between nodes often enough.
            journal = ["--journal", f"{pool.disk}/penstock-pool-{self._job.name}/journal"]
        share = ["--node", str(self._part.node), "--nodes", str(self._part.nodes)] if self._part else []
        return [*self._penstock, "stage", part.source, data, *inflate, "--quiet", *share, *journal, *part.args]

    def ranks(self, data: str, variables: Iterable[str]) -> tuple[list[str], Around | None]:
        """The workload's command line, and the container around every rank.

        Args:
            variables: Names of the environment variables that the job sets for its ranks.

        Raises:
            ConfigError: Unknown container runtime, or an invalid bind.
            Unsupported: The runtime cannot do what the job asks of it.
        """
        around, seen = self._around(data, variables)
        return [word.replace("{data}", seen) for word in self._job.run.argv], around

    def archive(self) -> list[str]:
        """The command that copies a node's outputs to the archive."""
        part = self._job.archive
        assert part is not None
        to = f"{part.to.rstrip('/')}/{{node}}" if part.on == "all" else part.to
        # Each node has its own outputs: nothing is shared out.
        return [*self._penstock, "stage", part.source, to, "--node", "0", "--nodes", "1", "--quiet"]

    def _around(self, data: str, variables: Iterable[str]) -> tuple[Around | None, str]:
        """The container around every rank, and the dataset's path inside it."""
        part = self._job.container
        if part is None:
            return None, data
        binds = part.binds
        if data.startswith("/"):
            binds = (f"{data}:{part.data_at}", *binds)
            data = part.data_at
        # At a deadline containers are removed by name: the random part keeps those of another job of the same name.
        label = f"penstock-{self._job.name}-{secrets.token_hex(4)}"
        box = Box(
            part.image, binds, tuple(variables), has_gpus=part.gpus, cwd=part.cwd, args=part.args, label=label
        )  # fmt: skip
        made: Container = plugins.load(GROUP, part.runtime, Container, lambda factory: factory())
        around = made.around(box)
        if part.holds_launcher:
            if not around.words or around.ends:
                raise ConfigError(
                    f"container.holds_launcher: mpirun cannot run inside by {part.runtime}",
                    hint="apptainer, singularity and charliecloud can",
                )
            around = replace(around, is_outermost=True)
        return around, data
