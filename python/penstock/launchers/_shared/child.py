# SPDX-License-Identifier: Apache-2.0
"""Supervises a child process on this machine: reads its output, and ends it at a deadline. Independent of nodes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Protocol

from penstock.child_process import child_process
from penstock.ownership import has_ended, signal_child, signal_on_parent_death

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event

__all__ = ["MAX_TAIL_BYTES", "Lines", "Sink", "Tail", "supervise"]

MAX_TAIL_BYTES = 4 << 20
_CHUNK = 1 << 16
_POLL_S = 0.1
# How long to read output after the process has ended: one of its own child processes may keep the streams open.
_LINGER_S = 0.5
_GRACE_S = 6.0


class Sink(Protocol):
    """Receives the chunks of a stream. A binary file is a valid sink."""

    def write(self, chunk: bytes, /) -> object: ...


@dataclass
class Tail:
    """Sink that retains the end of a stream: at least the last `limit` bytes."""

    limit: int = MAX_TAIL_BYTES
    kept: bytearray = field(default_factory=bytearray)

    def write(self, chunk: bytes) -> None:
        self.kept += chunk
        if len(self.kept) > 2 * self.limit:
            del self.kept[: -self.limit]


@dataclass
class Lines:
    """Sink that retains the end of a stream, and calls `on_line` for every line."""

    on_line: Callable[[bytes], None]
    tail: Tail = field(default_factory=Tail)
    _open: bytearray = field(default_factory=bytearray)

    def write(self, chunk: bytes) -> None:
        self.tail.write(chunk)
        self._open += chunk
        *whole, last = self._open.split(b"\n")
        self._open = last
        for line in whole:
            self.on_line(bytes(line))
        if len(self._open) > MAX_TAIL_BYTES:  # limits memory for a stream without newlines
            self.end()

    def end(self) -> None:
        """Call `on_line` with the last line if it has no newline."""
        if self._open:
            self.on_line(bytes(self._open))
            self._open = bytearray()


def supervise(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    limit_s: float,
    stop: Event,
    out: Sink,
    err: Sink,
    stdin: IO[bytes] | None = None,
    ends_with_parent: bool = False,
) -> int | None:
    """Run a command on this machine until it exits, `stop` is set or the time limit is reached.

    Args:
        ends_with_parent: Send SIGTERM to the command if this process is killed.
    Returns:
        Its exit code, or None if this function ended it.

    Raises:
        OSError: The command could not be started.
    """
    until = time.monotonic() + limit_s
    ended_at: float | None = None
    is_ours = False
    streams = {"stdin": stdin or subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # This thread stays here until the command has ended.
    before = partial(signal_on_parent_death, signal.SIGTERM) if ends_with_parent else None
    with (
        ExitStack() as pipes,  # closed only after the child has ended, so that it can still write its last output
        child_process(
            argv, grace_s=_GRACE_S, env=dict(env), start_new_session=True, preexec_fn=before, **streams
        ) as child,
        selectors.DefaultSelector() as watch,
    ):
        for stream, sink in ((child.stdout, out), (child.stderr, err)):
            assert stream is not None
            pipes.enter_context(stream)
            os.set_blocking(stream.fileno(), False)
            watch.register(stream, selectors.EVENT_READ, sink)
        while watch.get_map():
            for key, _ in watch.select(_POLL_S):
                chunk = os.read(key.fd, _CHUNK)
                if chunk:
                    key.data.write(chunk)
                else:
                    watch.unregister(key.fileobj)
            now = time.monotonic()
            if ended_at is None and has_ended(child):
                ended_at = now
            if ended_at is not None and now > ended_at + _LINGER_S:
                break
            if not is_ours and ended_at is None and (stop.is_set() or now > until):
                is_ours, until = True, now + _GRACE_S
                signal_child(child, signal.SIGTERM)
            elif is_ours and ended_at is None and now > until:
                signal_child(child, signal.SIGKILL)
    return None if is_ours else child.returncode
