# SPDX-License-Identifier: Apache-2.0
"""Keys between the nodes of a pool, for engines that go from node to node by ssh. The private key never leaves the first node:
public halves alone cross, by the launcher, which knows whom it talks to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.engines._shared.agent_client import of_those_that_answered, receipts_of

if TYPE_CHECKING:
    from penstock.engines._shared.agent_client import Hands
    from penstock.protocols import Node

__all__ = ["exchange", "left", "withdraw"]

_AGENT = "ssh_keys_agent"


def exchange(hands: Hands, lease: str, until: float) -> None:
    """Lets the first node in on all of them, itself too, for as long as the lease; done again it changes nothing.

    Args:
        until: By when, on the monotonic clock.

    Raises:
        PenstockError: A node that did not answer, or refused, by its name.
    """
    nodes = list(hands.runner.nodes)

    def ask(verb: str, on: list[Node], **order: Any) -> dict[str, Any]:
        return hands.ask(verb, until - time.monotonic(), on=on, agent=_AGENT, lease=lease, **order)

    public = ask("make", nodes[:1])[nodes[0].name]
    shown = ask("shown", nodes)
    ask("admit", nodes, key=public)
    ask("trust", nodes[:1], hosts={node.address: shown[node.name] for node in nodes})


def withdraw(hands: Hands, lease: str, deadline_s: float) -> dict[str, dict[str, list[str]]]:
    """Takes the keys of a lease back, or with none those of every life of the pool; `keys`, what had some, by node, or `refused`.

    A node that is missing did not answer, or could not: its keys are there still.
    """
    answers = receipts_of(hands.try_asking("withdraw", deadline_s, agent=_AGENT, lease=lease))
    return {node: found if isinstance(found, dict) else {"keys": found} for node, found in answers.items()}


def left(hands: Hands, deadline_s: float) -> dict[str, list[str]]:
    """What still has keys of the pool, in words, by node; nobody could look at one that is missing."""
    return of_those_that_answered(hands.try_asking("left", deadline_s, agent=_AGENT))
