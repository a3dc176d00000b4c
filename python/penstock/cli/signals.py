# SPDX-License-Identifier: Apache-2.0
"""Signal handling of commands: SIGINT and SIGTERM both stop a command cleanly, with different exit codes.

Python runs signal handlers only in the main thread and between two bytecodes, and thus never while that thread waits
inside torch, MPI or a file system. A thread in this module receives each signal immediately, and ends the process if
the main thread does not handle the signal in time.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import Interrupted, Terminated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import NoReturn

__all__ = ["TerminationSignal", "before_end", "end", "end_at_once", "listening", "signal_exit_code", "stopped"]

# No native Penstock code runs for `_GRACE_S` in the main thread. The sum of these two constants is well below the 10 s
# that container runtimes allow between SIGTERM and SIGKILL (Slurm and Kubernetes allow 30 s).
_GRACE_S = 4.0
_CALLBACKS_S = 3.0
# A scheduler can send the same signal to the process group and to the process. Therefore, two signals within this time
# count as one signal.
_SECOND_S = 1.0
_HANDLED = 0x80


class TerminationSignal(KeyboardInterrupt):
    """Raised on SIGTERM. Like KeyboardInterrupt, this is not a `PenstockError`, so code that catches errors and
    continues does not catch it.
    """

    signal_name = "SIGTERM"


def _terminated(number: int, _frame: FrameType | None) -> None:
    # Restore the default handler, so that a second signal ends the process immediately.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _Watch.handled(number)
    raise TerminationSignal("terminated")


def _interrupted(number: int, _frame: FrameType | None) -> None:
    _Watch.handled(number)
    raise KeyboardInterrupt


_HANDLERS: dict[int, Callable[[int, FrameType | None], None]] = {
    signal.SIGTERM: _terminated,
    signal.SIGINT: _interrupted,
}
_KINDS: dict[int, type[Interrupted]] = {signal.SIGTERM: Terminated, signal.SIGINT: Interrupted}


class _Watch:
    """Thread that watches signals. It receives the number of each signal on a pipe, and receives the number again when
    the main thread handles the signal.

    If a test or another program calls a command in its own process and has already set a wakeup descriptor, no watch is
    created.
    """

    current: ClassVar[_Watch | None] = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self.callbacks: list[Callable[[str], object]] = []
        self.last: int | None = None
        thread = threading.Thread(target=self._run, name="penstock-signals", daemon=True)
        # The thread inherits this mask, and so blocks all signals. Therefore, callers of `sigwait` (the emulator) need
        # to block a signal only in the main thread.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._writing)

    @classmethod
    def handled(cls, number: int) -> None:
        watch = cls.current
        if watch is not None and watch._pid == os.getpid():  # noqa: SLF001 - its own
            with suppress(OSError):
                os.write(watch._writing, bytes([number | _HANDLED]))  # noqa: SLF001

    def _run(self) -> None:
        pending: dict[int, float] = {}
        while True:
            limit_s = min(pending.values()) + _GRACE_S - time.monotonic() if pending else None
            if not select.select([self._reading], [], [], None if limit_s is None else max(limit_s, 0.0))[0]:
                for number in list(pending):
                    # Other code, such as the submission of a job, has temporarily replaced the handler, and handles the
                    # signals itself.
                    if signal.getsignal(number) is not _HANDLERS[number]:
                        del pending[number]
                if pending:
                    self._end(min(pending, key=lambda number: pending[number]), f"no answer within {_GRACE_S:.0f} s")
                continue
            received = os.read(self._reading, 64)
            if not received:
                os.close(self._reading)
                return
            for byte in received:
                number = byte & ~_HANDLED
                if number not in _HANDLERS:
                    continue
                if byte & _HANDLED:
                    pending.pop(number, None)
                    continue
                self.last = number
                now = time.monotonic()
                if pending and now - min(pending.values()) > _SECOND_S:
                    self._end(number, "no answer to the first signal")
                pending.setdefault(number, now)

    def _end(self, number: int, why: str) -> NoReturn:
        """End the process, because its main thread waits in native code."""
        thread = threading.Thread(target=self._call, args=(signal.Signals(number).name,), daemon=True)
        thread.start()
        thread.join(_CALLBACKS_S)
        kind = _KINDS[number]
        with suppress(OSError):  # not through sys.stderr, whose lock the main thread may hold
            os.write(2, f"{kind.code}: the command was waiting in native code: {why}\n".encode())
        os._exit(kind.exit_code)

    def _call(self, name: str) -> None:
        for callback in self.callbacks:
            with suppress(Exception):
                callback(name)


def _forget_parent() -> None:
    """Remove the watch in a forked child, which must not report its signals to the parent's pipe."""
    if _Watch.current is not None:
        signal.set_wakeup_fd(-1)
        _Watch.current = None


os.register_at_fork(after_in_child=_forget_parent)


@contextmanager
def listening() -> Iterator[None]:
    """Let SIGTERM (from a scheduler's time limit, or `kill`) stop a command in the same way as Ctrl-C. If the process
    ignores SIGTERM, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    defaults: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    ours = [number for number, default in defaults.items() if signal.getsignal(number) is default]
    for number in ours:
        signal.signal(number, _HANDLERS[number])
    other = signal.set_wakeup_fd(-1)
    if other == -1:
        _Watch.current = _Watch()
    else:
        signal.set_wakeup_fd(other)
    try:
        yield
    finally:
        if _Watch.current is not None:
            watch, _Watch.current = _Watch.current, None
            watch.close()
        for number in ours:
            signal.signal(number, defaults[number])


def before_end(callback: Callable[[str], object]) -> None:
    """Register a callback. If the main thread does not respond to a signal, this module ends the process. Before that,
    it calls the callback with the signal's name. All callbacks together may take 3 s.
    """
    if _Watch.current is not None:
        _Watch.current.callbacks.append(callback)


_ends_at_once = False


def end_at_once() -> None:
    """Make `end` skip the interpreter's shutdown, during which torch's threads may abort, or wait for other ranks."""
    global _ends_at_once
    _ends_at_once = True


def end(code: int) -> NoReturn:
    """Exit with this code."""
    if _ends_at_once:
        from penstock.train.worker import exit_now

        exit_now(code)
    sys.exit(code)


def signal_exit_code() -> int | None:
    """Return the exit code for the last signal that this process received; None if it received none."""
    last = None if _Watch.current is None else _Watch.current.last
    return None if last is None else _KINDS[last].exit_code


def stopped(error: BaseException) -> tuple[str, int]:
    """Return the error code and the exit code of an interrupted command. If SIGTERM stopped this process or the process
    that reported `error`, they are the codes of Terminated. Otherwise, they are the codes of Interrupted.
    """
    kind = Terminated if isinstance(error, TerminationSignal | Terminated) else Interrupted
    return kind.code, kind.exit_code
