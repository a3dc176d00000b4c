# SPDX-License-Identifier: Apache-2.0
"""Part `prediction`: what a pool is for, and the rates of the published pool from the limits of its nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock.study.result import Claim, PartResult, Table, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.study.run import Context

__all__ = ["pool_bytes_per_s", "run"]


def pool_bytes_per_s(nodes: int, disk_bytes_per_s: float, fabric_bytes_per_s: float) -> tuple[float, str]:
    """Rate of a pool whose clients are its servers, and the limit: the disks, or the links to other nodes.

    Files are spread over all nodes, so a node reads 1/nodes of them from its own disk, and the rest over its link.
    """
    disks = nodes * disk_bytes_per_s
    links = nodes * fabric_bytes_per_s / (1 - 1 / nodes) if nodes > 1 else math.inf
    return (disks, "the nodes' disks") if disks <= links else (links, "the nodes' links")


def run(context: Context) -> PartResult:
    """Compute both columns. Nothing is measured."""
    limits = context.study.tables["limits"]
    nodes = limits["nodes"]
    rate, limit = pool_bytes_per_s(nodes, limits["nvme_bytes_per_s"], limits["fabric_bytes_per_s"])
    demand = limits["gpus"] * limits["gpu_bytes_per_s"]
    job_nodes = limits["gpus"] // 8
    own, _ = pool_bytes_per_s(job_nodes, limits["nvme_bytes_per_s"], limits["fabric_bytes_per_s"])
    return PartResult(
        inverted={
            "node-rate": Value(10.0 / nodes, "10 GB/s of 4 nodes"),
            "demand": Value(demand / 1e9),
            "files": Value(12_800.0 * nodes, "12,800 for each of 4 hosts"),
        },
        predicted={
            "read-large": Value(rate / 1e9, limit),
            "write-large": Value(rate / 1e9, f"{limit}; caches are not in the limit"),
            "node-rate": Value(rate / nodes / 1e9, limit),
            "accounts": Value(math.ceil(demand / limits["account_bytes_per_s"])),
            "volumes": Value(math.ceil(demand / limits["netapp_bytes_per_s"])),
            "pool-64": Value(own / 1e9, "the nodes' disks"),
        },
        claims=(
            Claim(
                "the pool of the job's own nodes feeds the job, and one account does not",
                f"{own / 1e9:.0f} GB/s of {job_nodes} nodes for {demand / 1e9:.0f} GB/s; one account {limits['account_bytes_per_s'] / 1e9:g}",
                holds=own >= demand > limits["account_bytes_per_s"],
            ),
        ),
        blocks=(_sources(limits, demand),),
    )


def _sources(limits: Mapping[str, Any], demand: float) -> Table:
    rows = []
    for name, key, count in (
        ("one storage account", "account_bytes_per_s", 1),
        ("one NetApp volume", "netapp_bytes_per_s", 1),
        ("the download of 64 nodes, 750 MB/s each", "vm_download_bytes_per_s", 64),
        ("the disks of 64 nodes", "nvme_bytes_per_s", 64),
    ):
        rate = limits[key] * count
        rows.append((name, f"{rate / 1e9:.4g} GB/s", f"{rate / demand:.0%}"))
    return Table(
        "Sources for 512 V100 that ask 154 GB/s",
        ("source", "rate", "share of the demand"),
        tuple(rows),
        note="The measured demand of a V100 in the first study is half of the claimed 300 MB/s.",
    )
