# SPDX-License-Identifier: Apache-2.0
"""Input of an export: the job, its file and its `[submit]` section. Refuses what no system supports."""

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
    """A job that is to be handed over.

    Attributes:
        file: The job's own.
        runs: Where its state and logs go, on the system that runs it.
        resume: It goes on with an earlier start.
    """

    job: Job
    file: Path
    runs: Path
    resume: bool = False

    @property
    def submit(self) -> SubmitSection:
        """`[submit]`, or its defaults."""
        return self.job.submit or SubmitSection()

    @cached_property
    def nodes(self) -> int:
        """How many nodes are wanted.

        Raises:
            ConfigError: Nobody says.
        """
        found = self.submit.nodes or self.job.cluster.nodes
        if not isinstance(found, int):
            raise ConfigError("submit.nodes: nobody says how many nodes", hint="[submit] nodes = 4")
        return found

    @cached_property
    def limit_s(self) -> int:
        """Longest that the job may take."""
        return max(60, round(parse_seconds(self.submit.limit)))

    @cached_property
    def image(self) -> str:
        """The container image of systems that have nothing but containers.

        Raises:
            ConfigError: None is named, or the ranks want one of their own inside.
        """
        if self.job.container is not None:
            raise ConfigError(
                "container: this system puts the whole job into one", hint="[submit] image, and no [container]"
            )
        if not self.submit.image:
            raise ConfigError(
                "submit.image: none, and this system runs nothing else", hint='[submit] image = "me/train:1"'
            )
        return self.submit.image

    @property
    def embedded(self) -> str:
        """The job's file as text that no shell and no template touches.

        Raises:
            ConfigError: It names another file of this machine, which does not go along.
        """
        if self.job.provision is not None:
            raise ConfigError(
                f"provision: {self.job.provision.script} is not where such a job runs",
                hint="what the script does belongs into the image",
            )
        return base64.b64encode(self.file.read_bytes()).decode()

    def penstock(self, *, is_here: bool) -> list[str]:
        """The words that start Penstock where the job runs; `is_here`: on nodes that share this machine's file system."""
        argv = list(self.job.cluster.penstock)
        return argv or ([sys.executable, "-m", "penstock"] if is_here else ["penstock"])

    def require_independent_nodes(self) -> None:
        """Refuses a job whose nodes cannot each do their part alone.

        Raises:
            ConfigError: It has a pool, which wants a launcher that reaches all nodes; or it is to go on with an earlier
                start, of which fresh nodes know nothing.
        """
        if self.resume:
            raise ConfigError(
                "--resume: on this system a job begins on fresh nodes, which hold no earlier start", where="--resume"
            )
        if self.job.pool is not None:
            raise ConfigError(
                "pool: on this system nobody starts commands on all nodes, and a pool wants that",
                hint="a [stage] with a destination gives each node its share; a launcher under Slurm, PBS or ssh has pools",
            )
