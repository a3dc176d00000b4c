# SPDX-License-Identifier: Apache-2.0
"""Samples the Python stacks of processes with py-spy, without pausing them. Parses its raw format."""

from __future__ import annotations

import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from penstock.explain.frame_rules import Frame
from penstock.explain.proc_files import parse_status

__all__ = ["SourceLines", "StackSampler", "ThreadStack", "find_sampler", "parse_raw"]

_FRAME = re.compile(r"^(.*) \((.*?)(?::(\d+))?\)$")
_THREAD = re.compile(r"^thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?$")
_PROCESS = re.compile(r'^process (\d+):"')


class ThreadStack(NamedTuple):
    """One stack of one thread: outermost frame first. `tid` is 0 if Python does not record thread ids (before 3.11)."""

    tid: int
    thread: str
    frames: tuple[Frame, ...]


def parse_raw(text: str) -> Counter[ThreadStack]:
    """Parse what `py-spy record --format raw --threads` writes: the number of samples of each stack.

    Lines that do not have the form `frame;frame;... count` are skipped.
    """
    found: Counter[ThreadStack] = Counter()
    for line in text.splitlines():
        joined, _, count = line.rpartition(" ")
        if not joined or not count.isdecimal():
            continue
        tid, name, frames = 0, "", []
        for part in joined.split(";"):
            if part.startswith("thread ("):
                thread = _THREAD.match(part)
                if thread:
                    tid = 0 if thread[1].lower().startswith("0x") else int(thread[1])
                    name = thread[2] or ""
            elif not _PROCESS.match(part):
                frames.append(_frame(part))
        if frames:
            found[ThreadStack(tid, name, tuple(frames))] += int(count)
    return found


@lru_cache(maxsize=16384)
def _frame(text: str) -> Frame:
    found = _FRAME.match(text)
    return Frame(found[1], found[2], int(found[3] or 0)) if found else Frame(text, "")


def find_sampler() -> str | None:
    """Path of py-spy, which is searched beside this interpreter and then on PATH; None if py-spy is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


class SourceLines:
    """Source text of the frames of one process, read below the root folder of that process (a container has its own
    root).
    """

    def __init__(self, pid: int) -> None:
        self._root = Path(f"/proc/{pid}/root")
        self._cwd = ""
        with suppress(OSError):
            self._cwd = os.readlink(f"/proc/{pid}/cwd")
        self._lines: dict[str, list[str]] = {}

    def text_of(self, frame: Frame) -> str:
        """Text of a frame's line; empty if the source is not available."""
        lines = self._read(frame.file)
        return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""

    def around(self, frame: Frame) -> str:
        """The eight lines before a frame's line, and the three lines after it."""
        lines = self._read(frame.file)
        return "".join(lines[max(0, frame.line - 9) : frame.line + 3])

    def _read(self, file: str) -> list[str]:
        if file not in self._lines:
            path = os.path.join(self._cwd, file)
            inside = f"{self._root}{path}"
            lines = [] if file.startswith("<") else linecache.getlines(inside) or linecache.getlines(path)
            self._lines[file] = lines
        return self._lines[file]


def host_threads(pid: int) -> dict[int, int]:
    """Map the thread ids that Python records, in the pid namespace of the process, to the thread ids in this namespace.

    Empty if the process has ended, or if it is in the same namespace.
    """
    found = {}
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            numbers = parse_status(Path(f"/proc/{pid}/task/{tid}/status").read_text()).get("NSpid", "").split()
            if len(numbers) < 2:
                return {}
            found[int(numbers[-1])] = int(tid)
    return found


@dataclass(slots=True)
class _Recording:
    child: subprocess.Popen[bytes]
    pid: int
    began_s: float
    output: Path
    log: Path
    host_threads: dict[int, int]


@dataclass(slots=True)
class StackSampler:
    """Records the stacks of several processes, one py-spy for each, in chunks of a few seconds.

    If a process ends during a chunk, the chunk is kept. `cpu_s` is the CPU time of py-spy itself.
    """

    program: str
    folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="penstock-explain-")
    )
    samples: dict[int, list[tuple[float, float, Counter[ThreadStack]]]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    _running: dict[int, _Recording] = field(default_factory=dict)
    _number: int = 0

    def is_recording(self, pid: int) -> bool:
        """Whether a chunk of this process is being recorded."""
        return pid in self._running

    def pids(self) -> set[int]:
        """Pids of the observers themselves."""
        return {recording.child.pid for recording in self._running.values()}

    def start(self, pid: int, seconds: float, rate_per_s: int) -> None:
        """Start a chunk of a process."""
        self._number += 1
        output = Path(self.folder.name) / f"{self._number}.raw"
        log = output.with_suffix(".log")
        argv = [self.program, "record", "--pid", str(pid), "--format", "raw", "--output", str(output)]
        argv += ["--duration", str(max(1, round(seconds))), "--rate", str(rate_per_s)]
        argv += ["--threads", "--idle", "--nonblocking", "--full-filenames"]
        with log.open("wb") as out:
            # Start py-spy in a separate session, so that Ctrl-C in the terminal reaches the program first.
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, close_fds=True
            )
        self._running[pid] = _Recording(child, pid, time.monotonic(), output, log, host_threads(pid))

    def collect(self, *, stop: bool = False, limit_s: float = 3.0) -> None:
        """Collect the chunks that have ended. With `stop`, end the remaining chunks and wait for them, at most
        `limit_s`.
        """
        if stop:
            for recording in self._running.values():
                with suppress(ProcessLookupError):
                    recording.child.send_signal(signal.SIGINT)  # py-spy writes its output on an interrupt
        until = time.monotonic() + limit_s
        while True:
            for recording in list(self._running.values()):
                self._reap(recording)
            if not stop or not self._running:
                return
            if time.monotonic() > until:
                for recording in self._running.values():
                    recording.child.kill()
                until += limit_s
            time.sleep(0.02)

    def _reap(self, recording: _Recording) -> None:
        try:
            pid, status, usage = os.wait4(recording.child.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status, usage = recording.child.pid, 0, None
        if pid == 0:
            return
        recording.child.returncode = os.waitstatus_to_exitcode(status)
        del self._running[recording.pid]
        if usage is not None:
            self.cpu_s += usage.ru_utime + usage.ru_stime
        counts: Counter[ThreadStack] = Counter()
        with suppress(OSError):
            # Threads may have started after the last mapping. If the process has ended, keep the threads that are
            # already known.
            numbers = recording.host_threads | host_threads(recording.pid)
            found = parse_raw(recording.output.read_text(errors="replace"))
            for stack, count in found.items():
                counts[stack._replace(tid=numbers.get(stack.tid, stack.tid))] += count
        if counts:
            self.samples.setdefault(recording.pid, []).append((recording.began_s, time.monotonic(), counts))
        else:
            with suppress(OSError):
                self.errors[_reason(recording.log.read_text(errors="replace"))] += 1

    def close(self) -> None:
        """End all recordings and remove their files."""
        self.collect(stop=True)
        self.folder.cleanup()


def _reason(log: str) -> str:
    """Why py-spy recorded nothing."""
    if "ermission" in log or "not permitted" in log:
        return "permission"
    if "No such process" in log or "o samples" in log or "No stack counts" in log or not log.strip():
        return "ended"
    return log.strip().splitlines()[-1][:200]
