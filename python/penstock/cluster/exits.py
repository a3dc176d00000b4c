# SPDX-License-Identifier: Apache-2.0
"""Many nodes' exits as one error: the first that went wrong by name, and how many more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RankFailed, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Exit

__all__ = ["check", "told"]

_SAID_BYTES = 300


def told(ended: Exit) -> str:
    """One rank's trouble in a line, its node's name first."""
    if ended.fault is not None:
        return str(ended.fault)
    said = [line.strip() for line in ended.err.decode(errors="replace").strip().splitlines()]
    # Penstock's own commands end with a hint; what went wrong stands before it.
    said = [line for line in said if line.startswith("error[")] or [
        line for line in said if not line.startswith("hint:")
    ]
    return f"{ended.node}: exit code {ended.code}{f': {said[-1][:_SAID_BYTES]}' if said else ''}"


def check(exits: Sequence[Exit], what: str) -> None:
    """Nothing, where all ended well.

    Raises:
        PenstockError: The first fault, as its launcher put it; RankFailed where a command ended with another code than 0.
    """
    bad = [ended for ended in exits if ended.fault is not None or ended.code != 0]
    if not bad:
        return
    # A node that cannot be reached says more than a command that failed because of it.
    first = min(bad, key=lambda ended: ended.fault is None)
    more = f" (and {len(bad) - 1} more of {len(exits)})" if len(bad) > 1 else ""
    text = f"{what}: {told(first)}{more}"
    if first.fault is None:
        raise RankFailed(text, rank=first.rank, where=first.node)
    if not isinstance(first.fault, PenstockError):
        raise Unreachable(text, where=first.node) from first.fault
    error = type(first.fault)(text, hint=first.fault.hint, where=first.node)
    raise error from first.fault
