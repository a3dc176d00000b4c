# SPDX-License-Identifier: Apache-2.0
"""One rank of a network benchmark: `python -m penstock.bench.net.rank PLAN`, started by a launcher on each node.

Reports JSON lines on stdout: every rank its progress, and rank 0 also the results. When the launcher ends a rank at the
time limit, a rank that still runs answers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import env, ranks
from penstock.bench.net.measure import measure_matrix, measure_tests
from penstock.bench.net.mpi_transport import abort_mpi, restart_with_mpich
from penstock.bench.net.place import read_place
from penstock.bench.net.plan import NetPlan
from penstock.bench.net.transport import open_transport
from penstock.errors import PenstockError, Unreachable, to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ranks import Rank

__all__ = ["JOINING", "main", "run_rank"]

JOINING = "joining the other ranks"


def run_rank(plan: NetPlan, rank: Rank, emit: Callable[[dict[str, Any]], None]) -> None:
    """Run one rank. All ranks of the job must call this with the same plan.

    Args:
        emit: Receives the messages. `{"at": [number, what, size]}` comes from every rank before each step.

    Raises:
        PenstockError: A setting, the library, another rank or the data is at fault.
    """
    steps = 0

    def stage(what: str, size_bytes: int) -> None:
        nonlocal steps
        steps += 1
        emit({"at": [steps, what, size_bytes]})

    plan.check(rank.world)
    stage(JOINING, 0)
    transport = open_transport(plan, rank)
    is_root = transport.rank == 0

    def emit_root(message: dict[str, Any]) -> None:
        if is_root:
            emit(message)

    try:
        place = read_place(rank, env.read().get("PENSTOCK_NODE", ""), gpu=_gpu(transport.memory.device))
        stage("exchanging the ranks' places", 0)
        places = transport.gather(msgspec.to_builtins(place))
        emit_root({"places": places, "library": transport.library})
        measure_tests(plan, transport, emit_root, stage)
        if plan.matrix:
            measure_matrix(plan, transport, emit_root, stage)
        transport.rest()
    except RuntimeError as error:
        # The text of Gloo's errors contains the path of its source file.
        if isinstance(error, PenstockError) or "gloo/" not in str(error):
            raise
        raise Unreachable(
            f"rank {rank.rank}: lost the connection to another rank", hint="look at the output of the other ranks"
        ) from error
    finally:
        transport.close()
    emit_root({"done": True})


def _gpu(device: str) -> str | None:
    if device == "cpu":
        return None
    import torch

    found = torch.cuda.get_device_properties(device)
    if not hasattr(found, "pci_bus_id"):
        return None
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def _say(message: dict[str, Any]) -> None:
    # Write each line in one call, so that a launcher that mixes the ranks' output cannot split the line.
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _answer_sigterm() -> None:
    """On SIGTERM, report that this process still runs, and exit. A process that is stopped or hangs in the kernel does
    not answer, so the answers show which rank the others waited for.

    The signal wakes a thread that otherwise sleeps in `read`, so it costs nothing while the main thread measures. A
    handler in the main thread would not run while that thread waits in the communication library.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def answer() -> None:
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        _say({"ended": True})
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=answer, daemon=True).start()


def main(argv: list[str]) -> int:
    """Run the rank that the launcher's variables describe; return the exit code."""
    plan = msgspec.json.decode(argv[0], type=NetPlan)
    rank = ranks.detect(env.read())
    if plan.backend == "mpi":
        restart_with_mpich(["-m", "penstock.bench.net.rank", *argv])
    _answer_sigterm()
    try:
        run_rank(plan, rank, _say)
    except PenstockError as error:
        _say({"fault": to_wire(error), "rank": rank.rank})
        abort_mpi()
        return error.exit_code
    except Exception:
        traceback.print_exc()
        abort_mpi()  # at exit, mpi4py would wait in MPI_Finalize for ranks that wait for this one
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
