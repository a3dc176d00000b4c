# SPDX-License-Identifier: Apache-2.0
"""Test suite for engines: checks that an engine fulfils the contract. Run `EngineSuite(engine, ...).run()` in a test.

The suite starts one pool and takes it down at the end. All checks share this pool and run in the order of `CHECKS`. The
suite runs `penstock.pool.exec` on the nodes to read and write objects, so Penstock must be installed on
the nodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.exits import raise_for_failures
from penstock.errors import PenstockError, PreconditionFailed
from penstock.pool import engine_registry, lifecycle
from penstock.protocols import Engine, PoolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.cluster import Cluster
    from penstock.protocols import Pool

__all__ = ["CHECKS", "EngineSuite"]

CHECKS = (
    "up_is_ready_and_again_does_nothing", "status_is_up_on_all", "objects_come_back_whole_from_every_node",
    "names_are_listed", "replaced_object_is_the_new_one", "fast_path_is_exactly_the_object", "locate_is_correct",
    "names_that_would_leave_the_pool_are_refused", "missing_object_is_an_error", "deleted_objects_are_gone",
    "other_start_of_the_name_is_refused_and_unharmed", "down_leaves_nothing_and_is_safe_twice",
)  # fmt: skip
_LIMIT_S = 120.0
_SIZES = (0, 1, 4096, 3_000_001)


class EngineSuite:
    """Checks one engine on a cluster with two or more nodes.

    Args:
        engine: Name of the engine's entry point.
        settings: Settings of the engine.
        disk: A folder that can be created on every node. If nodes share the folder, the path must contain `{node}`.
        files: A folder with the same path on this machine and on every node.
        shared: True if every node can read objects of all nodes; False if a node can read only its own objects, as with
            the engine `local`.
        environment: Environment variables for `penstock.pool.exec` on the nodes, for example the path of
            an external package.
    """

    def __init__(
        self, engine: str, settings: Mapping[str, Any], cluster: Cluster, disk: str, files: Path, *, shared: bool,
        copies: int = 1, environment: Mapping[str, str] | None = None, timeout_s: float = _LIMIT_S,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.settings = dict(settings)
        self.cluster = cluster
        self.spec = PoolSpec(f"suite-{os.getpid()}", disk, copies)
        self.files = files
        self.shared = shared
        self.environment = dict(environment or {})
        self.timeout_s = timeout_s
        self.pool: Pool | None = None
        self.bodies: dict[str, bytes] = {}

    def run(self) -> list[str]:
        """Run all checks in order; return their names. The pool is taken down even after a failure."""
        try:
            for name in CHECKS:
                getattr(self, f"check_{name}")()
        finally:
            made = engine_registry.load(self.engine, self.settings)
            made.down(self.spec, self.cluster, lease="", keep_data=False, timeout_s=_LIMIT_S)
            if lifecycle.find(self.spec.name) is not None:
                lifecycle.forget(self.spec.name)
        return list(CHECKS)

    # ------------------------------------------------------------ helpers for the checks

    def do(self, node: str, *requests: list[Any]) -> list[Any]:
        """Run requests of `penstock.pool.exec` on a node."""
        assert self.pool is not None
        argv = [sys.executable, "-m", "penstock.pool.exec", self.engine, node, json.dumps(requests)]
        ended = self.cluster.run(
            argv,
            on=[self.cluster.node(node)],
            timeout_s=_LIMIT_S,
            stdin=msgspec.json.encode(self.pool),
            env=self.environment,
        )
        raise_for_failures(ended, "access")
        answers: list[Any] = json.loads(ended[0].out)
        return answers

    def put(self, node: str, bodies: Mapping[str, bytes]) -> list[Any]:
        """Put objects from a node; return one result per object: None if it was stored, else an error."""
        requests: list[list[Any]] = []
        for number, (name, body) in enumerate(bodies.items()):
            path = self.files / f"put-{number}"
            path.write_bytes(body)
            requests.append(["put", name, str(path)])
        return self.do(node, *requests)

    def is_body(self, answer: Any, body: bytes) -> bool:
        return isinstance(answer, dict) and (answer.get("length"), answer.get("crc32")) == (len(body), zlib.crc32(body))

    def up(self) -> tuple[Pool, bool]:
        return lifecycle.up(self.cluster, self.spec, self.engine, self.settings, timeout_s=self.timeout_s)

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self.cluster.nodes]

    # ------------------------------------------------------------ checks

    def check_up_is_ready_and_again_does_nothing(self) -> None:
        assert isinstance(engine_registry.load(self.engine, self.settings), Engine)
        began = time.monotonic()
        self.pool, was_up = self.up()
        assert time.monotonic() - began <= self.timeout_s, "`up` took longer than its deadline"
        assert not was_up
        again, was_up = self.up()
        assert was_up
        assert again.lease == self.pool.lease

    def check_status_is_up_on_all(self) -> None:
        record = lifecycle.find(self.spec.name)
        assert record is not None
        assert lifecycle.status(self.cluster, record, timeout_s=_LIMIT_S) == dict.fromkeys(self.nodes, "up")

    def check_objects_come_back_whole_from_every_node(self) -> None:
        for at, node in enumerate(self.nodes):
            bodies = {f"set {at}/sub/f+{size}é.bin": os.urandom(size) for size in _SIZES}
            assert self.put(node, bodies) == [None] * len(bodies)
            self.bodies |= bodies
        for at, node in enumerate(self.nodes):
            mine = {n: b for n, b in self.bodies.items() if self.shared or n.startswith(f"set {at}/")}
            answers = self.do(node, *(["read", name, 0, len(body) + 10] for name, body in mine.items()))
            for (name, body), answer in zip(mine.items(), answers, strict=True):
                assert self.is_body(answer, body), (node, name, answer)
        name, body = next((n, b) for n, b in self.bodies.items() if len(b) > 10_000)
        [part] = self.do(self.nodes[0], ["read", name, 1000, 5000])
        assert self.is_body(part, body[1000:6000]), part

    def check_names_are_listed(self) -> None:
        for at, node in enumerate(self.nodes):
            mine = sorted(n for n in self.bodies if self.shared or n.startswith(f"set {at}/"))
            everything, some = self.do(node, ["names", ""], ["names", f"set {at}/sub/f+3"])
            assert everything == mine, (node, everything)
            assert some == [n for n in mine if n.startswith(f"set {at}/sub/f+3")]

    def check_replaced_object_is_the_new_one(self) -> None:
        name = f"set 0/sub/f+{_SIZES[-1]}é.bin"
        self.bodies[name] = os.urandom(70_000)
        assert self.put(self.nodes[0], {name: self.bodies[name]}) == [None]
        [answer] = self.do(self.nodes[0], ["read", name, 0, 10**6])
        assert self.is_body(answer, self.bodies[name]), answer

    def check_fast_path_is_exactly_the_object(self) -> None:
        for at, node in enumerate(self.nodes):
            mine = [n for n in self.bodies if n.startswith(f"set {at}/") and self.bodies[n]]
            requests = [[which, name] for name in mine for which in ("fast_path", "mount_path")]
            for (_, name), answer in zip(requests, self.do(node, *requests), strict=True):
                assert answer is None or self.is_body(answer, self.bodies[name]), (node, name, answer)

    def check_locate_is_correct(self) -> None:
        for at, node in enumerate(self.nodes):
            mine = [n for n in self.bodies if n.startswith(f"set {at}/") and self.bodies[n]]
            found, *fasts = self.do(node, ["locate", mine], *(["fast_path", name] for name in mine))
            for name, fast in zip(mine, fasts, strict=True):
                pieces = found[name]
                assert sum(length for _, length, _ in pieces) == len(self.bodies[name]), (name, pieces)
                assert all(set(nodes) <= set(self.nodes) for *_, nodes in pieces)
                assert fast is None or all(node in nodes for *_, nodes in pieces), (name, pieces)

    def check_names_that_would_leave_the_pool_are_refused(self) -> None:
        odd = dict.fromkeys(("../x", "/etc/x", "a//b", "a/../b", "", "a/"), b"x")
        assert [answer["error"] for answer in self.put(self.nodes[0], odd)] == ["key"] * len(odd)

    def check_missing_object_is_an_error(self) -> None:
        [answer] = self.do(self.nodes[0], ["read", "not/there", 0, 1])
        assert answer["error"] == "not-found", answer

    def check_deleted_objects_are_gone(self) -> None:
        name = next(n for n in self.bodies if n.startswith("set 0/"))
        self.do(self.nodes[0], ["delete", [name, "never/there"]])
        del self.bodies[name]
        [left] = self.do(self.nodes[0], ["names", "set 0/"])
        assert name not in left

    def check_other_start_of_the_name_is_refused_and_unharmed(self) -> None:
        """Start a pool of the same name on the same nodes, as a job on another machine would. The start must fail."""
        made = engine_registry.load(self.engine, self.settings)
        refusal = ""
        with suppress(PreconditionFailed):
            try:
                made.up(self.spec, "0" * 16, self.cluster, timeout_s=self.timeout_s)
            except PenstockError as error:
                refusal = str(error)
                raise
        assert any(node in refusal for node in self.nodes), (
            f"a second start of the same pool was not refused: {refusal}"
        )
        made.down(self.spec, self.cluster, lease="0" * 16, keep_data=False, timeout_s=_LIMIT_S)
        name, body = next((n, b) for n, b in self.bodies.items() if n.startswith("set 0/") and b)
        assert self.is_body(self.do(self.nodes[0], ["read", name, 0, 10**8])[0], body)
        self.check_status_is_up_on_all()

    def check_down_leaves_nothing_and_is_safe_twice(self) -> None:
        record = lifecycle.find(self.spec.name)
        assert record is not None
        left = lifecycle.audit(self.cluster, record, timeout_s=_LIMIT_S)
        assert any(found["left"] for found in left.receipts.values()), "the audit does not see a pool that is up"
        for _ in range(2):
            assert lifecycle.down(self.cluster, record, timeout_s=_LIMIT_S).unreached == ()
        left = lifecycle.audit(self.cluster, record, timeout_s=_LIMIT_S)
        assert left.unreached == ()
        assert [found["left"] for found in left.receipts.values()] == [[]] * len(left.receipts), left
        assert lifecycle.find(self.spec.name) is None
