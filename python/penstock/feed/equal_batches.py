# SPDX-License-Identifier: Apache-2.0
"""Runs that give all ranks the same number of batches, none of them empty, as collectives of a process group require.

`FilledRun` leaves out a batch with fewer samples than ranks. `EqualRun` ends the pass on all ranks when the first rank
has no more batches. It is for datasets in which a rank learns its number of batches only at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.feed.epoch import BatchRun

__all__ = ["EqualRun", "FilledRun"]

_Got = tuple[dict[str, Any], int, int] | None


class Answer(Protocol):
    """Result of a collective call that is under way."""

    def done(self) -> bool:
        """True if `wait` would not wait."""

    def wait(self) -> bool:
        """Return the result."""


class _Wrapped:
    """A run over another one. Has the same interface as the native run."""

    def __init__(self, run: BatchRun) -> None:
        self._run = run

    def timing(self) -> dict[str, float]:
        """Return the times of the run."""
        return self._run.timing()

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the errors that the run skipped or substituted."""
        return self._run.error_counts()

    def close(self) -> None:
        """End the run."""
        self._run.close()


class FilledRun(_Wrapped):
    """Leaves out each batch with fewer than `min_rows` samples over all ranks. Cursors must count samples."""

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
    """Returns a batch if every rank has one. Before a batch is returned, this rank reads its next batch. While the
    consumer works, the ranks exchange whether each has a next batch.
    """

    def __init__(self, run: BatchRun, exchange: Callable[[bool], Answer]) -> None:
        """`exchange(mine)` starts a collective call whose answer is true if `mine` is true on all ranks."""
        super().__init__(run)
        self._exchange = exchange
        self._held: _Got = None
        self._error: Exception | None = None
        self._all_have: Answer | None = None
        self._is_exhausted = False

    def next(self) -> _Got:
        """Return the next batch, or None after the last one that all ranks have."""
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
        """Read the next batch. An error is stored until this batch is requested, so that the other ranks do not wait
        for this rank.
        """
        try:
            self._held = self._run.next()
        except Exception as error:
            self._held, self._error = None, error
        return self._exchange(self._held is not None or self._error is not None)

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        return self._all_have is not None and self._all_have.done() and self._run.is_ready()
