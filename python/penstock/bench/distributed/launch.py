# SPDX-License-Identifier: Apache-2.0
"""Runs one benchmark on all nodes of a cluster, controlled from the user's machine."""

from __future__ import annotations

import json
import secrets
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.bench.distributed.config import AgentConfig, Objects, Storage
from penstock.bench.results import Provenance
from penstock.bench.rows import Row
from penstock.cluster import raise_for_failures
from penstock.cluster.exits import describe
from penstock.env import for_nodes
from penstock.errors import Bug, ConfigError, PenstockError, from_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.phases import Hooks
    from penstock.cluster import Cluster
    from penstock.protocols import Exit

__all__ = ["Fleet"]

_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
_SWEEP_S = 60.0
# Maximum number of hosts. Folder names contain four-digit host numbers; longer numbers would not sort.
_MAX_HOSTS = 10_000


class Fleet:
    """Nodes of a cluster as the hosts of one benchmark. The benchmark's data on the nodes are removed at the end, even
    after an error.
    """

    def __init__(self, cluster: Cluster, *, python: str = "", max_skew_s: float = 1.0, timeout_s: float) -> None:
        """`python` is the path of an interpreter with Penstock on the nodes; by default, the path of the current
        interpreter.

        Raises:
            ConfigError: `max_skew_s` is not positive, or the cluster has too many nodes.
        """
        if max_skew_s <= 0:
            raise ConfigError(
                f"max-skew: must be above 0 s, because clocks always differ (got {max_skew_s:g})", where="--max-skew"
            )
        if len(cluster.nodes) > _MAX_HOSTS:
            raise ConfigError(f"{len(cluster.nodes):,} hosts exceed the limit of {_MAX_HOSTS:,}", where="--nodes")
        self._cluster = cluster
        self._python = python or sys.executable
        self._max_skew_s = max_skew_s
        self._deadline_s = timeout_s
        self.clock_skew_s = 0.0
        """Largest difference between a node's clock and the first node's clock. Start times are corrected for this
        difference.
        """

    def run(self, work: Storage | Objects, hooks: Hooks) -> tuple[list[Row], Provenance]:
        """Measure on all nodes at the same time. Return the merged rows and the first node's provenance.

        Raises:
            PenstockError: The first failure of a node, with the node's name. The error is raised after all nodes have
                ended and their data is removed. If some data could not be removed, a note lists its location.
        """
        config = self._orders(work)
        messages = _Messages(hooks)
        try:
            exits = self._launch(config, messages)
        except BaseException:
            self._sweep(config, [])
            raise
        self.clock_skew_s = messages.clock_skew_s
        if (
            messages.fault is None
            and messages.is_done
            and messages.machine is not None
            and all(e.code == 0 for e in exits)
        ):
            return messages.rows, messages.machine
        error = messages.fault or _trouble(exits)
        for note in self._sweep(config, exits):
            error.add_note(note)
        raise error

    def _orders(self, work: Storage | Objects) -> AgentConfig:
        asked = self._cluster.run_on_leader([self._python, "-c", _PORT], timeout_s=_SWEEP_S)
        raise_for_failures([asked], "bench")
        return AgentConfig(
            verb="run",
            session=secrets.token_hex(4),
            token=secrets.token_hex(16),
            nodes=tuple(node.name for node in self._cluster.nodes),
            address=self._cluster.leader.address,
            port=int(asked.out),
            max_skew_s=self._max_skew_s,
            work=work,
        )

    def _launch(
        self, config: AgentConfig, messages: _Messages | None = None, verb: Literal["run", "sweep"] = "run"
    ) -> list[Exit]:
        return self._cluster.run(
            [self._python, "-m", "penstock.bench.distributed.agent", "{rank}"],
            timeout_s=self._deadline_s if verb == "run" else _SWEEP_S,
            env=for_nodes(),
            stdin=msgspec.json.encode(msgspec.structs.replace(config, verb=verb)),
            on_line=messages.line if messages else None,
            expand_placeholders=True,
        )

    def _sweep(self, config: AgentConfig, exits: Sequence[Exit]) -> list[str]:
        """Remove the data of all hosts from the reachable nodes. Return one message for each node that does not
        respond.
        """
        swept: list[Exit] = []
        with suppress(PenstockError):
            swept = self._launch(config, verb="sweep")
        answered = {ended.node for ended in swept if ended.code == 0}
        lost = sorted({ended.node for ended in exits} - answered)
        place = config.work.path if isinstance(config.work, Storage) else config.work.url
        return [f"files of {node} may be left below {place}: it does not answer" for node in lost]


class _Messages:
    """Collects the messages that the leader sends."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._turn = threading.Lock()
        self.rows: list[Row] = []
        self.machine: Provenance | None = None
        self.fault: PenstockError | None = None
        self.is_done = False
        self.clock_skew_s = 0.0

    def line(self, _node: str, rank: int, stream: str, line: bytes) -> None:
        """Process one output line of any host. Only the leader's lines are messages."""
        if rank != 0 or stream != "out" or not line.startswith(b"{"):
            return
        message: dict[str, Any] = json.loads(line)
        with self._turn:
            match message:
                case {"row": row}:
                    self.rows.append(msgspec.convert(row, Row))
                    self._hooks.on_row(self.rows[-1])
                case {"progress": [name, workers, [a, b, c]]}:
                    self._hooks.on_progress(name, workers, (a, b, c))
                case {"machine": machine}:
                    self.machine = msgspec.convert(machine, Provenance)
                case {"clock_skew_s": float(skew)}:
                    self.clock_skew_s = skew
                case {"fault": dict(reported)}:
                    self.fault = from_wire(reported)
                case {"done": True}:
                    self.is_done = True


def _trouble(exits: Sequence[Exit]) -> PenstockError:
    """Return the error for failed agents if the leader could not report one."""
    try:
        raise_for_failures(exits, f"bench on {len(exits)} hosts")
    except PenstockError as error:
        return error
    return Bug(f"the benchmark on {len(exits)} hosts ended without a result: {describe(exits[0])}")
