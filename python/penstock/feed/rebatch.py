# SPDX-License-Identifier: Apache-2.0
"""`decode(fn, rebatch=True)`: forms batches of equal size from the outputs of functions.

A rank reads the same samples as without rebatching. The outputs of these samples are joined in order and divided into
batches. Therefore, the number of batches differs between ranks, and is known only at the end of a pass.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MapFailed
from penstock.feed.map_functions import FunctionFailed, difference
from penstock.feed.map_step import MapRun
from penstock.feed.rebatched_rank_state import FUNCTION_HINT, Place

if TYPE_CHECKING:
    from penstock import _native
    from penstock.feed.first_epoch import FirstEpochRun
    from penstock.feed.loader import BaseLoader
    from penstock.feed.map_pool import MapTask

__all__ = ["RebatchRun"]


@dataclass(slots=True)
class _Chunk:
    """Outputs of a rank's slice of a source batch."""

    task: MapTask
    columns: dict[str, Any]
    counts: list[int]
    total: int
    taken: int = 0

    def place(self) -> tuple[int, int]:
        """Return the row of the next output, and the number of outputs of this row that were taken."""
        ends = accumulate(self.counts)
        return next(
            (row, self.taken - end + count)
            for row, (count, end) in enumerate(zip(self.counts, ends, strict=True))
            if end > self.taken
        )


class RebatchRun(MapRun):
    """A run whose batches all have the same number of outputs, except the last batch."""

    def __init__(self, loader: BaseLoader[Any], run: _native.Run | FirstEpochRun, epoch: int, place: Place) -> None:
        super().__init__(loader, run, epoch, place.start, place.row)
        self._size = loader.global_batch // loader.world
        self._chunks: deque[_Chunk] = deque()
        self._ready = 0
        self._skip_outputs = place.outputs
        # Number of samples without output so far. None as soon as a sample had an output, and after a resume.
        self._without_output: int | None = None if any(place) else 0

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch in order, or None after the last."""
        while self._ready < self._size:
            got = self._next_results()
            if got is None:
                break
            self._add(*got)
        if self._without_output:
            raise MapFailed(
                f"decode: fn returned no output for any of the {self._without_output:,} samples of epoch {self._pass.epoch} on "
                f"this rank{self._after_errors()}",
                where="decode",
            )
        rows = min(self._ready, self._size)
        if not rows or (rows < self._size and self._loader.tail == "drop"):
            return None
        return self._take(rows)

    def _add(self, task: MapTask, results: Any) -> None:
        counts = [1] * len(task.positions) if results.counts is None else results.counts
        chunk = _Chunk(task, {**results.arrays, **results.lists}, counts, sum(counts))
        skip, self._skip_outputs = self._skip_outputs, 0
        if skip and 0 < sum(counts[:1]) <= skip:
            raise ConfigError(
                f"state: {skip:,} outputs of the sample at position {task.positions[0]:,} were delivered before, but "
                f"fn now returns only {counts[0]:,} outputs for this sample",
                where="state",
                hint=FUNCTION_HINT,
            )
        chunk.taken = min(skip, sum(counts[:1]))
        if chunk.total:
            self._without_output = None
        elif self._without_output is not None:
            dataset = self._loader.dataset
            # Do not count positions beyond the last sample: they repeat samples, and functions do not receive them.
            end = dataset.samples if dataset.is_counted else math.inf
            self._without_output += sum(position < end for position in task.positions)
        if chunk.taken < chunk.total:
            self._chunks.append(chunk)
            self._ready += chunk.total - chunk.taken

    def _take(self, rows: int) -> tuple[dict[str, Any], int, int]:
        self._ready -= rows
        pieces: list[dict[str, Any]] = []
        left = rows
        while left:
            chunk = self._chunks[0]
            end = min(chunk.total, chunk.taken + left)
            piece = {name: column[chunk.taken : end] for name, column in chunk.columns.items()}
            if pieces and (why := _difference(piece, pieces[0])):
                row, _ = chunk.place()
                raise self._failed(FunctionFailed(row, why, ""), chunk.task)
            pieces.append(piece)
            left -= end - chunk.taken
            chunk.taken = end
            if end == chunk.total:
                self._chunks.popleft()
                place = Place(chunk.task.cursor)
            else:
                row, outputs = chunk.place()
                place = Place(chunk.task.start, chunk.task.first_row + row, outputs)
        return _joined(pieces), rows, place.cursor()

    def is_ready(self) -> bool:
        """True if `next` would not wait."""
        return self._ready >= self._size


def _difference(piece: dict[str, Any], first: dict[str, Any]) -> str | None:
    """Describe how the columns of a piece differ from the columns of earlier pieces; None if the pieces can be
    joined.
    """
    if piece.keys() != first.keys():
        return f"fn returned the fields {', '.join(piece)}, but earlier the fields {', '.join(first)}"
    for name, column in piece.items():
        have, want = (_kind(each) for each in (column, first[name]))
        if have != want:
            # The kind of a column is "a list", or a dtype and a shape.
            return difference(name, have, want, is_dtype=have.partition(" ")[2] == want.partition(" ")[2])
    return None


def _kind(column: Any) -> str:
    return "a list" if isinstance(column, list) else f"{column.dtype} {list(column.shape[1:])}"


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the pieces of a column. A single piece is not copied."""
    import numpy as np

    if len(pieces) == 1:
        return pieces[0]
    return {
        name: [item for piece in pieces for item in piece[name]]
        if isinstance(column, list)
        else np.concatenate([piece[name] for piece in pieces])
        for name, column in pieces[0].items()
    }
