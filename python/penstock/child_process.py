# SPDX-License-Identifier: Apache-2.0
"""Child processes that end with the `with` block that started them, even if a signal arrives while they start."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.ownership import end_child

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["child_process", "deferred_signals"]


@contextmanager
def child_process(argv: Sequence[str], *, grace_s: float, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child process. If the child still runs at the end of the block, send SIGTERM, and SIGKILL after `grace_s`
    seconds. If the child leads a process group (`start_new_session`, `process_group`), the signals go to the whole
    group. The options are passed to `Popen`.

    Raises:
        OSError: The command could not be started.
    """
    child = None
    try:
        with deferred_signals():
            child = subprocess.Popen(list(argv), **options)
        yield child
    finally:
        if child is not None:
            end_child(child, grace_s)


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Defer SIGINT and SIGTERM to the end of the block, so that a process started in the block is recorded before the
    signal is handled. Yields the list of the signals received so far; a long block should end soon after the first.
    """
    came: list[int] = []
    # Only the main thread runs signal handlers, and only it can set them.
    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    held = {number: handler for number in ours if callable(handler := signal.getsignal(number))}
    for number in held:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield came
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
