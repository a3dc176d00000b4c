# SPDX-License-Identifier: Apache-2.0
"""Break-even of a pool: the number of nodes that a store can no longer feed, and of epochs that repay the stage.

Pure arithmetic on bytes, nodes, epochs and rates; the caller knows their origin. Streaming overlaps with computing, through the
loader's read-ahead; a stage does not.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = ["BreakEven", "JobDemand", "break_even"]


class JobDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What a job eats and what feeds it. Sizes in bytes, times in seconds, rates in bytes/s.

    Attributes:
        stored_bytes: Of the dataset, as the store has it.
        epoch_s: Of one epoch that nothing holds up, on these nodes.
        source_bytes_per_s: What the store gives to all nodes together.
        nic_bytes_per_s: Of one node's network; inf where nobody says.
        inflated: Bytes in the pool over stored ones.
        copies: That a pool keeps of every object.
        ready_s: Until a pool is up.
    """

    stored_bytes: int
    nodes: int
    epochs: int
    epoch_s: float
    source_bytes_per_s: float
    nic_bytes_per_s: float = math.inf
    inflated: float = 1.0
    copies: int = 1
    ready_s: float = 0.0

    def __post_init__(self) -> None:
        counts = (self.nodes, self.epochs, self.copies)
        rates = (self.epoch_s, self.source_bytes_per_s, self.nic_bytes_per_s, self.inflated)
        if min(counts) < 1 or self.stored_bytes < 0 or self.ready_s < 0 or any(not rate > 0 for rate in rates):
            raise ConfigError(f"a job eats positive counts, sizes and rates, not {self}")


class BreakEven(msgspec.Struct, frozen=True):
    """Streaming compared with a pool.

    Attributes:
        node_bytes_per_s: Stored bytes that one node reads.
        from_nodes: The fewest such nodes that together read faster than the store delivers: a pool pays off from there.
        stream_epoch_s, pool_epoch_s: An epoch either way: the longest of computing and reading.
        before_s: The time before the first epoch from a pool: its start and the stage.
        stream_s, pool_s: The whole job.
        from_epochs: The fewest epochs after which the pool finishes first; None if it never does.
        faster: `stream` or `pool`: the one that finishes this job first.
    """

    node_bytes_per_s: float
    from_nodes: int
    stream_epoch_s: float
    pool_epoch_s: float
    before_s: float
    stream_s: float
    pool_s: float
    from_epochs: int | None
    faster: Literal["stream", "pool"]


def break_even(demand: JobDemand) -> BreakEven:
    """Whether and when.

    Source:
        STUDIES A: 0.25 GB/s a node against an account's 50 Gbit/s: "about 25 nodes at the measured rate".
    """
    one = demand.stored_bytes / demand.nodes / demand.epoch_s
    fed = min(demand.source_bytes_per_s, demand.nodes * demand.nic_bytes_per_s)
    stream = max(demand.epoch_s, demand.stored_bytes / fed)
    # Of a global order copies over nodes of the reads are local; the others cross the nodes' networks, inflated.
    remote = max(0.0, 1 - demand.copies / demand.nodes) * demand.stored_bytes * demand.inflated
    pool = max(demand.epoch_s, remote / (demand.nodes * demand.nic_bytes_per_s))
    before = demand.ready_s + demand.stored_bytes / fed
    stream_s, pool_s = demand.epochs * stream, before + demand.epochs * pool
    gain = stream - pool
    return BreakEven(
        node_bytes_per_s=one,
        from_nodes=math.floor(demand.source_bytes_per_s / one) + 1 if one else 0,
        stream_epoch_s=stream,
        pool_epoch_s=pool,
        before_s=before,
        stream_s=stream_s,
        pool_s=pool_s,
        from_epochs=math.floor(before / gain) + 1 if gain > 1e-9 * stream else None,
        faster="pool" if pool_s < stream_s else "stream",
    )
