# SPDX-License-Identifier: Apache-2.0
"""Break-even of a pool: how many nodes overload the store, and after how many epochs staging pays off.

Pure arithmetic on bytes, nodes, epochs and rates. The caller provides the rates. Streaming overlaps with computation
through the loader's read-ahead; staging does not.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = ["BreakEven", "JobDemand", "break_even"]


class JobDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Read demand of a job, and the rates of store and network. Sizes in bytes, times in seconds, rates in bytes/s.

    Attributes:
        stored_bytes: Size of the dataset in the store.
        epoch_s: Duration of one epoch on these nodes if only computation limits it.
        source_bytes_per_s: Total rate of the store to all nodes.
        nic_bytes_per_s: Network rate of one node; inf if unknown.
        compression_ratio: Bytes in the pool divided by stored bytes.
        copies: Number of copies of every object in the pool.
        ready_s: Time until the pool is up.
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
            raise ConfigError(f"counts, sizes and rates of a job must be positive (got {self})")


class BreakEven(msgspec.Struct, frozen=True):
    """Comparison of streaming with a pool.

    Attributes:
        node_bytes_per_s: Rate at which one node reads stored bytes.
        from_nodes: Smallest number of nodes that together read faster than the store delivers. A pool pays off
            with this number of nodes or more.
        stream_epoch_s, pool_epoch_s: Seconds of one epoch: the maximum of compute time and read time.
        before_s: Seconds before the first epoch on a pool: starting the pool and staging.
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
    """Compute whether a pool pays off, and the minimum numbers of nodes and epochs.

    Source: STUDIES A, with 0.25 GB/s per node and 50 Gbit/s for an account: "about 25 nodes at the measured rate".
    """
    one = demand.stored_bytes / demand.nodes / demand.epoch_s
    fed = min(demand.source_bytes_per_s, demand.nodes * demand.nic_bytes_per_s)
    stream = max(demand.epoch_s, demand.stored_bytes / fed)
    # With a global shuffle, the fraction copies / nodes of the reads is local. All other reads cross the network as
    # decompressed bytes.
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
