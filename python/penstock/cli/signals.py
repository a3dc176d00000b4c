# SPDX-License-Identifier: Apache-2.0
"""Signals of a command: SIGINT and SIGTERM both stop it in order; the exit code tells which one came.

Python runs signal handlers in the main thread, between two bytecodes: never while that thread waits inside torch, MPI or a
file system. A thread here receives each signal at once, and ends the process if the main thread does not answer.
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

# Longer than any of our work that keeps the main thread out of Python. Together with the callbacks' limit it is well
# below 10 s, which container runtimes allow between SIGTERM and SIGKILL (Slurm and Kubernetes allow 30 s).
_GRACE_S = 4.0
_CALLBACKS_S = 3.0
# A scheduler may send a signal to the group and to the process: two within this time are one.
_SECOND_S = 1.0
_HANDLED = 0x80


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM. Like Python's own interrupt it is not a `PenstockError`: code that continues after an error must not
    continue after this.
    """

    signal_name = "SIGTERM"


def _terminated(number: int, _frame: FrameType | None) -> None:
    # The default handler is back for a second signal, which ends the process at once.
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
    """The thread, and the pipe on which it receives the number of each signal, and the number again once it was
    handled.

    If a test or another program calls a command in its own process and already has a wakeup descriptor, there is no
    watch.
    """

    current: ClassVar[_Watch | None] = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self.callbacks: list[Callable[[str], object]] = []
        self.last: int | None = None
        thread = threading.Thread(target=self._run, name="penstock-signals", daemon=True)
        # It inherits this: who waits for a signal with `sigwait` (the emulator) blocks it in the main thread only.
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
                    # Another handler, for a while (a job's submission): it answers for what comes meanwhile.
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
        """Ends the process for a main thread that waits in native code."""
        thread = threading.Thread(target=self._call, args=(signal.Signals(number).name,), daemon=True)
        thread.start()
        thread.join(_CALLBACKS_S)
        kind = _KINDS[number]
        with suppress(OSError):  # not by sys.stderr, whose lock the main thread may hold
            os.write(2, f"{kind.code}: the command was waiting in native code: {why}\n".encode())
        os._exit(kind.exit_code)

    def _call(self, name: str) -> None:
        for callback in self.callbacks:
            with suppress(Exception):
                callback(name)


def _forget_parent() -> None:
    """In a forked child: its signals are not its parent's."""
    if _Watch.current is not None:
        signal.set_wakeup_fd(-1)
        _Watch.current = None


os.register_at_fork(after_in_child=_forget_parent)


@contextmanager
def listening() -> Iterator[None]:
    """Lets SIGTERM (a scheduler's end of time, `kill`) stop a command as Ctrl-C does, unless the signal is ignored."""
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
    """Has `callback` called with the signal's name before a process that does not answer is ended; all have 3 s together."""
    if _Watch.current is not None:
        _Watch.current.callbacks.append(callback)


_ends_at_once = False


def end_at_once() -> None:
    """From now on `end` leaves out the interpreter's teardown, in which threads of torch wait for other ranks or abort."""
    global _ends_at_once
    _ends_at_once = True


def end(code: int) -> NoReturn:
    """Exits with this code."""
    if _ends_at_once:
        from penstock.train.worker import exit_now

        exit_now(code)
    sys.exit(code)


def signal_exit_code() -> int | None:
    """The exit code of the last signal that this process received; None where it received none."""
    last = None if _Watch.current is None else _Watch.current.last
    return None if last is None else _KINDS[last].exit_code


def stopped(error: BaseException) -> tuple[str, int]:
    """The word for it and the exit code, by this process's own signal or by the error of another that was so ended."""
    kind = Terminated if isinstance(error, TerminationSignal | Terminated) else Interrupted
    return kind.code, kind.exit_code
