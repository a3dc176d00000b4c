# SPDX-License-Identifier: Apache-2.0
"""Break-even of a pool: from how many nodes a store is too slow, and after how many epochs the stage pays off.

Pure arithmetic on bytes, nodes, epochs and rates; the caller knows the origin of the rates. Streaming overlaps with
computing through the loader's read-ahead; a stage does not.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = ["BreakEven", "JobDemand", "break_even"]


class JobDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of a job, and the rates that supply it. Sizes in bytes, times in seconds, rates in bytes/s.

    Attributes:
        stored_bytes: Size of the dataset in the store.
        epoch_s: Duration of one epoch on these nodes if only computing limits it.
        source_bytes_per_s: Rate of the store to all nodes together.
        nic_bytes_per_s: Rate of one node's network; inf if unknown.
        compression_ratio: Bytes in the pool over stored bytes.
        copies: Copies of every object in the pool.
        ready_s: Time until a pool is up.
    """

    stored_bytes: int
    nodes: int
    epochs: int
    epoch_s: float
    source_bytes_per_s: float
    nic_bytes_per_s: float = math.inf
    compression_ratio: float = 1.0
    copies: int = 1
    ready_s: float = 0.0

    def __post_init__(self) -> None:
        counts = (self.nodes, self.epochs, self.copies)
        rates = (self.epoch_s, self.source_bytes_per_s, self.nic_bytes_per_s, self.compression_ratio)
        if min(counts) < 1 or self.stored_bytes < 0 or self.ready_s < 0 or any(not rate > 0 for rate in rates):
            raise ConfigError(f"a job needs positive counts, sizes and rates, not {self}")


class BreakEven(msgspec.Struct, frozen=True):
    """Streaming compared with a pool.

    Attributes:
        node_bytes_per_s: Stored bytes that one node reads.
        from_nodes: Smallest number of nodes that together read faster than the store delivers. A pool pays off
            from this number on.
        stream_epoch_s, pool_epoch_s: Seconds of one epoch: the longer of computing and reading.
        before_s: Seconds before the first epoch from a pool: its start and the stage.
        stream_s, pool_s: Seconds of the whole job.
        from_epochs: Smallest number of epochs with which the pool finishes first; None if it never does.
        faster: `stream` or `pool`, whichever finishes this job first.
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
    """Compute whether a pool pays off, and from how many nodes and epochs.

    Source: STUDIES A: 0.25 GB/s per node and 50 Gbit/s for an account: "about 25 nodes at the measured rate".
    """
    one = demand.stored_bytes / demand.nodes / demand.epoch_s
    fed = min(demand.source_bytes_per_s, demand.nodes * demand.nic_bytes_per_s)
    stream = max(demand.epoch_s, demand.stored_bytes / fed)
    # In a global order, the share copies / nodes of the reads is local; the rest crosses the network as decompressed
    # bytes.
    remote = max(0.0, 1 - demand.copies / demand.nodes) * demand.stored_bytes * demand.compression_ratio
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
