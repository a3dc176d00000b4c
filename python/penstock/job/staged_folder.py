# SPDX-License-Identifier: Apache-2.0
"""The folder of a `staged` path on every node. Like a pool's folder it has a lease of the job, and only that lease removes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engines._shared.agent_client import AgentClient
from penstock.errors import PenstockError
from penstock.protocols import PoolSpec

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.cluster.cluster import Cluster

__all__ = ["claim", "release"]


def claim(cluster: Cluster, name: str, disk: str, lease: str, *, deadline_s: float) -> None:
    """Makes the folder on every node; one that this lease has made already is taken as it is.

    Raises:
        PenstockError: A node did not answer, or something else lies there; the text begins with the node's name.
    """
    AgentClient(PoolSpec(name, disk), cluster).call("prepare", deadline_s, lease=lease, of="staged", need_bytes=0)


def release(cluster: Cluster, name: str, disk: str, lease: str, *, lost: Collection[str], deadline_s: float) -> None:
    """Removes what `claim` made, on every node by itself: one that is lost fails no other.

    Raises:
        PenstockError: The first node that is not lost, and did not do it.
    """
    answers = AgentClient(PoolSpec(name, disk), cluster).try_call("stop", deadline_s, lease=lease, keep_data=False)
    for node, answer in answers.items():
        if isinstance(answer, PenstockError) and node not in lost:
            raise type(answer)(f"remove: {answer}", hint=answer.hint, where=node)
