# SPDX-License-Identifier: Apache-2.0
"""Time limits of a rank that an outer launcher has started.

The rank can be blocked in a library, where no exception reaches it. Therefore, a time limit ends the process.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["limited"]


@contextmanager
def limited(rank: int, limit_s: float, join_s: float | None = None) -> Iterator[Callable[[str], None]]:
    """Context manager: if the block takes longer than `limit_s`, print an error that names the current step of the
    rank, and end this process. Yields a function that sets the current step.

    Args:
        join_s: Time limit for this rank to join the others, if the library has none.
    """
    from penstock.bench.net.rank import JOINING
    from penstock.cli.app import print_error

    doing = JOINING

    def on_stage(text: str) -> None:
        nonlocal doing
        doing = text

    def end(limit_s: float, hint: str) -> None:
        error = Deadline(f"rank {rank}: still {doing} after the limit of {limit_s:g} s", limit_s=limit_s, hint=hint)
        os._exit(print_error(error))

    def end_join(limit_s: float) -> None:
        if doing == JOINING:
            end(limit_s, "check that the launcher has started every rank, and that their nodes can reach each other")

    timers = [
        threading.Timer(
            limit_s,
            end,
            (limit_s, "compare the output of all ranks: the late rank prints a different step, or nothing"),
        )
    ]
    if join_s is not None:
        timers.append(threading.Timer(join_s, end_join, (join_s,)))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield on_stage
    finally:
        for timer in timers:
            timer.cancel()
