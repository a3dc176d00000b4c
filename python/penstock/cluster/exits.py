# SPDX-License-Identifier: Apache-2.0
"""Combines the failures of many nodes into one error: the first failure, its node, and the number of other failures."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from penstock.errors import Deadline, Interrupted, PenstockError, RankFailed, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Exit

__all__ = ["describe", "first_failure", "killed_by", "raise_for_failures"]

_MAX_CHARS = 300
# Programs without stderr often print more lines after the error: LAMMPS prints the input line.
_STDOUT_LINES = 3


def describe(ended: Exit) -> str:
    """Describe one rank's failure in one line, which starts with the node's name."""
    if ended.fault is not None:
        return str(ended.fault)
    lines = _lines(ended.err)
    # Penstock's own commands print a hint after the error, so the last line is not always the error.
    lines = [line for line in lines if line.startswith("error[")] or [
        line for line in lines if not line.startswith("hint:")
    ]
    number = killed_by(ended)
    end = f"killed by signal {number} ({number.name})" if number else f"exit code {ended.code}"
    if not lines and not number:
        lines = ["; ".join(_lines(ended.out)[-_STDOUT_LINES:])]
    return f"{ended.node}: {end}{f': {lines[-1][:_MAX_CHARS]}' if lines and lines[-1] else ''}"


def killed_by(ended: Exit) -> signal.Signals | None:
    """Return the signal that ended a rank's command, or None if the command ended otherwise."""
    try:
        return signal.Signals(ended.code - 128) if ended.code is not None else None
    except ValueError:
        return None


def first_failure(exits: Sequence[Exit]) -> Exit | None:
    """Return the failed rank that explains the others' failures best, or None if all ranks ended with code 0.

    An unreachable node may be the reason why commands fail. A rank that was stopped, by its time limit or because
    another rank failed, explains nothing.
    """

    def order(ended: Exit) -> int:
        if isinstance(ended.fault, Deadline | Interrupted):
            return 3
        if ended.fault is not None:
            return 0
        return 1 if killed_by(ended) else 2

    return min((ended for ended in exits if ended.fault is not None or ended.code != 0), key=order, default=None)


def _lines(text: bytes) -> list[str]:
    return [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]


def raise_for_failures(exits: Sequence[Exit], what: str) -> None:
    """Return if all ranks ended with code 0, else raise the first failure.

    Raises:
        PenstockError: The first fault of the launcher; RankFailed if a command ended with a nonzero code.
    """
    first = first_failure(exits)
    if first is None:
        return
    bad = [ended for ended in exits if ended.fault is not None or ended.code != 0]
    more = f" (and {len(bad) - 1} more of {len(exits)})" if len(bad) > 1 else ""
    text = f"{what}: {describe(first)}{more}"
    if first.fault is None:
        raise RankFailed(text, rank=first.rank, where=first.node)
    if not isinstance(first.fault, PenstockError):
        raise Unreachable(text, where=first.node) from first.fault
    error = type(first.fault)(text, hint=first.fault.hint, where=first.node)
    raise error from first.fault
