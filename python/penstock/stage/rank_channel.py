# SPDX-License-Identifier: Apache-2.0
"""Lets the ranks of a running job exchange the state of a stage, over torch's store or MPI messages.

The channel is a star: ranks send to the first rank, and the first rank broadcasts. A reader gets the newest value of a
kind, or None. This module does not wait inside a collective operation, because a stage can take hours. Collectives have
timeouts: after some minutes in a collective, torch ends the job. No call blocks the main thread in native code, where
signal handlers cannot run. This module never imports torch and mpi4py, and uses them only if the script has loaded
them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import RankFailed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RankChannel", "find"]

# Counter that numbers the calls of this process. All ranks make the same calls, so a call has the same number on all
# ranks.
_CALLS = count()
# A store that does not respond for `_ANSWER_S` counts as dead. A rank that fails waits only `_FAIL_S`.
_ANSWER_S = 60.0
_FAIL_S = 2.0


class RankChannel(Protocol):
    """Interface of a channel. A value is anything that JSON can represent."""

    name: str
    rank: int
    world: int

    def meet(self, limit_s: float) -> None:
        """Wait for the other ranks, if the library requires that all ranks join first."""

    def send_to_root(self, kind: str, value: Any) -> None: ...
    def recv_from(self, rank: int, kind: str) -> Any: ...
    def broadcast(self, kind: str, value: Any) -> None: ...
    def recv_broadcast(self, kind: str) -> Any: ...

    def fail(self, value: Any) -> None:
        """End the stage on all ranks with the error `value`, unless the stage has already ended. Called when this rank
        fails. Takes at most 6 s.
        """

    def failed(self) -> Any:
        """On the first rank, return the reason why another rank has left; None if no rank has left."""

    def close(self, limit_s: float) -> None: ...


def _end(channel: RankChannel, failed: Any) -> None:
    if channel.recv_broadcast("end") is None:
        channel.broadcast("end", {"failed": failed})


class _Worker:
    """Runs calls on a separate thread. The caller waits for the result in Python, where signal handlers can run."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="penstock-channel", daemon=True).start()

    def _run(self) -> None:
        while (one := self._work.get()) is not None:
            call, answer = one
            try:
                answer.put((call(), None))
            except Exception as error:
                answer.put((None, error))

    def call(self, call: Callable[[], Any], limit_s: float) -> Any:
        answer: SimpleQueue[Any] = SimpleQueue()
        self._work.put((call, answer))
        value, error = answer.get(timeout=limit_s)
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        self._work.put(None)


class _Torch:
    """Channel over the key-value store of torch's process group, with any backend."""

    name = "torch"

    def __init__(self, distributed: Any) -> None:
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
        # Clone the store to get a connection that is separate from the script's collectives. torch before 2.6 cannot
        # clone it.
        own = store.clone() if hasattr(store, "clone") else store
        self._store = distributed.PrefixStore(f"penstock/stage/{next(_CALLS)}", own)
        self._worker, self._answer_s = _Worker(), _ANSWER_S

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Call the store. Raises RankFailed if the process that runs the store (the first rank or the launcher) does
        not respond.
        """
        try:
            return self._worker.call(call, self._answer_s)
        except Empty:
            why = f"did not respond for {self._answer_s:.0f} s"
        except (RuntimeError, OSError) as error:
            why = f"does not respond ({(str(error).strip().splitlines() or ['no message'])[0][:200]})"
        raise RankFailed(f"rank 0 failed: the process group's store {why}", rank=0)

    def _read(self, key: str) -> Any:
        text = self._ask(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if text is None else json.loads(text)

    def _write(self, key: str, value: Any) -> None:
        self._ask(lambda: self._store.set(key, json.dumps(value)))

    def meet(self, limit_s: float) -> None:
        """Does nothing, because the store needs no collective calls."""

    def send_to_root(self, kind: str, value: Any) -> None:
        self._write(f"{self.rank}/{kind}", value)

    def recv_from(self, rank: int, kind: str) -> Any:
        return self._read(f"{rank}/{kind}")

    def broadcast(self, kind: str, value: Any) -> None:
        self._write(f"all/{kind}", value)

    def recv_broadcast(self, kind: str) -> Any:
        return self._read(f"all/{kind}")

    def fail(self, value: Any) -> None:
        self._answer_s = _FAIL_S
        if self.rank == 0:
            _end(self, value)
        else:  # only the first rank that fails stores its reason
            self._ask(lambda: self._store.compare_set("failed", "", json.dumps(value)))

    def failed(self) -> Any:
        return self._read("failed")

    def close(self, limit_s: float) -> None:
        """Close the channel. The first rank waits until all other ranks have read the result, because the first rank's
        process may run the store.
        """
        until = time.monotonic() + limit_s
        with suppress(RankFailed):
            read = self._ask(lambda: self._store.add("read", 1))
            while self.rank == 0 and read < self.world and time.monotonic() < until:
                time.sleep(0.02)
                read = self._ask(lambda: self._store.add("read", 0))
        self._worker.close()


class _Mpi:
    """Channel over MPI messages, in a separate communicator."""

    name = "mpi4py"

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm: Any = None
        self.rank, self.world = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        self._received: dict[tuple[int, str], Any] = {}
        self._sent: list[Any] = []
        self._incoming: list[tuple[int, Any]] = []

    def meet(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        comm, request = self._mpi.COMM_WORLD.Idup()
        while not request.Test():
            if time.monotonic() > until:
                raise RankFailed(
                    f"rank {self.rank} failed: not all of {self.world:,} ranks called penstock.stage within "
                    f"{limit_s:.0f} s",
                    rank=self.rank,
                    hint="call penstock.stage on all ranks, the same number of times",
                )
            time.sleep(0.005)
        self._comm = comm

    def _send(self, to: int, kind: str, value: Any) -> None:
        if to == self.rank:
            self._received[to, kind] = value
        else:
            self._sent.append(self._comm.isend((kind, value), dest=to))
        self._sent = [request for request in self._sent if not request.Test()]

    def _pump(self) -> None:
        status = self._mpi.Status()
        while (message := self._comm.improbe(status=status)) is not None:
            self._incoming.append((status.Get_source(), message.irecv()))
        waiting: list[tuple[int, Any]] = []
        for source, request in self._incoming:
            # The messages of a rank must be processed in order, because the newest value of a kind is used.
            is_behind = any(source == other for other, _ in waiting)
            is_here, received = (False, ("", None)) if is_behind else request.test()
            if is_here:
                self._received[source, received[0]] = received[1]
            else:
                waiting.append((source, request))
        self._incoming = waiting

    def send_to_root(self, kind: str, value: Any) -> None:
        self._send(0, kind, value)

    def recv_from(self, rank: int, kind: str) -> Any:
        self._pump()
        return self._received.get((rank, kind))

    def broadcast(self, kind: str, value: Any) -> None:
        for rank in range(self.world):
            self._send(rank, f"all/{kind}", value)

    def recv_broadcast(self, kind: str) -> Any:
        self._pump()
        return self._received.get((0, f"all/{kind}"))

    def fail(self, value: Any) -> None:
        if self._comm is None:
            return
        if self.rank == 0:
            _end(self, value)
        else:
            self._send(0, "failed", value)

    def failed(self) -> Any:
        self._pump()
        return next((value for (_, kind), value in self._received.items() if kind == "failed"), None)

    def close(self, limit_s: float) -> None:
        """Wait until the last messages are sent. Messages to a rank that has ended are lost."""
        until = time.monotonic() + limit_s
        while self._sent and time.monotonic() < until:
            self._pump()
            self._sent = [request for request in self._sent if not request.Test()]
            time.sleep(0.005)
        # Do not free the communicator, because that is a collective call, which could wait for a failed rank. MPI frees
        # the communicator when MPI ends.


def find() -> RankChannel | None:
    """Return a channel over the library that this script has initialised (torch before MPI); None without such a
    library.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _Torch(distributed)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return _Mpi(mpi)
    return None
