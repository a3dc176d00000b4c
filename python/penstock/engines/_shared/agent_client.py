# SPDX-License-Identifier: Apache-2.0
"""Client of the node agents: sends an engine's requests to all nodes, and raises failures with the node's name."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, PenstockError, PreconditionFailed, SystemFault, Unreachable, of_code
from penstock.node_program import node_program
from penstock.protocols import PoolSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.protocols import Exit, Node, Pool, Runner

__all__ = [
    "AgentClient",
    "AgentManagedEngine",
    "daemon_states",
    "down_receipts",
    "node_states",
    "pool_root",
    "pool_roots",
    "successes",
]


_REMOTE = Path(__file__).parents[1] / "_remote"


def pool_root(spec: PoolSpec, node: Node) -> str:
    """Path of the folder that contains everything of the pool on a node."""
    disk = spec.disk.replace("{node}", node.name)
    if not posixpath.isabs(disk):
        raise ConfigError(f"disk: `{disk}` is not an absolute path", where="disk")
    return posixpath.join(posixpath.normpath(disk), f"penstock-pool-{spec.name}")


class AgentClient:
    """Client of the agents on all nodes of one pool."""

    def __init__(self, spec: PoolSpec, runner: Runner, *, python: str = "python3") -> None:
        self.spec = spec
        self.runner = runner
        self._python = python

    @classmethod
    def of(cls, pool: Pool, runner: Runner) -> AgentClient:
        """Return a client for a running pool. Every request must state the pool's folder as `root`."""
        return cls(PoolSpec(pool.name, "/", pool.copies), runner)

    def call(
        self,
        verb: str,
        timeout_s: float,
        *,
        on: Sequence[Node] | None = None,
        each: Mapping[str, Mapping[str, Any]] | None = None,
        agent: str = "node_agent",
        **common: Any,
    ) -> dict[str, Any]:
        """Send a request to every node; return the results by node name.

        Raises:
            PenstockError: A node returned an error or did not respond; the error names the first such node.
        """
        answers = self.try_call(verb, timeout_s, on=on, each=each, agent=agent, **common)
        for answer in answers.values():
            if isinstance(answer, PenstockError):
                raise answer
        return answers

    def try_call(
        self,
        verb: str,
        timeout_s: float,
        *,
        on: Sequence[Node] | None = None,
        each: Mapping[str, Mapping[str, Any]] | None = None,
        agent: str = "node_agent",
        **common: Any,
    ) -> dict[str, Any]:
        """Send a request to every node; return a result or an error for each, by node name.

        `agent` is the script to run: `node_agent`, or `ssh_keys_agent` for keys.
        """
        nodes = list(self.runner.nodes) if on is None else list(on)
        own = {
            node.name: {"root": pool_root(self.spec, node), "address": node.address, **(each or {}).get(node.name, {})}
            for node in nodes
        }
        requests = json.dumps({"all": {"name": self.spec.name, **common}, "each": own}).encode()
        exits = self.runner.run(
            [self._python, "-c", node_program(_REMOTE / f"{agent}.py"), verb, "{node}"],
            on=nodes,
            timeout_s=max(1.0, timeout_s),
            stdin=requests,
            expand_placeholders=True,
        )
        return {ended.node: _parse_answer(ended) for ended in exits}

    def raise_if_dead(self, timeout_s: float) -> None:
        """Raise SystemFault if a daemon of the pool has ended; the error quotes the daemon's last output."""
        for name, answer in self.call("alive", timeout_s).items():
            for daemon, text in answer["dead"].items():
                raise SystemFault(f"{name}: the {daemon} has ended: {text}", where=name)


def successes(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of the nodes that succeeded, by node name. `audit` returns these results."""
    return {name: answer for name, answer in answers.items() if not isinstance(answer, PenstockError)}


def down_receipts(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Build the result of an engine's `down`: the results of all nodes that responded.

    A node whose folder does not belong to the pool has only the entry `refused`.
    """
    return {
        name: {"refused": [str(answer)]} if isinstance(answer, PreconditionFailed) else answer
        for name, answer in answers.items()
        if isinstance(answer, PreconditionFailed) or not isinstance(answer, PenstockError)
    }


def node_states(answers: Mapping[str, Any], is_up: Callable[[str, Any], bool]) -> dict[str, str]:
    """Return every node's state: `lost` without a response, `up` if `is_up` accepts its result, else `degraded`."""
    return {
        name: "lost" if isinstance(answer, PenstockError) else "up" if is_up(name, answer) else "degraded"
        for name, answer in answers.items()
    }


def daemon_states(pool: Pool, answers: Mapping[str, Any], serving: Collection[str]) -> dict[str, str]:
    """Return node states for engines with daemons, given the results of the verb `alive`.

    A node is up if it has the pool's lease, none of its daemons has ended, and `serving` contains it. The engine
    computes `serving` from its own file system.
    """
    return node_states(
        answers, lambda name, alive: alive["lease"] == pool.lease and not alive["dead"] and name in serving
    )


def pool_roots(pool: Pool) -> dict[str, dict[str, Any]]:
    """Return the argument `root` for each node's request, from the pool folders that the engine stored in the facts."""
    return {name: {"root": facts["root"]} for name, facts in pool.facts["nodes"].items()}


class AgentManagedEngine:
    """Base class of engines whose pools are taken down and audited by the node agents."""

    def heal(self, pool: Pool, runner: Runner, *, timeout_s: float) -> list[str]:  # noqa: ARG002
        """Return an empty list, because the engine cannot find out which objects were stored only on a lost node."""
        return []

    def down(
        self, spec: PoolSpec, runner: Runner, *, lease: str, keep_data: bool, timeout_s: float
    ) -> dict[str, dict[str, Any]]:
        return down_receipts(AgentClient(spec, runner).try_call("stop", timeout_s, lease=lease, keep_data=keep_data))

    def audit(self, spec: PoolSpec, runner: Runner, *, timeout_s: float) -> dict[str, list[str]]:
        return successes(AgentClient(spec, runner).try_call("audit", timeout_s))


def _parse_answer(ended: Exit) -> Any:
    if ended.fault is not None:
        return (
            ended.fault
            if isinstance(ended.fault, PenstockError)
            else Unreachable(f"{ended.node}: {ended.fault}", where=ended.node)
        )
    try:
        answer = json.loads(ended.out)
    except ValueError:
        stderr_lines = ended.err.decode(errors="replace").strip().splitlines()
        return SystemFault(
            f"{ended.node}: the pool's agent failed with exit code "
            f"{ended.code}{f': {stderr_lines[-1][:300]}' if stderr_lines else ''}",
            where=ended.node,
        )
    if "error" in answer:
        text = f"{ended.node}: {answer['text']}"
        return of_code(answer["error"], text, hint=answer["hint"] or None, where=ended.node)
    return answer["ok"]
