# SPDX-License-Identifier: Apache-2.0
"""`mount`: a parallel file system that is already mounted on every node (Lustre, GPFS, BeeGFS, CephFS, NFS, FSx).

Starts no daemons, and removes only the pool's own folder. The pool's disk is a folder on that file system. Has no
settings.
"""

from __future__ import annotations

import re
from glob import escape
from typing import TYPE_CHECKING, Any

from penstock.engines._shared.agent_client import AgentClient, down_receipts, node_states, pool_root
from penstock.engines._shared.folder_access import SharedFolderEngine
from penstock.errors import ConfigError, PenstockError
from penstock.plugins import parse_settings
from penstock.protocols import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.protocols import Node, PoolSpec, Runner

__all__ = ["MountEngine", "engine"]

_TOOL_S = 10.0
_PAIR = re.compile(r"(\w+):\s+(-?\w+)")


class MountEngine(SharedFolderEngine):
    """Engine with one folder on a mounted file system, at the same path on all nodes, with a single lease."""

    name = "mount"

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        lacks = []
        for node, found in facts.items():
            if not any(
                spec.disk == disk["path"] or spec.disk.startswith(disk["path"].rstrip("/") + "/")
                for disk in found["disks"]
            ):
                lacks.append(f"{node}: {spec.disk} is not on a mounted file system")
        return lacks

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        if "{" in spec.disk:
            raise ConfigError("engine mount: the disk must be the same path on all nodes", where="disk")
        agents, leader = AgentClient(spec, runner), [runner.nodes[0]]
        agents.call("prepare", timeout_s, on=leader, lease=lease, of=self.name, need_bytes=spec.need_bytes)
        root = pool_root(spec, leader[0])
        seen = agents.call("has", timeout_s, patterns=[escape(f"{root}/lease.json")])
        for node, is_seen in seen.items():
            if not is_seen:
                raise ConfigError(
                    f"{node}: {root} is missing, although {leader[0].name} created it: the nodes do not share the"
                    " mount",
                    where=node,
                )
        facts = {"root": root, **_stripes(runner, leader, f"{root}/data", timeout_s)}
        return Pool(spec.name, self.name, lease, f"{root}/data", tuple(runner.nodes), 1, facts)

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        answers = AgentClient.of(pool, runner).try_call(
            "has", timeout_s, on=pool.nodes, patterns=[escape(f"{pool.facts['root']}/lease.json")]
        )
        return node_states(answers, lambda _, is_seen: bool(is_seen))

    def down(
        self, spec: PoolSpec, runner: Runner, *, lease: str, keep_data: bool, timeout_s: float
    ) -> dict[str, dict[str, Any]]:
        agents = AgentClient(spec, runner)
        seen = agents.try_call("has", timeout_s / 2, patterns=[])
        reached = [node for node in runner.nodes if not isinstance(seen[node.name], PenstockError)]
        # All nodes share one folder. The first node that responds removes the folder for all nodes.
        first: dict[str, Any] = {}
        if reached:
            first = down_receipts(
                agents.try_call("stop", timeout_s / 2, on=reached[:1], lease=lease, keep_data=keep_data)
            )
        # If the removal failed on that node, the folder still exists, and the result is empty.
        return {node.name: first.get(node.name, {}) for node in reached if first}


def _stripes(runner: Runner, leader: list[Node], folder: str, timeout_s: float) -> dict[str, Any]:
    """Striping of new files in the folder, as reported by Lustre's `lfs getstripe`; empty on other file systems."""
    [ended] = runner.run(["lfs", "getstripe", "-d", folder], on=leader, timeout_s=min(timeout_s, _TOOL_S))
    if ended.code != 0:
        return {}
    # Output format: stripe_count:  1 stripe_size:   1048576 pattern:  0 stripe_offset: -1
    found = dict(_PAIR.findall(ended.out.decode(errors="replace")))
    numbers = {"stripe_count": "stripes", "stripe_size": "stripe_bytes"}
    return {
        ours: int(found[theirs]) for theirs, ours in numbers.items() if found.get(theirs, "").lstrip("-").isdecimal()
    }


def engine(settings: Mapping[str, Any], environment: Mapping[str, str]) -> MountEngine:  # noqa: ARG001
    """Entry point `penstock.engines: mount`."""
    parse_settings("engine mount", settings, {})
    return MountEngine()
