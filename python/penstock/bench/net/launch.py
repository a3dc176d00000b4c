# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a network benchmark on a cluster and collects their results, or runs this process as one rank."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.net.rank import run_rank
from penstock.bench.net.result import NetResult
from penstock.cluster.exits import describe, first_failure
from penstock.env import for_nodes
from penstock.errors import Bug, Deadline, PenstockError, RankFailed, from_wire
from penstock.ranks import rendezvous_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.net.plan import NetPlan
    from penstock.cluster import Cluster
    from penstock.protocols import Exit
    from penstock.ranks import Rank

    OnMessage = Callable[[dict[str, Any], NetResult], None]

__all__ = ["run_as_rank", "run_on_cluster"]

# Time for other ranks to report their errors, which may explain the first error.
_FAULT_GRACE_S = 2.0
# Number of the first message that a rank sends after it has joined the other ranks.
_JOINED = 2


def run_on_cluster(
    plan: NetPlan,
    cluster: Cluster,
    *,
    ranks_per_node: int,
    timeout_s: float,
    python: str = "",
    bind: str | None = None,
    on_message: OnMessage | None = None,
) -> NetResult:
    """Run a plan on all nodes of a cluster.

    Args:
        python: Interpreter with Penstock on the nodes; by default, the path of the current interpreter.
        bind: CPUs of each rank, as in `protocols.RunRequest`.
        on_message: Called with each message of rank 0, and the result so far.

    Raises:
        ConfigError: The plan is not valid.
        Deadline: The run exceeded `timeout_s`; the error names the ranks that are missing or late.
        PenstockError: The first error of a rank.
    """
    world = len(cluster.nodes) * ranks_per_node
    plan.check(world)
    log = _RankLog(plan, world, on_message, on_fault=cluster.close)
    try:
        exits = cluster.run(
            [python or sys.executable, "-m", "penstock.bench.net.rank", msgspec.json.encode(plan).decode()],
            ranks_per_node=ranks_per_node,
            timeout_s=timeout_s,
            env={**for_nodes(), **_rendezvous(plan, cluster)},
            on_line=log.line,
            bind=bind,
            stops_on_failure=True,
        )
    except Exception:
        if not log.faults:
            raise
        exits = []  # the launcher was closed because of these faults
    finally:
        log.end()
    if log.is_done and not log.faults:
        return log.result
    raise log.error(exits, timeout_s)


def run_as_rank(
    plan: NetPlan, rank: Rank, *, on_message: OnMessage | None = None, on_stage: Callable[[str], None] | None = None
) -> NetResult:
    """Run this process as one rank of a job that another launcher has started. Only rank 0 gets a complete result.

    Args:
        on_stage: Called with a description of the rank's next step, which a caller can print if the step times out.

    Raises:
        PenstockError: A setting, the library, another rank or the data is at fault.
    """
    result = NetResult(plan=plan)

    def emit(message: dict[str, Any]) -> None:
        if "at" in message:
            if on_stage is not None:
                on_stage(_stage_text(message["at"]))
            return
        result.take(message)
        if on_message is not None:
            on_message(message, result)

    run_rank(plan, rank, emit)
    return result


def _rendezvous(plan: NetPlan, cluster: Cluster) -> dict[str, str]:
    """Address at which torch's ranks meet, for launchers that do not set one (srun, mpirun)."""
    if plan.backend == "mpi":
        return {}
    address = cluster.leader.address
    return {
        "MASTER_ADDR": "127.0.0.1" if address == "localhost" else address,
        "MASTER_PORT": str(rendezvous_port()),
    }


def _stage_text(stage: Sequence[Any]) -> str:
    _, what, size = stage
    return f"{what} of {size:,} bytes" if size else str(what)


class _RankLog:
    """Collects the messages of all ranks: their progress, and the results that rank 0 reports."""

    def __init__(
        self, plan: NetPlan, world: int, on_message: OnMessage | None, *, on_fault: Callable[[], None]
    ) -> None:
        """`on_fault` is called from another thread soon after a rank's first error. `on_fault` should end the other
        ranks, which may wait for that rank.
        """
        self._world, self._on_message, self._on_fault = world, on_message, on_fault
        self._lock = threading.Lock()
        self._stages: dict[int, Sequence[Any]] = {}
        self._answered: set[int] = set()  # ranks that still ran when the launcher ended them
        self._began = self._changed_at = time.monotonic()
        # Ranks of torch watch the limit themselves, but MPI_Init has no limit.
        self._join_limit = threading.Timer(plan.join_s, self._end_join) if plan.backend == "mpi" else None
        self.result = NetResult(plan=plan)
        self.faults: dict[int, PenstockError] = {}
        self.is_done = False

    def line(self, _node: str, rank: int, stream: str, line: bytes) -> None:
        """Process one output line. Lines that are not messages, such as warnings of a library, are ignored."""
        if stream != "out" or not line.startswith(b"{"):
            return
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            return
        with self._lock:
            if "ended" in message:
                self._answered.add(rank)
                return
            self._changed_at = time.monotonic()
            if "at" in message:
                if not self._stages and self._join_limit is not None:
                    self._join_limit.daemon = True
                    self._join_limit.start()
                self._stages[rank] = message["at"]
            elif "fault" in message:
                number = int(message.get("rank", rank))
                text = message["fault"]["message"]
                prefix = "" if text.startswith(("rank ", "ranks ")) else f"rank {number}: "
                if not self.faults:
                    end = threading.Timer(_FAULT_GRACE_S, self._on_fault)
                    end.daemon = True
                    end.start()
                self.faults[number] = from_wire(message["fault"], prefix=prefix)
            elif "done" in message:
                self.is_done = True
            else:
                self.result.take(message)
                if self._on_message is not None:
                    self._on_message(message, self.result)

    def end(self) -> None:
        """Stop watching the ranks. Call this when they have ended."""
        if self._join_limit is not None:
            self._join_limit.cancel()

    def _end_join(self) -> None:
        """End all ranks if some have not joined. A rank's second message comes after it has joined."""
        limit_s = self.result.plan.join_s
        with self._lock:
            late = [rank for rank in range(self._world) if self._stages.get(rank, (0,))[0] < _JOINED]
            if not late or self.faults:
                return
            missing = [rank for rank in late if rank not in self._stages]
            text = "did not join" if missing else "MPI_Init did not return"
            self.faults[late[0]] = Deadline(
                f"{_ranks(missing or late)} of {self._world}: {text} within {limit_s:g} s",
                limit_s=limit_s,
                hint="check that the launcher has started every rank, and that the ranks' nodes can reach each other",
            )
        self._on_fault()

    def error(self, exits: Sequence[Exit], timeout_s: float) -> PenstockError:
        """The error that explains why the ranks have ended without a result."""
        first = first_failure([each for each in exits if each.rank not in self.faults])
        has_ended_silently = first is not None and first.fault is None
        # If a rank ended without a report, the other ranks report only that they lost their connection.
        if any(fault.code != "unreachable" or not has_ended_silently for fault in self.faults.values()):
            # An error that names the missing ranks is more precise than the error of a rank that lost its connection.
            order = sorted(self.faults, key=lambda rank: (self.faults[rank].code == "unreachable", rank))
            return self.faults[order[0]]
        if first is None:
            return Bug(f"bench net: {len(exits)} ranks ended without a result")
        if isinstance(first.fault, Deadline):
            return self._late(timeout_s)
        if first.fault is None:
            stage = self._stages.get(first.rank)
            during = f" during {_stage_text(stage)}" if stage else " before it started"
            text = describe(replace(first, out=b""))  # stdout has only messages for this process
            return RankFailed(f"rank {first.rank}{during}: {text}", rank=first.rank, where=first.node)
        if isinstance(first.fault, PenstockError):
            return type(first.fault)(f"rank {first.rank}: {first.fault}", hint=first.fault.hint, where=first.node)
        return RankFailed(f"rank {first.rank}: {describe(first)}", rank=first.rank, where=first.node)

    def _late(self, timeout_s: float) -> Deadline:
        missing = [rank for rank in range(self._world) if rank not in self._stages]
        if missing:
            return Deadline(
                f"bench net: {_ranks(missing)} of {self._world} did not start within {timeout_s:g} s",
                limit_s=timeout_s,
                hint="check that Penstock starts on these nodes: penstock cluster nodes",
            )
        silent = [rank for rank in range(self._world) if rank not in self._answered]
        if silent and self._answered:
            return Deadline(
                f"bench net: {_ranks(silent)} of {self._world} did not respond during "
                f"{_stage_text(self._stages[silent[0]])}, and the other ranks waited until the time limit of {timeout_s:g} s",
                limit_s=timeout_s,
                hint="look at these ranks' nodes: the process is stopped, or hangs in a driver or a file system",
            )
        last = max(stage[0] for stage in self._stages.values())
        late = [rank for rank, stage in self._stages.items() if stage[0] < last]
        if late:
            at = _stage_text(self._stages[late[0]])
            return Deadline(
                f"bench net: {_ranks(sorted(late))} of {self._world} stopped at {at}, and the other ranks waited until "
                f"the time limit of {timeout_s:g} s",
                limit_s=timeout_s,
                hint="check these ranks' nodes and links",
            )
        at = _stage_text(next(iter(self._stages.values())))
        progress_s = self._changed_at - self._began
        if progress_s < timeout_s / 2:
            return Deadline(
                f"bench net: no rank made progress after {progress_s:.0f} s: all were in {at} until the time limit of "
                f"{timeout_s:g} s",
                limit_s=timeout_s,
                hint="check the links between these ranks; if only this size is slow, set a smaller --max-size",
            )
        return Deadline(
            f"bench net: all ranks were stopped during {at}, because the time limit of {timeout_s:g} s was reached",
            limit_s=timeout_s,
            hint="set a longer --timeout, a smaller --max-size or fewer --iterations",
        )


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"
