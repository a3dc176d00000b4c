# SPDX-License-Identifier: Apache-2.0
"""Finds and ends processes that have Penstock's mark, and process groups of children. Never signals a reused pid."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "end_child",
    "end_processes",
    "find_processes",
    "has_ended",
    "has_mark",
    "signal_child",
    "signal_on_parent_death",
    "signal_process",
    "start_time",
    "wait_unreaped",
]

_LOOK_S = 0.05
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here: code between fork and exec must not import or allocate much
# Maximum wait for the end of a killed child. After this time, the function stops waiting for a child that hangs in the
# kernel.
_REAP_S = 10.0


def start_time(pid: int) -> int:
    """Start time of a process in clock ticks; 0 if the process has ended. Pid and start time identify a process
    uniquely.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def has_mark(pid: int, is_mark: Callable[[bytes], bool]) -> bool:
    """Whether a process belongs to this user and has Penstock's mark: an environment variable that `is_mark`
    accepts.
    """
    try:
        with open(f"/proc/{pid}/status") as file:
            user = next(line.split()[1] for line in file if line.startswith("Uid:"))
        with open(f"/proc/{pid}/environ", "rb") as file:
            return int(user) == os.getuid() and any(map(is_mark, file.read().split(b"\0"))) and start_time(pid) > 0
    except (OSError, StopIteration):
        return False


def find_processes(is_mark: Callable[[bytes], bool]) -> dict[int, str]:
    """Find live processes of this user with Penstock's mark; return their command lines by pid."""
    found = {}
    for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
        if pid != os.getpid() and has_mark(pid, is_mark):
            with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                found[pid] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return found


def signal_process(pid: int, number: int, is_ours: Callable[[int], bool]) -> bool:
    """Send a signal to a process that is not a child of this process; return whether it was sent.

    The function opens a pidfd before it calls `is_ours`. If the pid is reused later, the pidfd still refers to the old
    process, which has ended, and the signal has no effect.
    """
    fd = -1
    if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return False
    try:
        if pid < 2 or not is_ours(pid):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)  # before Linux 5.3 or Python 3.9 there is a short gap between proof and signal
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def end_processes(is_mark: Callable[[bytes], bool], grace_s: float) -> dict[int, str]:
    """Terminate the processes with Penstock's mark, then kill the remaining ones; return the command lines of all these
    processes, by pid.
    """
    ended: dict[int, str] = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + grace_s
        while True:
            # Search again each time, because a process may have started another one since the last search.
            now = find_processes(is_mark)
            ended.update(now)
            for pid in now:
                signal_process(pid, number, lambda pid: has_mark(pid, is_mark))
            if not now:
                return ended
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_S)
    return ended


def has_ended(child: subprocess.Popen[Any]) -> bool:
    """Whether a child has ended. The child is not reaped, so that its pid and its process group cannot be reused
    yet.
    """
    if child.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def wait_unreaped(child: subprocess.Popen[Any], limit_s: float) -> bool:
    """Wait until a child has ended, without reaping it; return False if it has not ended within the limit."""
    until, pause_s = time.monotonic() + limit_s, 0.0005
    while not has_ended(child):
        left = until - time.monotonic()
        if left <= 0:
            return False
        pause_s = min(2 * pause_s, left, _LOOK_S)
        time.sleep(pause_s)
    return True


def signal_child(child: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a child, or to its process group if the child leads a group.

    Proof: the child is not reaped yet, so its pid cannot have been reused.
    """
    if child.returncode is not None:
        return
    # ChildProcessError from waitid: other code has reaped the child. The pid may be reused, so no signal is sent.
    with suppress(ChildProcessError, ProcessLookupError, PermissionError):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        leads_group = os.getpgid(child.pid) == child.pid
        (os.killpg if leads_group else os.kill)(child.pid, number)


def signal_on_parent_death(number: int) -> None:
    """Request a signal for this process when the thread that started it ends (PR_SET_PDEATHSIG of Linux; elsewhere,
    nothing happens). Safe between fork and exec.
    """
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def end_child(child: subprocess.Popen[Any], grace_s: float) -> None:
    """End a child, and its process group if it leads one: SIGTERM, SIGKILL after the grace period, then reap it."""
    signal_child(child, signal.SIGTERM)
    wait_unreaped(child, grace_s)
    signal_child(child, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_S)
