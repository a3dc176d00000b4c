# SPDX-License-Identifier: Apache-2.0
"""Process group of a run's ranks: joins the group, exchanges and compares values, and leaves the group. A single rank
needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, RankFailed
from penstock.train.peers import Peers, is_echo
from penstock.train.rendezvous import JOIN_TIMEOUT_S, join_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.ranks import Rank
    from penstock.train.peers import OnLost

__all__ = ["ProcessGroup", "format_ranks"]


def format_ranks(ranks: Sequence[int]) -> str:
    """Format rank numbers, such as `rank 3`, or `ranks 0, 2, 5, 6 and 60 more`."""
    shown = ", ".join(map(str, ranks[:4]))
    more = f" and {len(ranks) - 4:,} more" if len(ranks) > 4 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


class ProcessGroup:
    """The process group of a run, from `join` to `leave`."""

    def __init__(self, rank: Rank, *, on_lost: OnLost | None = None) -> None:
        self._rank, self._on_lost = rank, on_lost
        self._peers: Peers | None = None

    def join(self, device: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Initialise torch's process group, unless it is already initialised.

        Raises:
            RankFailed: Ranks are missing after `timeout_s`, or cannot be reached. The error lists them.
            ConfigError: The ranks disagree about their number.
        """
        if self._rank.world == 1:
            return
        from torch import distributed

        if device.startswith("cuda"):
            import torch

            torch.cuda.set_device(device)
        if not distributed.is_initialized():
            backend = "nccl" if device.startswith("cuda") else "gloo"
            store = join_store(self._rank, timeout_s)
            try:
                distributed.init_process_group(backend, store=store, rank=self._rank.rank, world_size=self._rank.world)
            except RuntimeError as error:
                if not is_echo(error):
                    raise
                raise RankFailed(
                    f"rank {self._rank.rank} of {self._rank.world} could not connect to the other ranks: "
                    f"{_first_line(error)}",
                    rank=self._rank.rank,
                    hint="check MASTER_ADDR and MASTER_PORT, and that every rank has started",
                ) from error
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
        self._peers = Peers(store, self._rank.rank, self._rank.world, self._on_lost)
        self._peers.start()

    def new_group(self) -> Any:
        """Create a group of all ranks for another thread; None for one rank. All ranks call this at the same point."""
        if self._rank.world == 1:
            return None
        from torch import distributed

        return distributed.new_group(backend="gloo")

    def gather(self, mine: Any) -> list[Any]:
        """Exchange values: return one value from each rank, in rank order, on every rank."""
        if self._rank.world == 1:
            return [mine]
        from torch import distributed

        everyone: list[Any] = [None] * self._rank.world
        distributed.all_gather_object(everyone, mine)
        return everyone

    def agree(self, what: str, facts: Mapping[str, Any], *, hint: str) -> None:
        """Check that every rank has the same facts. `what` names them in the error.

        Raises:
            ConfigError: The facts differ. The error contains the different facts, and the ranks with each value. Every
                rank raises the same error.
        """
        everyone = self.gather({name: str(value) for name, value in facts.items()})
        differences = []
        for name in dict.fromkeys(name for its in everyone for name in its):
            held: dict[str, list[int]] = {}
            for rank, its in enumerate(everyone):
                held.setdefault(its.get(name, "unset"), []).append(rank)
            if len(held) > 1:
                values = ", ".join(f"{value} on {format_ranks(ranks)}" for value, ranks in held.items())
                differences.append(f"{name}: {values}")
        if differences:
            raise ConfigError(f"the ranks differ in {what}: {'; '.join(differences)}", hint=hint)

    def cause_of(self, error: BaseException) -> BaseException:
        """Report to the other ranks why this rank ends; return the error to raise: `error`, or the cause of `error`."""
        if self._peers is None:
            return error
        if not is_echo(error):
            self._peers.post(error)
            return error
        return self._peers.first_cause() or RankFailed(
            f"rank {self._rank.rank} lost the connection to another rank: {_first_line(error)}", rank=self._rank.rank
        )

    def leave(self) -> None:
        """Leave the process group."""
        if self._rank.world == 1:
            return
        import gc

        from torch import distributed

        try:
            if distributed.is_initialized():
                # DDP's hooks are reference cycles that keep the group's threads alive. If these hooks are freed only at
                # interpreter exit, the process aborts.
                gc.collect()
                distributed.destroy_process_group()
        finally:
            if self._peers is not None:
                self._peers.close()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
