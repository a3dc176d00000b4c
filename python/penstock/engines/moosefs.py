# SPDX-License-Identifier: Apache-2.0
"""`moosefs`: MooseFS 3 across the nodes' disks, mounted by FUSE on every node, for programs that need file paths.

Runs a master on the first node, and a chunk server and a mount on each node, from Debian's packages moosefs-master,
-chunkserver, -client and -cli. Needs FUSE. Loopback addresses do not work, because the master identifies servers by
address.

Settings: - `leave_bytes`: free space that is never used on each disk. - `io_retries`: number of attempts to read data
of a lost node, ten seconds apart. During the attempts, programs hang and cannot be terminated; after the last attempt,
they get an error. 0 means one attempt if a pool has one copy of each object, and five attempts if it has more copies. -
`io_timeout_s`: maximum duration of one read.
"""

from __future__ import annotations

import ipaddress
import subprocess
import time
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.engines._shared.agent_client import (
    AgentClient,
    AgentManagedEngine,
    daemon_states,
    pool_root,
    pool_roots,
)
from penstock.engines._shared.folder_access import FolderAccess
from penstock.errors import ConfigError, Deadline, PenstockError, SystemFault
from penstock.plugins import parse_settings
from penstock.protocols import Located, Pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.protocols import Exit, Node, PoolSpec, Runner

__all__ = ["MooseFsAccess", "MooseFsEngine", "engine"]

_LOOK_S = 0.3
_AGENT_TIMEOUT_S = 10.0
_PROGRAMS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfscli", "mfssetgoal", "mfsfileinfo")
_CHUNK_BYTES = 64 << 20
_MAX_COPIES = 9
_KNOWN: dict[str, Any] = {"leave_bytes": 256 << 20, "io_retries": 0, "io_timeout_s": 30}


class MooseFsEngine(AgentManagedEngine):
    """Engine with one MooseFS per pool, which ends with the pool."""

    name = "moosefs"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = parse_settings(f"engine {self.name}", settings, _KNOWN)

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        lacks = []
        for node, found in facts.items():
            missing = [name for name in _PROGRAMS if not found["programs"].get(name)]
            if missing:
                lacks.append(
                    f"{node}: {', '.join(missing)} is not installed (Debian: moosefs-master, -chunkserver, -client, "
                    "-cli)"
                )
            if not found["fuse"]:
                lacks.append(f"{node}: /dev/fuse cannot be opened")
        if spec.copies > min(len(facts), _MAX_COPIES):
            lacks.append(f"{spec.copies} copies require at least {spec.copies} nodes (got {len(facts)})")
        return lacks

    # ------------------------------------------------------------ up

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        until = time.monotonic() + timeout_s
        if "{" in spec.disk:
            # All programs use one path, so the mount point must be the same on every node.
            raise ConfigError(
                f"engine moosefs: the disk must be the same path on all nodes (got `{spec.disk}`)", where="disk"
            )
        for node in runner.nodes:
            _refuse_loopback(node)
        agents, leader = AgentClient(spec, runner), runner.nodes[0]
        found = agents.call(
            "prepare", timeout_s, lease=lease, of=self.name, need_bytes=spec.need_bytes,
            each={node.name: {"ports": 4 if node == leader else 1} for node in runner.nodes},
        )  # fmt: skip
        meta, chunk, client = found[leader.name]["ports"][:3]
        servers = {node.name: found[node.name]["ports"][-1] for node in runner.nodes}
        pool = Pool(
            spec.name, self.name, lease, f"{pool_root(spec, leader)}/mnt", tuple(runner.nodes), spec.copies,
            {
                "master": f"{leader.address}:{client}",
                "nodes": {node.name: {"server": f"{node.address}:{servers[node.name]}", "root": pool_root(spec, node)} for node in runner.nodes},
            },
        )  # fmt: skip
        requests = {node.name: self._order(spec, node, leader, chunk, servers[node.name]) for node in runner.nodes}
        master = self._master(pool_root(spec, leader), runner.nodes, (meta, chunk, client))
        requests[leader.name]["files"] |= master["files"]
        requests[leader.name]["daemons"][:0] = master["daemons"]
        agents.call("start", until - time.monotonic(), lease=lease, each=requests)
        self._await(pool, runner, agents, until, timeout_s)
        # Start the mounts after the master, because a mount exits if it does not find the master.
        mounts = {node.name: {"daemons": [self._mount(pool, node, client)]} for node in runner.nodes}
        agents.call("start", until - time.monotonic(), lease=lease, each=mounts)
        self._await_mounts(pool, agents, until, timeout_s)
        self._set_copies(pool, runner, leader, until)
        return pool

    def _order(self, spec: PoolSpec, node: Node, leader: Node, chunk: int, port: int) -> dict[str, Any]:
        root = pool_root(spec, node)
        config = {
            **_user(),
            "DATA_PATH": f"{root}/data/server",
            "HDD_CONF_FILENAME": f"{root}/conf/disks",
            "HDD_LEAVE_SPACE_DEFAULT": f"{self._settings['leave_bytes']}B",
            "MASTER_HOST": leader.address,
            "MASTER_PORT": chunk,
            "MASTER_RECONNECTION_DELAY": 1,
            "BIND_HOST": node.address,
            "CSSERV_LISTEN_HOST": node.address,
            "CSSERV_LISTEN_PORT": port,
        }
        return {
            "folders": ["data/server", "data/chunks", "mnt"],
            "files": {"conf/server.cfg": _config(config), "conf/disks": f"{root}/data/chunks\n"},
            "daemons": [
                {
                    "name": "server",
                    "argv": ["mfschunkserver", "-f", "-c", f"{root}/conf/server.cfg"],
                    "log": "logs/server.log",
                }
            ],
        }

    def _master(self, root: str, nodes: Sequence[Node], ports: tuple[int, int, int]) -> dict[str, Any]:
        leader = nodes[0]
        config: dict[str, Any] = {
            **_user(),
            "DATA_PATH": f"{root}/data",
            "EXPORTS_FILENAME": f"{root}/conf/exports",
            # After the loss of a node, start immediately to restore its chunks from the remaining copies.
            "REPLICATIONS_DELAY_INIT": 1,
        }
        for name, port in zip(("MATOML", "MATOCS", "MATOCL"), ports, strict=True):
            config |= {f"{name}_LISTEN_HOST": leader.address, f"{name}_LISTEN_PORT": port}
        return {
            "files": {
                "conf/master.cfg": _config(config),
                "conf/exports": "".join(f"{node.address} / rw,maproot=0:0\n" for node in nodes),
                "data/metadata.mfs": "MFSM NEW",
            },
            "daemons": [
                {
                    "name": "master",
                    "argv": ["mfsmaster", "-f", "-c", f"{root}/conf/master.cfg"],
                    "log": "logs/master.log",
                }
            ],
        }

    def _mount(self, pool: Pool, node: Node, client: int) -> dict[str, Any]:
        tries = self._settings["io_retries"] or (1 if pool.copies == 1 else 5)
        # `mfsbind`: the master accepts connections only from the addresses of the pool's nodes.
        options = f"mfsioretries={tries},mfstimeout={self._settings['io_timeout_s']},mfsbind={node.address}"
        root = pool.facts["nodes"][node.name]["root"]
        argv = ["mfsmount", "-f", "-H", pool.nodes[0].address, "-P", str(client), "-o", options, f"{root}/mnt"]
        return {"name": "mount", "argv": argv, "log": "logs/mount.log"}

    def _await(self, pool: Pool, runner: Runner, agents: AgentClient, until: float, timeout_s: float) -> None:
        """Wait until every chunk server has reported its space to the master."""
        tries, seen = 0, "the master has not answered"
        while True:
            tries += 1
            try:
                serving = _serving(pool, runner, min(_AGENT_TIMEOUT_S, max(1.0, until - time.monotonic())))
                missing = [node.name for node in pool.nodes if node.name not in serving]
                if not missing:
                    return
                seen = f"{len(serving)} of {len(pool.nodes)} chunk servers are ready; missing: {', '.join(missing[:4])}"
            except PenstockError as error:
                seen = str(error)
            if tries % 4 == 0:
                agents.raise_if_dead(_AGENT_TIMEOUT_S)
            if time.monotonic() > until:
                raise Deadline(f"pool {pool.name}: not ready within {timeout_s:g} s: {seen}", limit_s=timeout_s)
            time.sleep(_LOOK_S)

    def _await_mounts(self, pool: Pool, agents: AgentClient, until: float, timeout_s: float) -> None:
        shown = {
            name: {"patterns": [escape(f"{request['root']}/mnt/.masterinfo")], **request}
            for name, request in pool_roots(pool).items()
        }
        while True:
            # `.masterinfo` exists in every MooseFS mount, but not in a folder without a mount.
            seen = agents.try_call("has", _AGENT_TIMEOUT_S, each=shown)
            missing = [name for name, is_there in seen.items() if is_there is not True]
            if not missing:
                return
            agents.raise_if_dead(_AGENT_TIMEOUT_S)
            if time.monotonic() > until:
                text = f"pool {pool.name}: not mounted within {timeout_s:g} s on {', '.join(missing[:4])}"
                raise Deadline(text, limit_s=timeout_s)
            time.sleep(_LOOK_S)

    def _set_copies(self, pool: Pool, runner: Runner, leader: Node, until: float) -> None:
        line = ["mfssetgoal", "-r", str(pool.copies), pool.facts["nodes"][leader.name]["root"] + "/mnt"]
        [ended] = runner.run(line, on=[leader], timeout_s=max(1.0, until - time.monotonic()))
        if ended.code != 0:
            raise _failed(ended, "mfssetgoal")

    # ------------------------------------------------------------ status and access

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        until = time.monotonic() + timeout_s
        answers = AgentClient.of(pool, runner).try_call("alive", timeout_s / 2, on=pool.nodes, each=pool_roots(pool))
        try:
            serving = _serving(pool, runner, min(_AGENT_TIMEOUT_S, max(1.0, until - time.monotonic())))
        except PenstockError:
            serving = set()
        return daemon_states(pool, answers, serving)

    def access(self, pool: Pool, node: str) -> MooseFsAccess:
        return MooseFsAccess(pool, node)

    def heal(self, pool: Pool, runner: Runner, *, timeout_s: float) -> list[str]:
        """List the lost objects from the master's table of missing chunks, which is updated about once a minute."""
        rows = _query_master(pool, runner, "-SMF", timeout_s)
        return sorted({row[1].lstrip("/") for row in rows if len(row) > 1 and row[1].startswith("/")})


class MooseFsAccess(FolderAccess):
    """Access to the objects through this node's mount. `locate` gets each chunk's location from the master."""

    reports_locations = True

    def __init__(self, pool: Pool, node: str) -> None:
        super().__init__(Path(pool.facts["nodes"][node]["root"], "mnt"), node, is_own=False)
        self._by_server = {facts["server"]: name for name, facts in pool.facts["nodes"].items()}

    def locate(self, names: Sequence[str]) -> dict[str, list[Located]]:
        """Return the nodes of each 64 MiB chunk, with one run of `mfsfileinfo` for all names."""
        if not names:
            return {}
        paths = {name: self._path(name) for name in names}
        line = ["mfsfileinfo", *map(str, paths.values())]
        try:
            sizes = {name: path.stat().st_size for name, path in paths.items()}
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_AGENT_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise SystemFault(f"{names[0]}{more}: the location is unknown: {error}", where=names[0]) from error
        holders = self._holders(done.stdout)
        return {
            name: [
                Located(at, min(_CHUNK_BYTES, sizes[name] - at), tuple(sorted(nodes)))
                for at, nodes in zip(range(0, sizes[name], _CHUNK_BYTES), holders.get(str(path), []), strict=False)
            ]
            for name, path in paths.items()
        }

    def _holders(self, output: str) -> dict[str, list[set[str]]]:
        """Parse the output of `mfsfileinfo`: for each path, the nodes with a complete copy of each chunk."""
        found: dict[str, list[set[str]]] = {}
        chunks: list[set[str]] = []
        for line in output.splitlines():
            content = line.strip()
            if not line.startswith("\t"):
                chunks = found.setdefault(line.removesuffix(":"), [])
            elif content.startswith("chunk "):
                chunks.append(set())
            elif content.startswith("copy ") and chunks and "(status:VALID)" in content:
                server = content.partition(": ")[2].split(" ")[0]
                chunks[-1] |= {self._by_server[server]} if server in self._by_server else set()
        return found


def _refuse_loopback(node: Node) -> None:
    try:
        is_loopback = ipaddress.ip_address(node.address).is_loopback
    except ValueError:
        is_loopback = node.address == "localhost"
    if is_loopback:
        raise ConfigError(
            f"{node.name}: {node.address} is a loopback address, so the MooseFS master cannot distinguish the nodes",
            where=node.name,
            hint="use penstock cluster rehearse to make hosts with their own addresses",
        )


def _user() -> dict[str, str]:
    # By default, a MooseFS daemon of root changes to another user, which has no access to root's pool folder.
    return {"WORKING_USER": "#0", "WORKING_GROUP": "#0"}


def _config(settings: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


def _serving(pool: Pool, runner: Runner, limit_s: float) -> set[str]:
    """Nodes whose chunk server is registered at the master and reports space."""
    by_server = {tuple(facts["server"].rsplit(":", 1)): name for name, facts in pool.facts["nodes"].items()}
    serving = set()
    # chunk servers:|address|port|id|labels|version|load|maintenance|chunks|used|total|...
    for row in _query_master(pool, runner, "-SCS", limit_s):
        if len(row) > 10 and row[10].isdecimal() and int(row[10]) > 0:
            name = by_server.get((row[1], row[2]))
            serving |= {name} if name else set()
    return serving


def _query_master(pool: Pool, runner: Runner, what: str, limit_s: float) -> list[list[str]]:
    """Run `mfscli` on the first node; return the rows of the table that it prints."""
    host, _, port = pool.facts["master"].rpartition(":")
    line = ["mfscli", "-H", host, "-P", port, "-ns", "|", what]
    [ended] = runner.run(line, on=[pool.nodes[0]], timeout_s=limit_s)
    if ended.code != 0:
        raise _failed(ended, "mfscli")
    return [line.split("|") for line in ended.out.decode(errors="replace").splitlines() if "|" in line]


def _failed(ended: Exit, program: str) -> PenstockError:
    if isinstance(ended.fault, PenstockError):
        return ended.fault
    output = (ended.err or ended.out).decode(errors="replace").strip().splitlines()
    content = output[-1][:300] if output else "no output"
    return SystemFault(f"{ended.node}: {program} failed with exit code {ended.code}: {content}", where=ended.node)


def engine(settings: Mapping[str, Any], environment: Mapping[str, str]) -> MooseFsEngine:  # noqa: ARG001
    """Entry point `penstock.engines: moosefs`."""
    return MooseFsEngine(settings)
