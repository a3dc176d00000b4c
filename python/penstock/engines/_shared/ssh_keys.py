# SPDX-License-Identifier: Apache-2.0
"""Exchanges ssh keys between the nodes of a pool, for engines that connect the nodes by ssh.

The private key never leaves the first node; the launcher transfers only public keys.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.engines._shared.agent_client import down_receipts, successes

if TYPE_CHECKING:
    from penstock.engines._shared.agent_client import AgentClient
    from penstock.protocols import Node

__all__ = ["exchange", "leftovers", "remove"]

_AGENT = "ssh_keys_agent"


def exchange(agents: AgentClient, lease: str, until: float) -> None:
    """Let the first node log in to all nodes, itself included, until the lease's keys are removed. Idempotent.

    Args:
        until: Deadline on the monotonic clock, in seconds.

    Raises:
        PenstockError: A node did not respond, or returned an error; the error contains its name.
    """
    nodes = list(agents.runner.nodes)

    def call(verb: str, on: list[Node], **request: Any) -> dict[str, Any]:
        return agents.call(verb, until - time.monotonic(), on=on, agent=_AGENT, lease=lease, **request)

    public = call("make_key", nodes[:1])[nodes[0].name]
    host_keys = call("host_keys", nodes)
    call("authorize", nodes, key=public)
    call("add_known_hosts", nodes[:1], hosts={node.address: host_keys[node.name] for node in nodes})


def remove(agents: AgentClient, lease: str, timeout_s: float) -> dict[str, dict[str, list[str]]]:
    """Remove the keys of one lease, or of all leases of the pool if `lease` is empty.

    Returns for each node the changed files as `keys`, or the reason why nothing was removed as `refused`. A node that
    failed or did not respond is not in the result, and still has its keys.
    """
    answers = down_receipts(agents.try_call("remove", timeout_s, agent=_AGENT, lease=lease))
    return {node: found if isinstance(found, dict) else {"keys": found} for node, found in answers.items()}


def leftovers(agents: AgentClient, timeout_s: float) -> dict[str, list[str]]:
    """List the files that still contain keys of the pool, as messages, by node. Nodes that failed are left out."""
    return successes(agents.try_call("leftovers", timeout_s, agent=_AGENT))
