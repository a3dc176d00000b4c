# SPDX-License-Identifier: Apache-2.0
"""A pool's life on a cluster: up (ready or rolled back by its deadline), status, down, audit; and the record of it on this
machine, by which a later command finds what an earlier one began, also one that was killed.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock import env, plugins
from penstock.cluster.facts import ask
from penstock.cluster.faults import check
from penstock.errors import ConfigError, NotFound, PenstockError, PreconditionFailed, SystemFault
from penstock.protocols import Engine, Pool, PoolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.cluster.cluster import Cluster

__all__ = [
    "GROUP",
    "Ended",
    "Record",
    "audit",
    "down",
    "engine_names",
    "find",
    "forget",
    "load_engine",
    "names",
    "skewed",
    "status",
    "up",
]

GROUP = "penstock.engines"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
# Clocks further apart than this make leases, tokens and logs lie.
_SKEW_S = 60.0
_ROLLBACK_S = 25.0


class Record(msgspec.Struct, kw_only=True):
    """What this machine knows of a pool.

    Attributes:
        state: `coming` from before the first node is touched, `up` when it was ready, `going` from before it is ended.
        launcher, launcher_settings: By which its nodes are reached again.
        pool: Where it is up.
    """

    state: str
    engine: str
    engine_settings: dict[str, Any]
    spec: PoolSpec
    lease: str
    launcher: str = ""
    launcher_settings: dict[str, Any] = {}
    nodes: list[str] = []
    pool: Pool | None = None


@dataclass(frozen=True)
class Ended:
    """What `down` did: what each node gave back, and the nodes that did not answer."""

    receipts: Mapping[str, Mapping[str, Any]]
    unreached: tuple[str, ...]


def engine_names() -> list[str]:
    """Engines that can be named here, in order."""
    return plugins.names(GROUP)


def load_engine(name: str, settings: Mapping[str, Any]) -> Engine:
    """An engine by its name and settings.

    Raises:
        ConfigError: No such engine, or settings that it refuses.
    """
    made: Engine = plugins.load(GROUP, name, Engine, lambda factory: factory(dict(settings), env.read()))
    return made


# ---------------------------------------------------------------- records


def _home() -> Path:
    found = env.read()
    base = found.get("XDG_STATE_HOME") or Path(found.get("HOME") or ".", ".local/state")
    return Path(base) / "penstock/pools"


def names() -> list[str]:
    """Pools that this machine knows of."""
    return sorted(path.stem for path in _home().glob("*.json"))


def find(name: str) -> Record | None:
    """A pool's record, or None.

    Raises:
        ConfigError: Its file is not one.
    """
    path = _home() / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(
            f"{path} is no record of a pool: {error}", hint="remove it, and audit the nodes with --engine and --nodes"
        ) from error


def _keep(record: Record) -> None:
    folder = _home()
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{record.spec.name}.{os.getpid()}"
    part.write_bytes(msgspec.json.encode(record))
    part.replace(folder / f"{record.spec.name}.json")


def _forget(name: str) -> None:
    with suppress(FileNotFoundError):
        (_home() / f"{name}.json").unlink()


# ---------------------------------------------------------------- life


def up(
    cluster: Cluster,
    spec: PoolSpec,
    engine: str,
    settings: Mapping[str, Any],
    *,
    deadline_s: float,
    launcher: str = "",
    launcher_settings: Mapping[str, Any] | None = None,
) -> tuple[Pool, bool]:
    """The pool, ready; and whether it was up already.

    Raises:
        PenstockError: It could not be brought up; what had been begun is taken back, and a note says where that failed.
    """
    _check(spec)
    made = load_engine(engine, settings)
    until = time.monotonic() + deadline_s
    reserve = min(_ROLLBACK_S, deadline_s / 4)
    known = find(spec.name)
    if known is not None:
        same = (known.engine, known.spec, known.nodes) == (engine, spec, [node.name for node in cluster.nodes])
        if known.state == "up" and known.pool is not None:
            if not same:
                raise PreconditionFailed(
                    f"pool {spec.name}: it is up with other nodes or settings",
                    hint=f"penstock pool down --name {spec.name}",
                )
            if set(made.status(known.pool, cluster, deadline_s=deadline_s / 2).values()) == {"up"}:
                return known.pool, True
            raise PreconditionFailed(
                f"pool {spec.name}: it was brought up, and is not whole any more",
                hint=f"penstock pool status --name {spec.name} says where; then pool down",
            )
        down(cluster, known, deadline_s=deadline_s / 2)  # an earlier `up` was killed on its way
    record = Record(
        state="coming", engine=engine, engine_settings=dict(settings), spec=spec, lease=uuid4().hex[:16], launcher=launcher,
        launcher_settings=dict(launcher_settings or {}), nodes=[node.name for node in cluster.nodes],
    )  # fmt: skip
    exits, facts = ask(cluster, deadline_s=min(30.0, deadline_s / 3))
    check(exits, f"pool {spec.name}")
    _refuse(spec, made.probe(spec, facts), facts)
    _keep(record)
    try:
        record.pool = made.up(spec, record.lease, cluster, deadline_s=max(1.0, until - reserve - time.monotonic()))
    except BaseException as error:
        _take_back(cluster, record, error, max(5.0, until - time.monotonic()))
        raise
    record.state = "up"
    _keep(record)
    return record.pool, False


def _check(spec: PoolSpec) -> None:
    if not _NAME.fullmatch(spec.name):
        raise ConfigError(
            f"--name: `{spec.name}` is no name of a pool: letters, digits and dashes, 40 at most", where="--name"
        )
    if not spec.disk.startswith("/"):
        raise ConfigError(f"--disk: `{spec.disk}` is no absolute path", where="--disk")
    if spec.copies < 1:
        raise ConfigError(f"--copies: {spec.copies} copies keep nothing", where="--copies")


def skewed(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Nodes whose clock is too far from this machine's, in words."""
    return [
        f"{node}: its clock is {found['skew_s']:+.0f} s from this machine's"
        for node, found in facts.items()
        if abs(found["skew_s"]) > _SKEW_S
    ]


def _refuse(spec: PoolSpec, lacks: list[str], facts: Mapping[str, Mapping[str, Any]]) -> None:
    lacks += skewed(facts)
    if lacks:
        more = f" (and {len(lacks) - 1} more)" if len(lacks) > 1 else ""
        raise SystemFault(f"pool {spec.name}: {lacks[0]}{more}", hint="penstock doctor says what every node lacks")


def _take_back(cluster: Cluster, record: Record, error: BaseException, deadline_s: float) -> None:
    try:
        ended = _down(cluster, record, keep_data=False, deadline_s=deadline_s)
        if ended.unreached:
            error.add_note(
                f"not taken back on {', '.join(ended.unreached)}, which did not answer: penstock pool down --name {record.spec.name}"
            )
        else:
            _forget(record.spec.name)
    except PenstockError as second:
        error.add_note(f"what had been begun could not be taken back: {second}")


def status(cluster: Cluster, record: Record, *, deadline_s: float) -> dict[str, str]:
    """Each node's state; all `lost` where the pool never came up."""
    if record.pool is None:
        return dict.fromkeys(record.nodes, "degraded")
    return load_engine(record.engine, record.engine_settings).status(record.pool, cluster, deadline_s=deadline_s)


def down(cluster: Cluster, record: Record, *, keep_data: bool = False, deadline_s: float) -> Ended:
    """Ends the pool; safe twice. Where a node did not answer, the record stays, so that it can be ended there later."""
    if find(record.spec.name) is not None:
        record.state = "going"
        _keep(record)
    ended = _down(cluster, record, keep_data=keep_data, deadline_s=deadline_s)
    if not ended.unreached:
        _forget(record.spec.name)
    return ended


def _down(cluster: Cluster, record: Record, *, keep_data: bool, deadline_s: float) -> Ended:
    made = load_engine(record.engine, record.engine_settings)
    receipts = made.down(record.spec, cluster, lease=record.lease, keep_data=keep_data, deadline_s=deadline_s)
    return Ended(receipts, tuple(node.name for node in cluster.nodes if node.name not in receipts))


def audit(cluster: Cluster, record: Record, *, deadline_s: float) -> Ended:
    """What is left on each node that answers (`receipts`), in words."""
    made = load_engine(record.engine, record.engine_settings)
    found = made.audit(record.spec, cluster, deadline_s=deadline_s)
    return Ended(
        {node: {"left": left} for node, left in found.items()},
        tuple(n.name for n in cluster.nodes if n.name not in found),
    )


def forget(name: str) -> None:
    """Drops the record of a pool whose missing nodes will not come back.

    Raises:
        NotFound: There is none.
    """
    if find(name) is None:
        raise NotFound(f"no pool `{name}` is known here")
    _forget(name)
