# SPDX-License-Identifier: Apache-2.0
"""Interface to a communication library, as a benchmark needs it: loops of messages, collectives, and waiting without load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.net.memory import Memory
    from penstock.bench.net.plan import NetPlan
    from penstock.ranks import Rank

__all__ = ["Transport", "open_transport"]


class Transport(Protocol):
    """The ranks of a job in one library. Each rank must make the same calls as the other ranks."""

    rank: int
    world: int
    library: str
    memory: Memory

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, on every rank."""
        ...

    def agree(self, value: int, peer: int, *, is_first: bool) -> int:
        """Return the first rank's value on both ranks of a pair."""
        ...

    def rest(self) -> None:
        """Wait for all ranks without using a core, so that waiting ranks do not disturb the ranks that measure."""
        ...

    def barrier(self) -> None:
        """Wait in the library's own barrier."""
        ...

    def synchronize(self) -> None:
        """Wait for the work that earlier calls have started on a GPU."""
        ...

    def point_to_point(
        self, operation: str, peer: int, size_bytes: int, window: int, *, is_first: bool
    ) -> Callable[[int], None]:
        """Return a function that runs N iterations of latency, bw or bibw with a peer."""
        ...

    def collective(self, operation: str, size_bytes: int, *, in_place: bool = False) -> Callable[[], None] | None:
        """Return a function that runs one collective, or None if the library cannot run it with this size.

        Sends from the buffer `send` and receives in `recv`; in place, both are `recv`. bcast uses `recv` only.
        """
        ...

    def close(self) -> None:
        """Leave the job."""
        ...


def open_transport(plan: NetPlan, rank: Rank) -> Transport:
    """Join the other ranks.

    Raises:
        ConfigError: The backend needs a GPU, and this node has none; or the library found a different number of ranks
            than the launcher started.
        MissingPackage, NotFound: The library is not installed.
        Deadline: Other ranks did not join in time; the error contains their numbers.
    """
    device = device_of(plan, rank)
    if plan.backend == "mpi":
        from penstock.bench.net.mpi_transport import MpiTransport

        return MpiTransport(rank, device)
    from penstock.bench.net.torch_transport import TorchTransport

    # nccl-tests starts its calls back to back and waits once; OSU's programs wait after each call.
    return TorchTransport(rank, plan.backend, device, join_s=plan.join_s, waits_each_call=plan.convention == "osu")


def device_of(plan: NetPlan, rank: Rank) -> str:
    """Device of the rank's buffers: `cpu`, or `cuda:N`. With NCCL, each local rank has a GPU of its own. With the other
    libraries, ranks share GPUs if a node has fewer.
    """
    if plan.backend == "nccl" and plan.device == "cpu":
        raise ConfigError("backend nccl: supports only GPU buffers", hint="add --device cuda, or set --backend gloo")
    if plan.device == "cpu":
        return "cpu"
    from penstock.extras import require

    require("--device cuda", "torch")
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            f"rank {rank.rank}: this node has no CUDA device",
            hint="set --device cpu with --backend gloo or --backend mpi, or run on nodes with GPUs",
        )
    count = torch.cuda.device_count()
    if rank.local_rank >= count and plan.backend == "nccl":
        raise ConfigError(
            f"rank {rank.rank}: local rank {rank.local_rank} needs a GPU of its own, but the node has only {count}",
            hint="start at most one rank for each GPU, or set --backend gloo to let ranks share a GPU",
        )
    torch.cuda.set_device(rank.local_rank % count)
    return f"cuda:{rank.local_rank % count}"
