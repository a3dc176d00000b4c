# SPDX-License-Identifier: Apache-2.0
"""Nodes that are lost in the middle of a job: which they are, and what they alone held."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.exits import check
from penstock.errors import SystemFault
from penstock.pool import engine_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cluster.cluster import Cluster
    from penstock.job.commands import Words
    from penstock.protocols import Exit, Pool

__all__ = ["lost_of", "mend"]

_ASK_S = 30.0


def lost_of(cluster: Cluster, bad: Sequence[Exit]) -> list[str]:
    """Of the nodes whose ranks ended badly, those that answer no more. The others' ranks have failed by themselves."""
    names = {ended.node for ended in bad}
    suspects = [node for node in cluster.nodes if node.name in names]
    # Bytes for stdin go node by node: of one mpirun or srun over all, a single dead node ends all ranks.
    asked = cluster.run(["true"], on=suspects, stdin=b"", deadline_s=_ASK_S)
    return [ended.node for ended in asked if ended.code != 0]


def mend(
    cluster: Cluster, pool: Pool, settings: Mapping[str, Any], lost: Sequence[str], words: Words, *, deadline_s: float
) -> int:
    """Takes out of the pool the objects of which no whole copy is left, so that a stage brings them again; how many.

    The engine may not have noticed yet that the nodes are gone: so what it locates on them alone counts too.

    Raises:
        PenstockError: The pool itself does not answer.
    """
    noticed = engine_plugins.load(pool.engine, settings).heal(pool, cluster, deadline_s=deadline_s)
    orders = json.dumps([["delete", noticed], ["forsake", list(lost)]])
    # On a node: this machine need not reach the nodes' own network.
    ended = cluster.run_on_leader(
        words.orders(pool.engine, cluster.leader.name, orders), deadline_s=deadline_s, stdin=msgspec.json.encode(pool)
    )
    check([ended], "pool")
    answers = json.loads(ended.out)
    for answer in answers:
        if isinstance(answer, dict):
            raise SystemFault(f"pool {pool.name}: {answer['text']}")
    return len(noticed) + int(answers[1])
