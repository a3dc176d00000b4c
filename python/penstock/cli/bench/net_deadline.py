# SPDX-License-Identifier: Apache-2.0
"""Time limit of a rank that an outer launcher has started.

The rank can be blocked in a library, where no exception reaches it. Therefore, the time limit ends the process.
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
def limited(rank: int, limit_s: float) -> Iterator[Callable[[str], None]]:
    """Context manager: if the block takes longer than `limit_s`, print an error that names the current step of the
    rank, and end this process. Yields a function that sets the current step.
    """
    from penstock.cli.app import print_error

    doing = "starting"

    def on_stage(text: str) -> None:
        nonlocal doing
        doing = text

    def end() -> None:
        error = Deadline(
            f"rank {rank}: still {doing} after the limit of {limit_s:g} s",
            limit_s=limit_s,
            hint="compare the output of all ranks: the late rank prints a different step, or nothing",
        )
        os._exit(print_error(error))

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield on_stage
    finally:
        timer.cancel()
