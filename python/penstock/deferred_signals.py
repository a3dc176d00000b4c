# SPDX-License-Identifier: Apache-2.0
"""Deferred signals: a block that SIGINT and SIGTERM do not interrupt, so that a process started in it is always recorded."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["deferred_signals"]


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block."""
    came: list[int] = []
    # Only the main thread is interrupted, and only it may set handlers.
    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    held = {number: handler for number in ours if callable(handler := signal.getsignal(number))}
    for number in held:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
