# SPDX-License-Identifier: Apache-2.0
"""Input of a job export: the job, its file and its `[submit]` section. Rejects jobs that a system cannot run."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.job.spec import SubmitSection
from penstock.units import parse_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.job.spec import Job

__all__ = ["ExportRequest"]


@dataclass(frozen=True)
class ExportRequest:
    """A job to export.

    Attributes:
        file: The job file.
        runs: Folder for state and logs, on the system that runs the job.
        resume: Continue an earlier run of the job.
    """

    job: Job
    file: Path
    runs: Path
    resume: bool = False

    @property
    def submit(self) -> SubmitSection:
        """The section `[submit]`; its defaults if the job file has none."""
        return self.job.submit or SubmitSection()

    @cached_property
    def nodes(self) -> int:
        """Number of nodes.

        Raises:
            ConfigError: The job does not set the number of nodes.
        """
        found = self.submit.nodes or self.job.cluster.nodes
        if not isinstance(found, int):
            raise ConfigError("submit.nodes: not set", hint="set nodes = 4 in [submit]")
        return found

    @cached_property
    def limit_s(self) -> int:
        """Maximum duration of the job in seconds."""
        return max(60, round(parse_seconds(self.submit.limit)))

    @cached_property
    def image(self) -> str:
        """Container image, for systems that run only containers.

        Raises:
            ConfigError: The image is missing, or the job has a `[container]` section, which would nest containers.
        """
        if self.job.container is not None:
            raise ConfigError(
                "container: not supported by this system, which runs the whole job in one container",
                hint="set image in [submit], and remove [container]",
            )
        if not self.submit.image:
            raise ConfigError(
                "submit.image: not set, but this system runs only container images",
                hint='set image = "me/train:1" in [submit]',
            )
        return self.submit.image

    @property
    def embedded(self) -> str:
        """The job file in base64, so that no shell or template changes it.

        Raises:
            ConfigError: The job file refers to a script on this machine, which is not transferred.
        """
        if self.job.provision is not None:
            raise ConfigError(
                f"provision: {self.job.provision.script} does not exist on the nodes of this system",
                hint="do the work of the script when you build the image",
            )
        return base64.b64encode(self.file.read_bytes()).decode()

    def penstock(self, *, is_here: bool) -> list[str]:
        """Command that starts Penstock on the job's nodes. `is_here` states that the nodes share this machine's file
        system.
        """
        argv = list(self.job.cluster.penstock)
        return argv or ([sys.executable, "-m", "penstock"] if is_here else ["penstock"])

    def require_independent_nodes(self) -> None:
        """Reject a job whose nodes cannot run independently.

        Raises:
            ConfigError: The job has a pool, which needs a launcher that reaches all nodes. Or `resume` is set, but new
                nodes do not have the state of the earlier run.
        """
        if self.resume:
            raise ConfigError(
                "--resume: not supported on this system, where a job starts on new nodes without the state of the"
                " earlier run",
                where="--resume",
            )
        if self.job.pool is not None:
            raise ConfigError(
                "pool: requires commands on all nodes, which this system does not support",
                hint="use a [stage] with a destination, which gives each node its share, or use a pool under "
                "Slurm, PBS or the ssh launcher",
            )
