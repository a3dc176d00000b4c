# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurement of several processes: all processes stay alive, and their passes run in ABBA order.

Manages the processes, the order of passes and the time limits. The caller defines what a pass does and what its figures
mean.
"""

from __future__ import annotations

import json
import os
import selectors
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from penstock.child_process import child_process
from penstock.errors import RankFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Participant", "abba_order", "quartiles"]

_MAX_STDERR_BYTES = 4000


def abba_order(names: Sequence[str], repeats: int) -> list[str]:
    """Order of passes: forward, backward, forward, and so on. With this order, drift of the machine affects all
    participants equally.

    Example:
        >>> abba_order(["a", "b"], 2)
        ['a', 'b', 'b', 'a']
    """
    return [name for turn in range(repeats) for name in (names if turn % 2 == 0 else list(reversed(names)))]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the interquartile range; for a single value, that value and 0."""
    if len(values) < 2:
        return values[0], 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, high - low


class Participant:
    """One measured process. The process reads commands as JSON lines, and writes one JSON line as the response to each
    command.
    """

    def __init__(self, name: str, argv: Sequence[str], variables: Mapping[str, str], *, limit_s: float) -> None:
        self.name = name
        self._limit_s = limit_s
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - held as long as the process; end() closes it
        self._child = ExitStack()
        started = child_process(
            argv,
            grace_s=5.0,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            process_group=0,  # stays in the caller's session, so that the caller's CPU priority applies to the child
        )
        self._process = self._child.enter_context(started)

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command to the process and return its response.

        Raises:
            RankFailed: The process ended, reported a failure, or exceeded its limit. The error quotes its last output.
        """
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            line = self._line()
        except BrokenPipeError:
            line = b""
        if not line:
            raise RankFailed(f"{self.name}: the process ended: {self._last_line()}", where=self.name)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RankFailed(f"{self.name}: {answer['error']}", where=self.name)
        return answer

    def _line(self) -> bytes:
        out = self._process.stdout
        assert out is not None
        held, until = bytearray(), time.monotonic() + self._limit_s
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            while not held.endswith(b"\n"):
                if not ready.select(max(0.0, until - time.monotonic())):
                    self.end()
                    raise RankFailed(f"{self.name}: no response within {self._limit_s:.0f} s", where=self.name)
                piece = os.read(out.fileno(), 1 << 16)
                if not piece:
                    return b""
                held += piece
        return bytes(held)

    def _last_line(self) -> str:
        self._process.wait()
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _MAX_STDERR_BYTES))
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"exit {self._process.returncode}"

    def end(self) -> None:
        """End the process and all its children. Safe to call twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._child.close()
        self._stderr.close()
