# SPDX-License-Identifier: Apache-2.0
"""Recovery from nodes lost during a job: finds the unreachable nodes, and evicts objects without a complete copy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.exits import raise_for_failures
from penstock.errors import SystemFault
from penstock.pool import engine_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cluster.cluster import Cluster
    from penstock.job.step_commands import StepCommands
    from penstock.protocols import Exit, Pool

__all__ = ["evict_lost_objects", "unreachable_nodes"]

_PROBE_TIMEOUT_S = 30.0


def unreachable_nodes(cluster: Cluster, bad: Sequence[Exit]) -> list[str]:
    """Nodes whose ranks failed and that no longer answer. Ranks on the other nodes failed for their own reasons."""
    names = {ended.node for ended in bad}
    suspects = [node for node in cluster.nodes if node.name in names]
    # With stdin, nodes are contacted one by one: under a single mpirun or srun, one dead node would end all ranks.
    probes = cluster.run(["true"], on=suspects, stdin=b"", timeout_s=_PROBE_TIMEOUT_S)
    return [ended.node for ended in probes if ended.code != 0]


def evict_lost_objects(
    cluster: Cluster,
    pool: Pool,
    settings: Mapping[str, Any],
    lost: Sequence[str],
    commands: StepCommands,
    *,
    timeout_s: float,
) -> int:
    """Delete the objects without a complete copy, so that the next stage fetches them again; returns their number.

    The engine may not have noticed the loss yet, so objects that it locates only on lost nodes are deleted too.

    Raises:
        PenstockError: The pool itself does not answer.
    """
    noticed = engine_plugins.load(pool.engine, settings).heal(pool, cluster, timeout_s=timeout_s)
    requests = json.dumps([["delete", noticed], ["evict", list(lost)]])
    # Run on a node, because this machine may not reach the nodes' own network.
    ended = cluster.run_on_leader(
        commands.pool_exec(pool.engine, cluster.leader.name, requests),
        timeout_s=timeout_s,
        stdin=msgspec.json.encode(pool),
    )
    raise_for_failures([ended], "pool")
    answers = json.loads(ended.out)
    for answer in answers:
        if isinstance(answer, dict):
            raise SystemFault(f"pool {pool.name}: {answer['text']}")
    return len(noticed) + int(answers[1])
