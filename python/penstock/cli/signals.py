# SPDX-License-Identifier: Apache-2.0
"""What a signal means to a command: SIGINT and SIGTERM both stop it in order, and the exit code tells them apart."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from penstock.errors import Interrupted, Terminated

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Ended", "listen", "stopped"]


class Ended(KeyboardInterrupt):
    """SIGTERM. As Python's own interrupt, no `PenstockError`: what goes on after an error must not go on after this."""


def _terminated(_number: int, _frame: FrameType | None) -> None:
    # A second one finds the default: whoever insists gets what he wants.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Ended("terminated")


def listen() -> None:
    """Lets SIGTERM (a scheduler's end of time, `kill`) stop a command as Ctrl-C does, where nobody ignores it."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def stopped(error: BaseException) -> tuple[str, int]:
    """The word for it and the exit code, by this process's own signal or by the error of another that was so ended."""
    kind = Terminated if isinstance(error, Ended | Terminated) else Interrupted
    return kind.code, kind.exit_code
