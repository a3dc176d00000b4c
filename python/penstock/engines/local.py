# SPDX-License-Identifier: Apache-2.0
"""`local`: one folder per node, which contains the objects staged to that node. Nodes share nothing; no daemon runs.

This engine is the default, because most jobs do not need a shared pool. If a node is lost, its objects are lost, too.
`heal` cannot list the lost objects, but the manifest contains them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.engines._shared.agent_client import (
    AgentClient,
    AgentManagedEngine,
    node_states,
    pool_root,
)
from penstock.engines._shared.folder_access import FolderAccess
from penstock.errors import Unsupported
from penstock.plugins import parse_settings
from penstock.protocols import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.protocols import PoolSpec, Runner

__all__ = ["LocalEngine", "engine"]


class LocalEngine(AgentManagedEngine):
    """Engine with one folder and one lease per node."""

    name = "local"

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:  # noqa: ARG002
        return []

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        if spec.copies != 1:
            raise Unsupported(
                f"engine local: supports only one copy (got {spec.copies})",
                hint="use --engine hdfs to keep copies",
            )
        AgentClient(spec, runner).call("prepare", timeout_s, lease=lease, of=self.name, need_bytes=spec.need_bytes)
        folders = {node.name: f"{pool_root(spec, node)}/data" for node in runner.nodes}
        # All nodes get the same URL. If the folder has the same path on all nodes, the URL is that path. Otherwise,
        # each rank reads its path from `facts`.
        url = (
            next(iter(folders.values()))
            if len(set(folders.values())) == 1
            else f"{spec.disk}/penstock-pool-{spec.name}/data"
        )
        return Pool(spec.name, self.name, lease, url, tuple(runner.nodes), 1, {"folders": folders})

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        roots = {name: {"root": folder.removesuffix("/data")} for name, folder in pool.facts["folders"].items()}
        answers = AgentClient.of(pool, runner).try_call("alive", timeout_s, on=pool.nodes, each=roots)
        return node_states(answers, lambda _, alive: alive["lease"] == pool.lease)

    def access(self, pool: Pool, node: str) -> FolderAccess:
        return FolderAccess(Path(pool.facts["folders"][node]), node, is_own=True)


def engine(settings: Mapping[str, Any], environment: Mapping[str, str]) -> LocalEngine:  # noqa: ARG001
    """Entry point `penstock.engines: local`."""
    parse_settings("engine local", settings, {})
    return LocalEngine()
