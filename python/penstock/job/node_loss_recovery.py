# SPDX-License-Identifier: Apache-2.0
"""Recovery from nodes lost during a job: finds the unreachable nodes, and evicts objects without a complete copy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.exits import raise_for_failures
from penstock.errors import SystemFault
from penstock.pool import engine_registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cluster.cluster import Cluster
    from penstock.job.step_commands import StepCommands
    from penstock.protocols import Exit, Pool

__all__ = ["evict_lost_objects", "unreachable_nodes"]

_PROBE_TIMEOUT_S = 30.0


def unreachable_nodes(cluster: Cluster, bad: Sequence[Exit]) -> list[str]:
    """Return the nodes that have failed ranks and no longer respond. If a node responds, its ranks failed for another
    reason.
    """
    names = {ended.node for ended in bad}
    suspects = [node for node in cluster.nodes if node.name in names]
    # A request with stdin contacts nodes one by one. Under a single mpirun or srun, one dead node would end all ranks.
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
    """Delete objects without a complete copy, so that the next stage step fetches them again. Return the number of
    deleted objects.

    Possibly, the engine has not detected the loss yet. Therefore, objects that the engine still locates, but only on
    lost nodes, are also deleted.

    Raises:
        PenstockError: The pool does not respond.
    """
    noticed = engine_registry.load(pool.engine, settings).heal(pool, cluster, timeout_s=timeout_s)
    requests = json.dumps([["delete", noticed], ["evict", list(lost)]])
    # The request runs on a node, because this machine may be unable to reach the network of the pool.
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
