# SPDX-License-Identifier: Apache-2.0
"""Messages over MPI, with mpi4py. Buffers are passed by address, the cheapest form that mpi4py has.

GPU buffers are torch tensors, which a CUDA-aware MPI reads by their CUDA array interface. GPU buffers are
**experimental**: this code has not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.bench.net.memory import Memory, scatter_counts
from penstock.errors import ConfigError, NotFound
from penstock.extras import require
from penstock.ownership import OwnedFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ranks import Rank

__all__ = ["MpiTransport", "abort_mpi", "load_mpi", "restart_with_mpich"]

_POLL_S = 0.0005
_INSTALL = "install an MPI library: apt-get install openmpi-bin, or mpich"
# Folder with a link to MPICH's library, for the process that `restart_with_mpich` starts.
_LINK_VARIABLE = "PENSTOCK_MPICH_LINK"


def restart_with_mpich(argv: list[str]) -> None:
    """If MPICH's mpiexec has started this process and mpi4py would not find MPICH, replace the process by one that
    loads MPICH.

    mpi4py's wheels load `libmpi.so.12`, the name in MPICH's ABI, but Debian's MPICH is named `libmpich.so.12`. The new
    process finds the library through a link in a temporary folder, and removes the folder once the library is loaded.
    """
    environment = env.read()
    if "PMI_RANK" not in environment or "OMPI_COMM_WORLD_RANK" in environment or _LINK_VARIABLE in environment:
        return
    with suppress(OSError):
        ctypes.CDLL("libmpi.so.12")
        return
    try:
        ctypes.CDLL("libmpich.so.12")
    except OSError:
        return
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libmpich.so.12" in line]
    folder = tempfile.mkdtemp(prefix="penstock-mpich-")
    (Path(folder) / "libmpi.so.12").symlink_to(loaded[0])
    search = ":".join(part for part in (folder, environment.get("LD_LIBRARY_PATH", "")) if part)
    variables = {**environment, "LD_LIBRARY_PATH": search, "MPI4PY_MPIABI": "mpich", _LINK_VARIABLE: folder}
    os.execve(sys.executable, [sys.executable, *argv], variables)  # noqa: S606 - no shell, and our own interpreter


def load_mpi() -> Any:
    """Import `mpi4py.MPI`, and initialise MPI.

    Raises:
        MissingPackage: mpi4py is not installed.
        NotFound: No MPI library can be loaded.
    """
    require("--backend mpi", "mpi")
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise NotFound(f"MPI is not installed: mpi4py cannot load its library ({why})", hint=_INSTALL) from None
    finally:
        if folder := env.read().get(_LINK_VARIABLE):
            with suppress(OSError), OwnedFolder(folder) as owned:
                owned.remove()
    if not MPI.Is_initialized():
        # MPI_Init waits for all ranks. mpi4py holds the GIL during this call, so no thread could end it at a time limit.
        # ctypes releases the GIL.
        ctypes.CDLL(MPI.__file__).MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py raises an exception for each error that MPI returns
    return MPI


def abort_mpi() -> None:
    """If this process's MPI job has several ranks, end all of them. The other ranks may wait for this rank, so this
    rank must not wait for them in MPI_Finalize.
    """
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and MPI.COMM_WORLD.Get_size() > 1:
            MPI.COMM_WORLD.Abort(1)


class MpiTransport:
    """Ranks of MPI_COMM_WORLD."""

    def __init__(self, rank: Rank, device: str = "cpu") -> None:
        """Raises:
        ConfigError: MPI found another number of ranks than the launcher has started, or srun has no MPI plug-in.
        """
        # Without these variables, Open MPI aborts with a page of text, and MPICH starts a job for each rank.
        if rank.launcher == "slurm" and not any(name.startswith(("PMI", "PALS_")) for name in env.read()):
            raise ConfigError(
                "srun has started the ranks without an MPI plug-in, so MPI cannot connect them",
                hint="pass --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH) to srun (with --launcher slurm: --set srun=--mpi=pmi2), "
                "or set --backend gloo",
            )
        self._mpi = MPI = load_mpi()  # noqa: N806 - the name that mpi4py's documentation uses
        self._comm = MPI.COMM_WORLD
        self.rank, self.world = self._comm.Get_rank(), self._comm.Get_size()
        self.library = MPI.Get_library_version().partition("\n")[0].partition(",")[0].strip("\0 \t").replace("\t", " ")
        self.memory = Memory(device)
        if self.world != rank.world:
            raise ConfigError(
                f"MPI: {rank.launcher} started {rank.world} ranks, but mpi4py loaded {self.library}, which found {self.world}",
                hint="use the mpirun of the library that mpi4py loads, such as --set program=mpirun.openmpi, or start "
                "ranks with srun --mpi=pmix",
            )

    def gather(self, value: Any) -> list[Any]:
        return list(self._comm.allgather(value))

    def agree(self, value: int, peer: int, *, is_first: bool) -> int:
        if is_first:
            self._comm.send(value, peer, 7)
            return value
        return int(self._comm.recv(None, peer, 7))

    def rest(self) -> None:
        # Do not use MPI's barrier, which polls, and so would take a core from the ranks that measure.
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(_POLL_S)

    def barrier(self) -> None:
        self._comm.Barrier()

    def synchronize(self) -> None:
        if self.memory.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def close(self) -> None:
        """mpi4py finalises MPI at exit."""

    # ------------------------------------------------------------ messages

    def _message(self, name: str, size_bytes: int, *, datatype: Any = None, parts: int = 1) -> Any:
        """Message of mpi4py: address, number of elements, type. Parsing an address is cheaper than parsing an array.

        Args:
            parts: Number of equal parts in the buffer, one for each rank. MPI's count is the number of elements of one
                part.
        """
        datatype = datatype or self._mpi.CHAR
        whole = self.memory.take(name, size_bytes * parts)
        count = size_bytes // datatype.size
        if self.memory.device != "cpu":
            return (whole, count, datatype)
        return (self._mpi.buffer.fromaddress(whole.ctypes.data, size_bytes * parts), count, datatype)

    def point_to_point(
        self, operation: str, peer: int, size_bytes: int, window: int, *, is_first: bool
    ) -> Callable[[int], None]:
        comm, wait = self._comm, self._mpi.Request.Waitall
        out, into = self._message("send", size_bytes), self._message("recv", size_bytes)
        send, receive, isend, ireceive = comm.Send, comm.Recv, comm.Isend, comm.Irecv
        ack = self._message("ack", 4)

        def ping(count: int) -> None:
            for _ in repeat(None, count):
                send(out, peer, 1)
                receive(into, peer, 1)

        def pong(count: int) -> None:
            for _ in repeat(None, count):
                receive(into, peer, 1)
                send(out, peer, 1)

        def stream(count: int) -> None:
            for _ in repeat(None, count):
                wait([isend(out, peer, 100) for _ in repeat(None, window)])
                receive(ack, peer, 101)

        def drain(count: int) -> None:
            for _ in repeat(None, count):
                wait([ireceive(into, peer, 100) for _ in repeat(None, window)])
                send(ack, peer, 101)

        def both(count: int) -> None:
            for _ in repeat(None, count):
                arriving = [ireceive(into, peer, 10) for _ in repeat(None, window)]
                wait([isend(out, peer, 10) for _ in repeat(None, window)])
                wait(arriving)

        if operation == "latency":
            return ping if is_first else pong
        if operation == "bibw":
            return both
        return stream if is_first else drain

    def collective(self, operation: str, size_bytes: int, *, in_place: bool = False) -> Callable[[], None] | None:
        comm, mpi, world = self._comm, self._mpi, self.world
        if operation == "barrier":
            return comm.Barrier  # type: ignore[no-any-return]
        if operation == "bcast":
            message = self._message("recv", size_bytes)
            return lambda: comm.Bcast(message, 0)
        if operation == "sendrecv":
            if in_place:
                return None
            out, into = self._message("send", size_bytes), self._message("recv", size_bytes)
            to, source = (self.rank + 1) % world, (self.rank - 1) % world
            return lambda: comm.Sendrecv(out, to, 3, into, source, 3)
        if operation == "allreduce":
            into = self._message("recv", size_bytes, datatype=mpi.FLOAT)
            out = mpi.IN_PLACE if in_place else self._message("send", size_bytes, datatype=mpi.FLOAT)
            add = mpi.SUM
            return lambda: comm.Allreduce(out, into, add)
        if operation == "reduce-scatter":
            counts, add = scatter_counts(size_bytes // 4, world), mpi.SUM
            if in_place:  # the result is at the start of the buffer
                into, out = self._message("recv", size_bytes, datatype=mpi.FLOAT), mpi.IN_PLACE
            else:
                into = self._message("recv", counts[self.rank] * 4, datatype=mpi.FLOAT)
                out = self._message("send", size_bytes, datatype=mpi.FLOAT)
            return lambda: comm.Reduce_scatter(out, into, counts, add)
        is_gather = operation == "allgather"
        call = comm.Allgather if is_gather else comm.Alltoall
        out = mpi.IN_PLACE if in_place else self._message("send", size_bytes, parts=1 if is_gather else world)
        into = self._message("recv", size_bytes, parts=world)
        return lambda: call(out, into)
