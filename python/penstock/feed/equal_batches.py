# SPDX-License-Identifier: Apache-2.0
"""Runs that give all ranks the same number of non-empty batches, as the collective calls of a training step require.

`FilledRun` leaves out a batch with fewer samples than ranks. `EqualRun` ends the pass on all ranks when the first rank
has no more batches. `EqualRun` is for datasets in which a rank learns its number of batches only at the end of a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.feed.epoch import BatchRun

__all__ = ["EqualRun", "FilledRun"]

_Got = tuple[dict[str, Any], int, int] | None


class Answer(Protocol):
    """Result of a collective call that may still be in progress."""

    def done(self) -> bool:
        """True if `wait` would not wait."""

    def wait(self) -> bool:
        """Return the result."""


class _Wrapped:
    """Base class of runs that take their batches from another run. Has the same interface as the native run."""

    def __init__(self, run: BatchRun) -> None:
        self._run = run

    def timing(self) -> dict[str, float]:
        """Return the times of the run."""
        return self._run.timing()

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the numbers of skipped and substituted samples, and the first errors."""
        return self._run.error_counts()

    def close(self) -> None:
        """End the run."""
        self._run.close()


class FilledRun(_Wrapped):
    """Leaves out each batch with fewer than `min_rows` samples over all ranks. The cursors of the run must count
    samples.
    """

    def __init__(self, run: BatchRun, cursor: int, min_rows: int) -> None:
        super().__init__(run)
        self._cursor, self._min_rows = cursor, min_rows

    def next(self) -> _Got:
        """Return the next batch, or None after the last."""
        while (got := self._run.next()) is not None:
            rows, self._cursor = got[2] - self._cursor, got[2]
            if rows >= self._min_rows:
                return got
        return None

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        return self._run.is_ready()


class EqualRun(_Wrapped):
    """Returns a batch only if every rank has one. Before this rank returns a batch, it reads the next one. While the
    consumer works, the ranks exchange whether each rank has a next batch.
    """

    def __init__(self, run: BatchRun, exchange: Callable[[bool], Answer]) -> None:
        """`exchange(mine)` starts a collective call, whose result is true if `mine` is true on all ranks."""
        super().__init__(run)
        self._exchange = exchange
        self._held: _Got = None
        self._error: Exception | None = None
        self._all_have: Answer | None = None
        self._is_exhausted = False

    def next(self) -> _Got:
        """Return the next batch, or None as soon as one rank has no further batch."""
        if self._all_have is None:
            self._all_have = self._read()
        if self._is_exhausted or not self._all_have.wait():
            self._is_exhausted, self._held = True, None
            return None
        if self._error is not None:
            raise self._error
        held = self._held
        self._all_have = self._read()
        return held

    def _read(self) -> Answer:
        """Read the next batch. If the run raises an error, store it until this batch is requested, so that the other
        ranks do not wait for this rank.
        """
        try:
            self._held = self._run.next()
        except Exception as error:
            self._held, self._error = None, error
        return self._exchange(self._held is not None or self._error is not None)

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        return self._all_have is not None and self._all_have.done() and self._run.is_ready()
