# SPDX-License-Identifier: Apache-2.0
"""Combines the failures of many nodes into one error: the first failure, its node, and the number of other failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RankFailed, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Exit

__all__ = ["describe", "raise_for_failures"]

_MAX_STDERR_CHARS = 300


def describe(ended: Exit) -> str:
    """Describe one rank's failure in one line, which starts with the node's name."""
    if ended.fault is not None:
        return str(ended.fault)
    lines = [line.strip() for line in ended.err.decode(errors="replace").strip().splitlines()]
    # Penstock's own commands print a hint after the error, so the last line is not always the error.
    lines = [line for line in lines if line.startswith("error[")] or [
        line for line in lines if not line.startswith("hint:")
    ]
    return f"{ended.node}: exit code {ended.code}{f': {lines[-1][:_MAX_STDERR_CHARS]}' if lines else ''}"


def raise_for_failures(exits: Sequence[Exit], what: str) -> None:
    """Return if all ranks ended with code 0, else raise the first failure.

    Raises:
        PenstockError: The first fault of the launcher; RankFailed if a command ended with a nonzero code.
    """
    bad = [ended for ended in exits if ended.fault is not None or ended.code != 0]
    if not bad:
        return
    # Report an unreachable node first, because it may be the reason why commands failed.
    first = min(bad, key=lambda ended: ended.fault is None)
    more = f" (and {len(bad) - 1} more of {len(exits)})" if len(bad) > 1 else ""
    text = f"{what}: {describe(first)}{more}"
    if first.fault is None:
        raise RankFailed(text, rank=first.rank, where=first.node)
    if not isinstance(first.fault, PenstockError):
        raise Unreachable(text, where=first.node) from first.fault
    error = type(first.fault)(text, hint=first.fault.hint, where=first.node)
    raise error from first.fault
