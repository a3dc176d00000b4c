# SPDX-License-Identifier: Apache-2.0
"""Bounded record of single training steps: when each began, and where its time went."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.protocols import StepCost

__all__ = ["PackedRows", "StepRow", "StepRows"]

MAX_ROWS = 2048  # 100 kB per rank when the ranks exchange them
_LATEST = 24

_Raw = tuple[int, float, float, float, "StepCost"]


class StepRow(NamedTuple):
    """One step of one rank. Times in seconds; `began_s` is counted from a moment that all ranks share.

    Attributes:
        wait_s: Waiting for the batch, before the step.
        comm_s: Exposed communication and barrier, including the wait for the slowest rank.
        length_s: From `began_s` to the end of the step: all parts and the loop's own work.
    """

    step: int
    began_s: float
    wait_s: float
    h2d_s: float
    compute_s: float
    comm_s: float
    length_s: float


class PackedRows(NamedTuple):
    """Rows of one rank in arrays of doubles, for exchange between ranks.

    Attributes:
        stride: Number of steps from one row of `values` to the next.
        values: Rows of the whole run.
        latest_values: Rows of the latest steps, without gaps.
    """

    stride: int
    values: array[float]
    latest_values: array[float]

    def rows(self) -> list[StepRow]:
        return _unpacked(self.values)

    def latest(self) -> list[StepRow]:
        return _unpacked(self.latest_values)


def _unpacked(values: array[float]) -> list[StepRow]:
    width = len(StepRow._fields)
    packed = (values[at : at + width] for at in range(0, len(values), width))
    return [StepRow(int(step), *rest) for step, *rest in packed]


class StepRows:
    """Records steps in constant memory: if there are too many rows, every second row is dropped and the stride doubles.

    The rows that remain are exact. Ranks that take the same steps keep the same rows, so that their rows can be
    compared step by step.
    """

    def __init__(self, limit: int = MAX_ROWS) -> None:
        self.stride = 1
        self._limit = limit
        self._rows: list[_Raw] = []
        self._latest: deque[_Raw] = deque(maxlen=_LATEST)

    def add(self, step: int, began_s: float, got_s: float, ended_s: float, cost: StepCost) -> None:
        """Record a step. This method is called between two steps, so it must take less than a microsecond."""
        row = (step, began_s, got_s, ended_s, cost)
        self._latest.append(row)
        if step % self.stride:
            return
        self._rows.append(row)
        if len(self._rows) >= self._limit:
            self.stride *= 2
            self._rows = [row for row in self._rows if row[0] % self.stride == 0]

    def pack(self, zero_s: float) -> PackedRows:
        """Return the rows, with times counted from `zero_s`."""
        return PackedRows(self.stride, _packed(self._rows, zero_s), _packed(self._latest, zero_s))


def _packed(rows: Iterable[_Raw], zero_s: float) -> array[float]:
    values = array("d")
    for step, began_s, got_s, ended_s, cost in rows:
        comm_s = cost.comm_s + cost.sync_s
        times = (got_s - began_s, cost.h2d_s, cost.compute_s, comm_s, ended_s - began_s)
        values.extend(StepRow(step, began_s - zero_s, *times))
    return values
