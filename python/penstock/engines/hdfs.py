# SPDX-License-Identifier: Apache-2.0
"""`hdfs`: HDFS across the nodes' own disks, with a NameNode on the first node and a DataNode on every node.

Needs Java, but not root.

Settings: `hadoop` (a folder of jars or an installed Hadoop, on every node; by default, Maven downloads the jars once,
and nodes that lack them get copies), `java`, `namenode_heap_mb`, `datanode_heap_mb`, `block_bytes` (256 MiB; an object
of one block can be read by `fast_path`), `port` (of the NameNode; by default a free port).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from penstock.engines._shared.agent_client import (
    AgentClient,
    AgentManagedEngine,
    daemon_states,
    pool_root,
    pool_roots,
)
from penstock.engines._shared.hadoop import configured, data_options, install_jars, installed_class_path, required_files
from penstock.engines._shared.webhdfs import HdfsAccess
from penstock.errors import Deadline, PenstockError, Unreachable
from penstock.plugins import parse_settings
from penstock.protocols import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.protocols import Node, PoolSpec, Runner

__all__ = ["HdfsEngine", "engine"]

_LOOK_S = 0.3
_AGENT_TIMEOUT_S = 10.0
_FIRST_S = 30.0
_FORMAT_S = 120.0
_KNOWN: dict[str, Any] = {
    "hadoop": "", "java": "java", "namenode_heap_mb": 384, "datanode_heap_mb": 256, "block_bytes": 256 << 20, "port": 0,
}  # fmt: skip


class HdfsEngine(AgentManagedEngine):
    """Engine with one HDFS per pool, which ends with the pool."""

    name = "hdfs"

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._settings = parse_settings(f"engine {self.name}", settings, _KNOWN)
        self._environment = dict(environment)

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        lacks = []
        for node, found in facts.items():
            if not found["java"] and self._settings["java"] == "java":
                lacks.append(f"{node}: Java (11 or 17) is not installed")
            if found["unresolved"]:
                lacks.append(f"{node}: the host names {', '.join(found['unresolved'])} cannot be resolved")
        if spec.copies > len(facts):
            lacks.append(f"{spec.copies} copies require at least {spec.copies} nodes (got {len(facts)})")
        return lacks

    # ------------------------------------------------------------ up

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        until = time.monotonic() + timeout_s
        agents = AgentClient(spec, runner)
        path = installed_class_path(self._settings["hadoop"], self._environment)
        leader, fixed = runner.nodes[0], [self._settings["port"]] if self._settings["port"] else []
        found = agents.call(
            "prepare", until - time.monotonic(), lease=lease, of=self.name, need_bytes=spec.need_bytes,
            wants=[] if path is None else required_files(path), each={n.name: {"ports": 5 if n == leader else 3, "fixed": fixed if n == leader else []} for n in runner.nodes},
        )  # fmt: skip
        paths = dict.fromkeys(found, path) if path else install_jars(self._environment, runner, agents, spec, until)
        rpc, http, *_ = found[leader.name]["ports"]
        data = {node.name: found[node.name]["ports"][-3:] for node in runner.nodes}
        requests = {
            node.name: self._order(spec, node, leader, (rpc, http), data[node.name], paths[node.name], runner)
            for node in runner.nodes
        }
        agents.call("start", until - time.monotonic(), lease=lease, each=requests)
        pool = Pool(
            spec.name, self.name, lease, f"hdfs://{leader.address}:{rpc}/", tuple(runner.nodes), spec.copies,
            {
                "http": f"{leader.address}:{http}",
                "nodes": {node.name: {"data": f"{node.address}:{data[node.name][0]}", "root": pool_root(spec, node)} for node in runner.nodes},
                "block_bytes": self._settings["block_bytes"],
            },
        )  # fmt: skip
        self._await(pool, spec, agents, until, timeout_s)
        return pool

    def _order(
        self,
        spec: PoolSpec,
        node: Node,
        leader: Node,
        names: tuple[int, int],
        data: list[int],
        jars: str,
        runner: Runner,
    ) -> dict[str, Any]:
        root = pool_root(spec, node)
        java = [self._settings["java"], "-XX:+UseSerialGC", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        path = ["-cp", f"{root}/conf:{jars}"]
        master = [
            *java,
            f"-Xmx{self._settings['namenode_heap_mb']}m",
            *path,
            "org.apache.hadoop.hdfs.server.namenode.NameNode",
        ]
        worker = [
            *java,
            f"-Xmx{self._settings['datanode_heap_mb']}m",
            *path,
            "org.apache.hadoop.hdfs.server.datanode.DataNode",
        ]
        request: dict[str, Any] = {
            "files": configured(
                root, leader.address, *names, copies=spec.copies, block_bytes=self._settings["block_bytes"]
            ),
            "daemons": [
                {
                    "name": "datanode",
                    "argv": [*worker, *data_options(root, node.address, data)],
                    "log": "logs/datanode.log",
                }
            ],
        }
        if node == leader:
            request["files"]["conf/hosts"] = "".join(f"{each.address}\n" for each in runner.nodes)
            request["once"] = [{
                "what": "formatting the NameNode", "unless": "data/name/current/VERSION", "log": "logs/format.log",
                "argv": [*master, "-format", "-force", "-nonInteractive"], "limit_s": _FORMAT_S,
            }]  # fmt: skip
            request["daemons"].insert(0, {"name": "namenode", "argv": master, "log": "logs/namenode.log"})
        return request

    def _await(self, pool: Pool, spec: PoolSpec, agents: AgentClient, until: float, timeout_s: float) -> None:
        """Wait until the NameNode lists every DataNode as live and accepts writes."""
        tries, seen = 0, "the NameNode has not answered"
        while True:
            tries += 1
            try:
                state = self._state(pool, agents, _AGENT_TIMEOUT_S)
                live, missing = len(state["live"]), [n.name for n in pool.nodes if n.name not in state["live"]]
                if not missing and not state["safemode"]:
                    # The NameNode's first WebHDFS response takes seconds, longer than a reader's timeout.
                    url = f"http://{pool.facts['http']}/webhdfs/v1/?op=GETFILESTATUS&user.name=penstock"
                    left = max(1.0, min(_FIRST_S, until - time.monotonic()))
                    agents.call("http", left + 1, on=[pool.nodes[0]], url=url, limit_s=left)
                    return
                seen = (
                    f"{live} of {len(pool.nodes)} DataNodes have reported; missing: {', '.join(missing[:4])}"
                    if missing
                    else state["safemode"]
                )
            except PenstockError as error:
                seen = str(error)
            if tries % 4 == 0:
                agents.raise_if_dead(_AGENT_TIMEOUT_S)
            if time.monotonic() > until:
                raise Deadline(f"pool {spec.name}: not ready within {timeout_s:g} s: {seen}", limit_s=timeout_s)
            time.sleep(_LOOK_S)

    def _state(self, pool: Pool, agents: AgentClient, limit_s: float) -> dict[str, Any]:
        """Request the NameNode's report about the DataNodes; the request is sent from the NameNode's host."""
        leader = [pool.nodes[0]]
        url = f"http://{pool.facts['http']}/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo"
        answer = agents.call("http", limit_s, on=leader, url=url, limit_s=limit_s / 2)[leader[0].name]
        beans = answer.get("beans") if isinstance(answer, dict) else None
        if not beans:
            raise Unreachable(f"{leader[0].name}: the NameNode does not respond yet", where=leader[0].name)
        live = {facts["xferaddr"] for facts in json.loads(beans[0]["LiveNodes"]).values()}
        return {
            "live": [name for name, facts in pool.facts["nodes"].items() if facts["data"] in live],
            "safemode": beans[0]["Safemode"],
            "missing": beans[0].get("NumberOfMissingBlocks", 0),
        }

    # ------------------------------------------------------------ status and access

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        agents = AgentClient.of(pool, runner)
        answers = agents.try_call("alive", timeout_s, on=pool.nodes, each=pool_roots(pool))
        try:
            live = self._state(pool, agents, min(timeout_s, _AGENT_TIMEOUT_S))["live"]
        except PenstockError:
            live = []
        return daemon_states(pool, answers, live)

    def access(self, pool: Pool, node: str) -> HdfsAccess:
        return HdfsAccess(pool, node)

    def heal(self, pool: Pool, runner: Runner, *, timeout_s: float) -> list[str]:
        leader, agents = [pool.nodes[0]], AgentClient.of(pool, runner)
        url = f"http://{pool.facts['http']}/fsck?ugi=penstock&path=%2F&listcorruptfileblocks=1"
        text = agents.call("http", timeout_s, on=leader, each=pool_roots(pool), url=url, limit_s=timeout_s / 2)[
            leader[0].name
        ]
        # Each line is `blk_1073741825<tab>/x`. Newer versions insert the number of copies between block and path. The
        # last line is a sentence.
        lines = (line.split("\t") for line in str(text).splitlines() if line.startswith("blk_"))
        names = {columns[-1].lstrip("/") for columns in lines if len(columns) > 1}
        return sorted(names)


def engine(settings: Mapping[str, Any], environment: Mapping[str, str]) -> HdfsEngine:
    """Entry point `penstock.engines: hdfs`."""
    return HdfsEngine(settings, environment)
