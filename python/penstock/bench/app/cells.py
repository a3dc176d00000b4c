# SPDX-License-Identifier: Apache-2.0
"""Runs and cells of a scaling sweep, as stored in its document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.errors import PenstockError

__all__ = ["Cell", "Run"]

_MAX_FAILED_RUNS = 2


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command.

    Attributes:
        round: Number of the round, counted from 0; runs of one round are compared with each other.
        wall_s: Duration, including the start of the ranks by the launcher.
        value: The figure of merit; None without a figure.
        cpus: CPUs that each rank could use, in rank order.
    """

    round: int
    wall_s: float
    value: float | None = None
    cpus: tuple[str, ...] = ()


class Cell(msgspec.Struct, kw_only=True):
    """All runs of one size of one variant.

    Attributes:
        failed_runs: Number of failed runs, with those of the warm-up.
        error: Reason of the last failure.
        is_abandoned: Whether the cell is not run any more.
        notes: Facts that make the cell's figures doubtful.
        line: Command line on this machine, for display.
        mpi: MPI library of the ranks, if the check found one.
    """

    variant: str
    ranks: int
    nodes: int
    problem_size: float
    runs: list[Run] = []
    failed_runs: int = 0
    error: str | None = None
    hint: str | None = None
    is_abandoned: bool = False
    notes: list[str] = []
    line: list[list[str]] = []
    mpi: str | None = None

    @property
    def key(self) -> str:
        return f"{self.variant}\0{self.ranks}\0{self.nodes}"

    def record_failure(self, error: PenstockError) -> None:
        """Record a failed run. After the second one, the cell is abandoned: each run could fail by its time limit."""
        self.failed_runs += 1
        self.error, self.hint = str(error), error.hint
        self.is_abandoned = self.failed_runs >= _MAX_FAILED_RUNS
