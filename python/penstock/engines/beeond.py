# SPDX-License-Identifier: Apache-2.0
"""`beeond`: BeeGFS On Demand across the nodes' disks, run by `beeond start` and `beeond stop` (BeeGFS 7 and 8).

Owns the command lines, the node file, the status file and the deadlines. BeeOND has no deadlines: its start waits
without limit until the servers have registered. BeeOND does everything else. BeeOND needs root, its kernel module, and
ssh (or pdsh) as root between the nodes. Files are striped without copies, so a lost node loses a part of nearly every
file.

Settings, each with BeeOND's option letter: `version` 7 or 8 · `metadata_servers` m · `storage_servers` s (0: all) ·
`port_shift` p · `prefers_local` l · `pdsh` P · `pdsh_program` b · `tmpfs` r · `config` f · `targets` t ·
`mirrors_storage` k · `mirrors_metadata` j · in version 8 only: `grpc_port` G, `auth` C, `tls` E, `license` H.
Penstock's own setting: `exchanges_keys`, for sites where root has no ssh key. The first node gets a key that the other
nodes accept for the lifetime of the pool.

Written from the sources of BeeGFS 8.3.1 and 7.4, and tested against a stub that accepts the same command lines. Not
yet run on real nodes.
"""

from __future__ import annotations

import time
from glob import escape
from typing import TYPE_CHECKING, Any

from penstock.engines._shared import ssh_keys
from penstock.engines._shared.agent_client import AgentClient, down_receipts, node_states, pool_root
from penstock.engines._shared.folder_access import SharedFolderEngine
from penstock.errors import ConfigError, Deadline, PenstockError, Unsupported
from penstock.plugins import parse_settings
from penstock.protocols import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.protocols import Node, PoolSpec, Runner

__all__ = ["BeeondEngine", "engine", "start_line", "stop_line"]

_POLL_S = 0.3
_AGENT_TIMEOUT_S = 10.0
_KNOWN: dict[str, Any] = {
    "version": 8, "metadata_servers": 1, "storage_servers": 0, "port_shift": 1000, "prefers_local": False, "pdsh": False,
    "pdsh_program": "", "tmpfs": False, "config": "", "targets": "", "mirrors_storage": False, "mirrors_metadata": False,
    "grpc_port": 0, "auth": "", "tls": "", "license": "", "exchanges_keys": False,
}  # fmt: skip
_OF_8 = ("grpc_port", "auth", "tls", "license")
# Enterprise features; BeeGFS 8 allows them only with a licence.
_LICENSED = ("mirrors_storage", "mirrors_metadata", "targets")
# BeeOND 8 copies these files into the folder given by `-f`, and rejects their options before `-f`.
_INTO_CONFIG = ("auth", "tls", "license")


def start_line(root: str, settings: Mapping[str, Any]) -> list[str]:
    """Build the command line `beeond start` for a pool's folder.

    The order of options matters: `-f` before `-C -E -H`, and `-H` before `-k -j -t`.
    """
    parsed = settings
    line = ["beeond", "start", "-n", f"{root}/conf/nodes", "-d", f"{root}/data", "-c", f"{root}/mnt"]
    line += ["-i", f"{root}/beeond.status", "-L", f"{root}/logs", "-F"]
    line += ["-m", str(parsed["metadata_servers"]), "-p", str(parsed["port_shift"])]
    line += ["-s", str(parsed["storage_servers"])] if parsed["storage_servers"] else []
    line += _remote(parsed)
    for name, letter in (("config", "-f"), ("auth", "-C"), ("tls", "-E"), ("license", "-H"), ("targets", "-t")):
        line += [letter, parsed[name]] if parsed[name] else []
    line += ["-G", str(parsed["grpc_port"])] if parsed["grpc_port"] else []
    for name, letter in (
        ("mirrors_storage", "-k"),
        ("mirrors_metadata", "-j"),
        ("prefers_local", "-l"),
        ("tmpfs", "-r"),
    ):
        line += [letter] if parsed[name] else []
    return [*line, "-q"]


def stop_line(root: str, settings: Mapping[str, Any], *, keep_data: bool, cleans_up: bool) -> list[str]:
    """Build the command line `beeond stop` for the same folder; `cleans_up` is for an instance that is incomplete."""
    line = ["beeond", "stop", "-n", f"{root}/conf/nodes", "-i", f"{root}/beeond.status", "-L"]
    line += [] if keep_data else ["-d"]
    line += ["-c"] if cleans_up else []
    return [*line, *_remote(settings), "-q"]


def _remote(settings: Mapping[str, Any]) -> list[str]:
    program = settings["pdsh_program"]
    return (["-P"] if settings["pdsh"] else []) + (["-b", program] if program else [])


class BeeondEngine(SharedFolderEngine):
    """Engine with one BeeOND instance per pool. BeeGFS cannot list the objects of a lost node.

    After the loss of a node, the pool is therefore started and staged again.
    """

    name = "beeond"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = parse_settings(f"engine {self.name}", settings, _KNOWN)
        self._check()

    def _check(self) -> None:
        parsed = self._settings
        if parsed["version"] not in (7, 8):
            raise ConfigError(f"engine beeond: version {parsed['version']} is neither 7 nor 8", where="version")
        given = [name for name, default in _KNOWN.items() if parsed[name] != default]
        if parsed["version"] == 7 and (newer := [name for name in _OF_8 if name in given]):
            raise Unsupported(f"engine beeond: BeeOND 7 does not support {', '.join(newer)}", hint="set version = 8")
        if (
            parsed["version"] == 8
            and not parsed["license"]
            and (bound := [name for name in _LICENSED if name in given])
        ):
            raise Unsupported(
                f"engine beeond: {', '.join(bound)} is an enterprise feature of BeeGFS 8 and requires a licence",
                hint="set license to the path of a license.pem, or omit this setting",
            )
        if not parsed["config"] and (bare := [name for name in _INTO_CONFIG if name in given]):
            raise ConfigError(f"engine beeond: {', '.join(bare)} requires the setting `config`")
        if parsed["pdsh_program"] and not parsed["pdsh"]:
            raise ConfigError("engine beeond: pdsh_program has no effect unless the setting `pdsh` is true")

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        lacks = []
        for node, found in facts.items():
            if not found["programs"].get("beeond"):
                lacks.append(f"{node}: beeond is not installed (package `beeond` of BeeGFS)")
            if found["user"] != 0:
                lacks.append(f"{node}: BeeOND requires root to mount, but the user is {found['user']}")
        if spec.copies > 1 and not self._settings["mirrors_storage"]:
            lacks.append(f"{spec.copies} copies require mirrors_storage, a licensed feature of BeeGFS")
        if spec.copies > 2:
            lacks.append(f"{spec.copies} copies are more than the two that BeeGFS mirroring supports")
        return lacks

    # ------------------------------------------------------------ up

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        until = time.monotonic() + timeout_s
        if "{" in spec.disk:
            raise ConfigError("engine beeond: the disk must be the same path on all nodes", where="disk")
        agents, leader = AgentClient(spec, runner), runner.nodes[0]
        agents.call("prepare", timeout_s, lease=lease, of=self.name, need_bytes=spec.need_bytes)
        root = pool_root(spec, leader)
        agents.call("start", until - time.monotonic(), lease=lease, folders=["mnt"])
        start = {
            "what": "beeond start",
            "unless": "beeond.status",
            "log": "logs/beeond.log",
            "argv": start_line(root, self._settings),
            # This limit is shorter than the timeout of the request, so that the error names the command that hangs.
            "limit_s": max(1.0, 0.8 * (until - time.monotonic())),
        }
        if self._settings["exchanges_keys"]:
            ssh_keys.exchange(agents, lease, until)
        nodes = "".join(f"{node.address}\n" for node in runner.nodes)
        agents.call(
            "start", until - time.monotonic(), on=[leader], lease=lease, files={"conf/nodes": nodes}, once=[start]
        )
        pool = Pool(
            spec.name, self.name, lease, f"{root}/mnt/data", tuple(runner.nodes), spec.copies, {"root": root, "mark": f"mnt/{_mark(lease)}"}
        )  # fmt: skip
        # The first node writes a marker file. If every node sees it, all nodes have mounted the same file system.
        agents.call(
            "start", until - time.monotonic(), on=[leader], lease=lease, folders=["mnt/data"], files={pool.facts["mark"]: lease}
        )  # fmt: skip
        while missing := [
            name for name, state in self._states(pool, agents, _AGENT_TIMEOUT_S).items() if state != "up"
        ]:
            if time.monotonic() > until:
                text = f"pool {spec.name}: beeond has ended, but {', '.join(missing[:4])} has no mount after {timeout_s:g} s"
                raise Deadline(text, limit_s=timeout_s)
            time.sleep(_POLL_S)
        return pool

    # ------------------------------------------------------------ status and access

    def _states(self, pool: Pool, agents: AgentClient, limit_s: float) -> dict[str, str]:
        pattern = escape(f"{pool.facts['root']}/{pool.facts['mark']}")
        answers = agents.try_call("has", limit_s, on=pool.nodes, patterns=[pattern])
        return node_states(answers, lambda _, is_seen: bool(is_seen))

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        return self._states(pool, AgentClient.of(pool, runner), timeout_s)

    # ------------------------------------------------------------ down

    def down(
        self, spec: PoolSpec, runner: Runner, *, lease: str, keep_data: bool, timeout_s: float
    ) -> dict[str, dict[str, Any]]:
        until, share = time.monotonic() + timeout_s, timeout_s / 4
        agents, leader = AgentClient(spec, runner), runner.nodes[0]
        self._stop(spec, agents, leader, lease, keep_data=keep_data, until=until - 2 * share)
        # Remove the keys only now, because `beeond stop` needs them. Do this even without the setting `exchanges_keys`,
        # because the pool may have been started with it.
        withdrawn = ssh_keys.remove(agents, lease, share)
        # Remove the remains that BeeOND left: mounts below the folder, the folder, and processes of `beeond start`.
        left = max(share, until - time.monotonic())
        receipts = down_receipts(agents.try_call("stop", left, lease=lease, keep_data=keep_data))
        # If a node's keys could not be removed, the node is not down yet and stays out of the result.
        return {node: {**receipt, **withdrawn[node]} for node, receipt in receipts.items() if node in withdrawn}

    def audit(self, spec: PoolSpec, runner: Runner, *, timeout_s: float) -> dict[str, list[str]]:
        found = super().audit(spec, runner, timeout_s=timeout_s / 2)
        held = ssh_keys.leftovers(AgentClient(spec, runner), timeout_s / 2)
        return {node: [*texts, *held[node]] for node, texts in found.items() if node in held}

    def _stop(
        self, spec: PoolSpec, agents: AgentClient, leader: Node, lease: str, *, keep_data: bool, until: float
    ) -> None:
        """Run `beeond stop`; if the command fails, run it again with its clean-up option. Both runs end by `until`."""

        def left_s() -> float:
            return until - time.monotonic()

        root = pool_root(spec, leader)
        seen = agents.try_call("alive", min(_AGENT_TIMEOUT_S, left_s()), on=[leader])[leader.name]
        if isinstance(seen, PenstockError) or seen["lease"] is None or (lease and seen["lease"] != lease):
            return  # the first node does not respond, or has no pool with this lease
        begun = agents.try_call(
            "has", min(_AGENT_TIMEOUT_S, left_s()), on=[leader], patterns=[escape(f"{root}/conf/nodes")]
        )
        if begun[leader.name] is not True:
            return
        for cleans_up in (False, True):
            limit_s = max(1.0, left_s() if cleans_up else left_s() / 2)
            once = {
                "what": "beeond stop",
                "unless": "beeond.stopped",
                "log": "logs/beeond.log",
                "argv": stop_line(root, self._settings, keep_data=keep_data, cleans_up=cleans_up),
                "limit_s": 0.8 * limit_s,
            }
            ended = agents.try_call("start", limit_s, on=[leader], lease=seen["lease"], once=[once])
            if not isinstance(ended[leader.name], PenstockError):
                return


def _mark(lease: str) -> str:
    return f".penstock-{lease}"


def engine(settings: Mapping[str, Any], environment: Mapping[str, str]) -> BeeondEngine:  # noqa: ARG001
    """Entry point `penstock.engines: beeond`."""
    return BeeondEngine(settings)
