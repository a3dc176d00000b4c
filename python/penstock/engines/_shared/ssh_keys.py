# SPDX-License-Identifier: Apache-2.0
"""ssh keys between the nodes of a pool, for engines that connect nodes by ssh. The private key never leaves the first node; the
launcher carries only public keys.
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
    """Lets the first node in on all of them, itself too, for as long as the lease; done again it changes nothing.

    Args:
        until: By when, on the monotonic clock.

    Raises:
        PenstockError: A node that did not answer, or refused, by its name.
    """
    nodes = list(agents.runner.nodes)

    def call(verb: str, on: list[Node], **request: Any) -> dict[str, Any]:
        return agents.call(verb, until - time.monotonic(), on=on, agent=_AGENT, lease=lease, **request)

    public = call("make_key", nodes[:1])[nodes[0].name]
    host_keys = call("host_keys", nodes)
    call("authorize", nodes, key=public)
    call("add_known_hosts", nodes[:1], hosts={node.address: host_keys[node.name] for node in nodes})


def remove(agents: AgentClient, lease: str, deadline_s: float) -> dict[str, dict[str, list[str]]]:
    """Takes the keys of a lease back, or with none those of every life of the pool; `keys`, what had some, by node, or `refused`.

    A node that is missing did not answer, or could not: its keys are there still.
    """
    answers = down_receipts(agents.try_call("remove", deadline_s, agent=_AGENT, lease=lease))
    return {node: found if isinstance(found, dict) else {"keys": found} for node, found in answers.items()}


def leftovers(agents: AgentClient, deadline_s: float) -> dict[str, list[str]]:
    """What still has keys of the pool, in words, by node; nobody could look at one that is missing."""
    return successes(agents.try_call("leftovers", deadline_s, agent=_AGENT))
