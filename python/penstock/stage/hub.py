# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job that is up already tell each other how its stage goes: by torch's store, or by MPI messages.

A star: ranks tell the first one (`up`), the first tells all (`down`); whoever reads finds the newest word of a kind, or
None. Nothing here waits inside a collective: those have limits of their own (torch's end a job after some minutes), which a
stage of hours would meet. Both libraries are used where the script has loaded them, and never imported from here.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import RankFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Hub", "find"]

# Calls of a process; ranks count alike, as they call alike.
_CALLS = count()


class Hub(Protocol):
    """See the module. Values are what JSON can say."""

    name: str
    rank: int
    world: int

    def up(self, kind: str, value: Any) -> None: ...
    def heard(self, rank: int, kind: str) -> Any: ...
    def down(self, kind: str, value: Any) -> None: ...
    def told(self, kind: str) -> Any: ...
    def close(self, limit_s: float) -> None: ...


@contextmanager
def _store_answers() -> Iterator[None]:
    """The store lives in the first rank's process, or in its launcher's; without it nobody can be asked."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        told = (str(error).strip().splitlines() or ["no word"])[0][:200]
        raise RankFailed(f"rank 0 failed: the process group's store answers no more ({told})", rank=0) from error


class _Torch:
    """Over the key-value store that the process group was made with, whatever its backend."""

    name = "torch"

    def __init__(self, distributed: Any) -> None:
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self._store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
        self._place = f"penstock/stage/{next(_CALLS)}"

    def _read(self, key: str) -> Any:
        key = f"{self._place}/{key}"
        with _store_answers():
            return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _write(self, key: str, value: Any) -> None:
        with _store_answers():
            self._store.set(f"{self._place}/{key}", json.dumps(value))

    def up(self, kind: str, value: Any) -> None:
        self._write(f"{self.rank}/{kind}", value)

    def heard(self, rank: int, kind: str) -> Any:
        return self._read(f"{rank}/{kind}")

    def down(self, kind: str, value: Any) -> None:
        self._write(f"all/{kind}", value)

    def told(self, kind: str) -> Any:
        return self._read(f"all/{kind}")

    def close(self, limit_s: float) -> None:
        """The store may live in the first rank's process: that one stays until the others have read the end."""
        until = time.monotonic() + limit_s
        with suppress(RankFailed), _store_answers():
            read = self._store.add(f"{self._place}/read", 1)
            while self.rank == 0 and read < self.world and time.monotonic() < until:
                time.sleep(0.02)
                read = self._store.add(f"{self._place}/read", 0)


class _Mpi:
    """Over messages in a communicator of our own."""

    name = "mpi4py"

    def __init__(self, mpi: Any) -> None:
        next(_CALLS)
        self._mpi, self._comm = mpi, mpi.COMM_WORLD.Dup()
        self.rank, self.world = self._comm.Get_rank(), self._comm.Get_size()
        self._heard: dict[tuple[int, str], Any] = {}
        self._sent: list[Any] = []

    def _send(self, to: int, kind: str, value: Any) -> None:
        if to == self.rank:
            self._heard[to, kind] = value
        else:
            self._sent.append(self._comm.isend((kind, value), dest=to))
        self._sent = [request for request in self._sent if not request.Test()]

    def _pump(self) -> None:
        status = self._mpi.Status()
        while self._comm.Iprobe(status=status):
            kind, value = self._comm.recv(source=status.Get_source())
            self._heard[status.Get_source(), kind] = value

    def up(self, kind: str, value: Any) -> None:
        self._send(0, kind, value)

    def heard(self, rank: int, kind: str) -> Any:
        self._pump()
        return self._heard.get((rank, kind))

    def down(self, kind: str, value: Any) -> None:
        for rank in range(self.world):
            self._send(rank, f"all/{kind}", value)

    def told(self, kind: str) -> Any:
        self._pump()
        return self._heard.get((0, f"all/{kind}"))

    def close(self, limit_s: float) -> None:
        """Lets the last words leave; a rank that is gone takes none."""
        until = time.monotonic() + limit_s
        while self._sent and time.monotonic() < until:
            self._pump()
            self._sent = [request for request in self._sent if not request.Test()]
            time.sleep(0.005)
        # Freeing a communicator is collective and may wait for a rank that failed: it is left to MPI's end.


def find() -> Hub | None:
    """The way that this script has already set up, torch before MPI; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _Torch(distributed)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return _Mpi(mpi)
    return None
