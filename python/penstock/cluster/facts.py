# SPDX-License-Identifier: Apache-2.0
"""Collects hardware facts from all nodes of a cluster at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.cluster.cluster import Cluster
    from penstock.protocols import Exit

__all__ = ["gather_facts"]


def gather_facts(cluster: Cluster, *, timeout_s: float) -> tuple[list[Exit], dict[str, dict[str, Any]]]:
    """Collect hardware facts from all nodes.

    Returns every node's exit, and the facts of the nodes that responded, by node name. `inventory` documents the facts.
    `skew_s` is the node's clock minus this machine's clock, accurate to the duration of the call.
    """
    source = Path(__file__).with_name("inventory.py").read_text(encoding="utf-8")
    names = [node.address for node in cluster.nodes]
    exits = cluster.run(["python3", "-c", source, *names], timeout_s=timeout_s)
    now = time.time()
    facts: dict[str, dict[str, Any]] = {}
    for ended in exits:
        if ended.code == 0:
            found = json.loads(ended.out)
            behind = now - found["time_s"]
            found["skew_s"] = 0.0 if 0 <= behind <= ended.seconds + 1 else -behind
            facts[ended.node] = found
    return exits, facts
