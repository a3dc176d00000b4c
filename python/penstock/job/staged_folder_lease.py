# SPDX-License-Identifier: Apache-2.0
"""Creates and removes the folder of a `staged` path on every node. Removal requires the job's lease, as for a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engines._shared.agent_client import AgentClient
from penstock.errors import PenstockError
from penstock.protocols import PoolSpec

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.cluster.cluster import Cluster

__all__ = ["claim", "release"]


def claim(cluster: Cluster, name: str, disk: str, lease: str, *, timeout_s: float) -> None:
    """Create the folder on every node. An existing folder with the same lease is kept.

    Raises:
        PenstockError: A node did not respond, or its path is in use. The error message begins with the node's name.
    """
    AgentClient(PoolSpec(name, disk), cluster).call("prepare", timeout_s, lease=lease, of="staged", need_bytes=0)


def release(cluster: Cluster, name: str, disk: str, lease: str, *, lost: Collection[str], timeout_s: float) -> None:
    """Remove the folder that `claim` created from every node. Failures of nodes in `lost` are ignored.

    Raises:
        PenstockError: The first failure of any other node.
    """
    answers = AgentClient(PoolSpec(name, disk), cluster).try_call("stop", timeout_s, lease=lease, keep_data=False)
    for node, answer in answers.items():
        if isinstance(answer, PenstockError) and node not in lost:
            raise type(answer)(f"remove: {answer}", hint=answer.hint, where=node)
