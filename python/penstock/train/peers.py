# SPDX-License-Identifier: Apache-2.0
"""Detects failed ranks with heartbeats, so that no rank waits for a failed rank, and all report the original error.

In each rank, a thread increments the rank's counter in the process group's store once a second. The first rank that
fails writes its error to the store, and the other ranks read it within a second. If a rank ends without writing an
error, the rank's counter stops. The thread has its own connection to the store, and runs while the main thread waits in
gloo or NCCL.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.errors import PenstockError, RankFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    OnLost = Callable[[PenstockError], object]

__all__ = ["Peers", "is_echo", "signalled"]

_HEARTBEAT_S = 1.0
# Heartbeat timeout after an error of gloo or NCCL: the time of three heartbeats, plus one second for delays
# in the key-value store of the process group.
_HEARTBEAT_TIMEOUT_S = 4.0
# Heartbeat timeout without an error. This timeout is longer, because a rank can be slow (a busy node, a file system
# that hangs). The timeout of a leader in `penstock.stage` has the same value.
_IDLE_TIMEOUT_S = 60.0
_IDLE_POLL_S = 10.0
# Once a failure is known, `_GRACE_S` is the time for the main thread to end. `_LINGER_S` is the time that a failed rank
# waits until the other ranks have read its error.
_GRACE_S = 4.0
_LINGER_S = 2.5
# Maximum time for which rank 0 keeps its store at the end of a run, until the other ranks have left.
_LEAVE_S = 10.0

# Counts the runs in this process. The count is equal on all ranks, because all ranks start the same runs.
_RUNS = count()
_current: Peers | None = None


def is_echo(error: BaseException) -> bool:
    """True for an error that torch raises because another rank has ended: a consequence, not the original error."""
    if not isinstance(error, RuntimeError) or isinstance(error, PenstockError):
        return False
    from torch import distributed

    # Exceptions of gloo appear in Python as RuntimeErrors. The messages of these errors contain the path of the gloo
    # source file.
    return isinstance(error, distributed.DistError) or "gloo/" in str(error)


def signalled(signal_name: str) -> None:
    """Report to the other ranks that a signal ends this rank.

    Called from another thread if the main thread is in native code and cannot handle the signal.
    """
    if _current is not None:
        _current.post(RankFailed(f"ended by {signal_name}"))


class Peers:
    """Failure detector of one rank, which watches the other ranks from `start` to `close`.

    Args:
        store: torch's key-value store of the process group, which all ranks can access.
        on_lost: Called from the detector's thread if another rank has failed and the main thread is still running 4 s
            later. The function should end the process.
    """

    def __init__(self, store: Any, rank: int, world: int, on_lost: OnLost | None) -> None:
        from torch import distributed

        # The thread needs its own connection: if the main thread waits on a shared connection, the heartbeats stop.
        # torch before 2.6 cannot clone a store.
        own = store.clone() if hasattr(store, "clone") else store
        self._store = distributed.PrefixStore(f"penstock/train/{next(_RUNS)}", own)
        # A clone has only a connection, and the server ends with the last reference to its own store.
        self._server = store if rank == 0 else None
        self._has_failed = self._is_lost = False  # this rank has failed; the store does not respond
        self._rank, self._world, self._on_lost = rank, world, on_lost
        self._closed, self._known, self._requested = threading.Event(), threading.Event(), threading.Event()
        self._unread = threading.Lock()  # acquired for good once this rank has reported that it read the cause
        self._mine: PenstockError | None = None
        self._cause: PenstockError | None = None
        self._thread = threading.Thread(target=self._watch, name="penstock-peers", daemon=True)

    def start(self) -> None:
        global _current
        _current = self
        self._thread.start()

    def close(self) -> None:
        global _current
        _current = None
        self._closed.set()
        self._thread.join(_HEARTBEAT_S)
        with suppress(RuntimeError):
            self._await_others()
        self._server = None

    def _await_others(self) -> None:
        """Keep the store of rank 0 until the other ranks no longer use it. Otherwise, torch prints stack traces in these
        ranks.
        """
        has_failed = self._has_failed or self._cause is not None
        if self._is_lost or (has_failed and self._rank != 0):
            return
        if not has_failed:
            self._store.add("left", 1)
        self._await_count("read" if has_failed else "left", _LINGER_S if has_failed else _LEAVE_S)

    def _await_count(self, key: str, limit_s: float) -> None:
        """On rank 0, wait until all ranks have incremented a counter, or until the limit."""
        until = time.monotonic() + limit_s
        while self._rank == 0 and self._store.add(key, 0) < self._world and time.monotonic() < until:
            time.sleep(0.05)

    def post(self, error: BaseException) -> None:
        """Write this rank's error to the store, unless another rank has failed before.

        After that, rank 0 waits a few seconds for the other ranks to read the error.
        """
        self._has_failed = True
        self._mine = error if isinstance(error, PenstockError) else None
        if isinstance(error, KeyboardInterrupt):
            text = f"ended by {getattr(error, 'signal_name', 'SIGINT')}"
        else:
            text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):
            self._write(self._rank, text.partition("\n")[0], getattr(error, "hint", None))
            self._acknowledge()
            # The store may be part of rank 0's process, so rank 0 must not end before all other ranks have read the
            # error.
            self._await_count("read", _LINGER_S)

    def first_cause(self) -> PenstockError | None:
        """Return the original error after this rank lost a connection; None if all ranks still send heartbeats."""
        self._requested.set()
        self._known.wait(2 * _HEARTBEAT_TIMEOUT_S)
        return self._cause

    # ------------------------------------------------------------ heartbeat thread

    def _watch(self) -> None:
        try:
            cause = self._wait()
        except RuntimeError:  # the store's process has ended; at the end of a run, it may end before this rank
            self._is_lost = True
            if not self._requested.is_set() and self._closed.wait(_HEARTBEAT_TIMEOUT_S):
                return
            host = "the launcher" if env.read().get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0"
            cause = RankFailed(f"{host} ended without a message: the process group's store does not respond", rank=0)
        self._cause = cause
        self._known.set()
        if cause is not None and not self._closed.wait(_GRACE_S) and self._on_lost is not None:
            self._on_lost(cause)

    def _wait(self) -> PenstockError | None:
        """Send heartbeats until a rank fails or the run ends; return the original error.

        Returns None if the run has ended, or if a check requested by `first_cause` finds that all ranks are alive.
        """
        beats, requested_s = count(1), None
        others = [rank for rank in range(self._world) if rank != self._rank]
        watched = others if self._rank == 0 else [0]
        ticked_s = looked_s = time.monotonic()
        before: dict[int, str] = {}
        seen: dict[int, tuple[str, float]] = {}
        while True:
            self._store.set(f"beat/{self._rank}", str(next(beats)))
            if (cause := self._posted()) is not None:
                self._acknowledge()
                return cause
            now = time.monotonic()
            if (
                now - ticked_s > _HEARTBEAT_TIMEOUT_S
            ):  # this process was suspended, and its peers may have been suspended, too
                seen, requested_s = {}, None
            ticked_s = now
            if self._requested.is_set() and requested_s is None:
                before, requested_s = self._beats(others), now
            elif requested_s is not None and now - requested_s >= _HEARTBEAT_TIMEOUT_S:
                dead = self._still(others, before)
                if not dead:
                    return None
                self._write(dead[0], "ended without a message", None)
                continue
            if now - looked_s > _IDLE_POLL_S:
                looked_s = now
                for rank, beat in self._beats(watched).items():
                    if rank not in seen or seen[rank][0] != beat:
                        seen[rank] = (beat, now)
                    elif now - seen[rank][1] > _IDLE_TIMEOUT_S:
                        self._write(rank, f"sent no heartbeat for {_IDLE_TIMEOUT_S:.0f} s", None)
            if self._closed.wait(_HEARTBEAT_S):
                return None

    def _acknowledge(self) -> None:
        if self._unread.acquire(blocking=False):
            self._store.add("read", 1)

    def _beats(self, ranks: Iterable[int]) -> dict[int, str]:
        return {rank: self._read(f"beat/{rank}") for rank in ranks}

    def _still(self, ranks: Iterable[int], before: dict[int, str]) -> list[int]:
        return [rank for rank, beat in self._beats(ranks).items() if beat == before[rank]]

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _write(self, rank: int, message: str, hint: str | None) -> None:
        # The store keeps only the first error: `compare_set` writes only if the key is still empty.
        self._store.compare_set("cause", "", json.dumps({"rank": rank, "message": message, "hint": hint}))

    def _posted(self) -> PenstockError | None:
        if not (text := self._read("cause")):
            return None
        cause = json.loads(text)
        if cause["rank"] == self._rank and self._mine is not None:
            return self._mine
        return RankFailed(f"rank {cause['rank']} failed: {cause['message']}", rank=cause["rank"], hint=cause["hint"])
