# SPDX-License-Identifier: Apache-2.0
"""Starts the observed program, adopts its orphans, and ends it only on request. The program keeps its own streams."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.child_process import deferred_signals
from penstock.errors import NotFound, SystemFault
from penstock.ownership import signal_process, start_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ObservedProgram", "ptrace_scope"]

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def ptrace_scope() -> int:
    """Kernel setting that states which processes may read the memory of a process: 0 = all processes of the same user,
    1 = ancestors, 2 = root, 3 = none.
    """
    try:
        return int(_SCOPE.read_text())
    except (OSError, ValueError):
        return 0


class ObservedProgram:
    """A running program. A program that daemonises stays observed, because this process adopts its orphans.

    Raises:
        NotFound: The command does not exist.
        SystemFault: The command cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        observer = os.getpid()

        def allow_reading() -> None:
            # Yama lets only ancestors read a process. py-spy is a sibling of the program, so it needs permission.
            libc.prctl(_PR_SET_PTRACER, observer, 0, 0, 0)

        try:
            with deferred_signals():
                # `preexec_fn` sets the permission before the program runs. This is safe, because this process has no
                # other thread.
                self.child = subprocess.Popen(list(argv), preexec_fn=allow_reading)
        except OSError as error:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            if not isinstance(error, FileNotFoundError):
                raise SystemFault(
                    f"{argv[0]}: the command cannot be started: {error.strerror}", hint="check that it is executable"
                ) from error
            raise NotFound(
                f"{argv[0]}: the command does not exist",
                hint="give a command that can be run, such as `python train.py`",
            ) from error
        self.pid = self.child.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command itself; negative for a signal; None while it runs."""
        return self.child.poll()

    def reap_orphans(self, known: Iterable[int]) -> None:
        """Reap the adopted processes that have ended, so that they do not stay as zombies.

        Args:
            known: Pids of children that other code reaps.
        """
        spared = {self.pid, *known}
        with suppress(OSError):
            for tid in os.listdir("/proc/self/task"):
                for child in Path(f"/proc/self/task/{tid}/children").read_text().split():
                    if int(child) not in spared:
                        with suppress(ChildProcessError):
                            os.waitpid(int(child), os.WNOHANG)

    def forward(self, number: int) -> None:
        """Send a signal to the program, unless the terminal has sent it to the whole foreground group already."""
        if number == signal.SIGINT and _is_foreground():
            return
        with suppress(ProcessLookupError):
            self.child.send_signal(number)

    def stop(self, others: dict[int, int], grace_s: float) -> None:
        """End the program: SIGTERM, and SIGKILL after the grace period. Its remaining descendants get the same signals.

        Args:
            others: Start time of each descendant by pid, as proof that a pid was not reused.
        """
        with suppress(ProcessLookupError):
            self.child.terminate()
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + grace_s
            while time.monotonic() < until:
                alive = [pid for pid, started in others.items() if start_time(pid) == started]
                if self.child.poll() is not None and not alive:
                    return
                if self.child.poll() is not None or number == signal.SIGKILL:
                    for pid in alive:
                        signal_process(pid, number, lambda pid: start_time(pid) == others[pid])
                    if number == signal.SIGKILL:
                        self.child.kill()
                self.reap_orphans(())
                time.sleep(0.05)


def _is_foreground() -> bool:
    """Whether Ctrl-C in the terminal reaches this process's group, to which the program belongs."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
