# SPDX-License-Identifier: Apache-2.0
"""Pool lifecycle on a cluster: starts a pool (or rolls back by the deadline), checks it, takes it down, audits nodes.

Stores a record of each pool on this machine, so that a later command can find and end a pool whose starting command was
killed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock import env
from penstock.atomic_file import atomic_file
from penstock.cluster.exits import raise_for_failures
from penstock.cluster.facts import gather_facts
from penstock.errors import ConfigError, NotFound, PenstockError, PreconditionFailed, SystemFault
from penstock.ownership import remove_file
from penstock.pool import engine_registry
from penstock.protocols import Pool, PoolSpec  # noqa: TC001 - msgspec reads them

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.cluster.cluster import Cluster
    from penstock.protocols import Engine

__all__ = [
    "DownResult",
    "PoolRecord",
    "audit",
    "clock_skew_problems",
    "down",
    "find",
    "forget",
    "names",
    "status",
    "up",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")
# Maximum clock difference. With a larger difference, leases and tokens fail, and timestamps in logs are misleading.
_SKEW_S = 60.0
_ROLLBACK_S = 25.0


class PoolRecord(msgspec.Struct, kw_only=True):
    """Record of a pool, stored on the machine that started it.

    Attributes:
        state: `starting` before any node is changed, `up` when the pool is ready, `stopping` before it is taken down.
        launcher, launcher_settings: Launcher that reaches the pool's nodes, and its settings.
        pool: The running pool; None before the pool is up.
        keep_data: True if a `down` with `keep_data` did not finish. In this case, every later `down` also keeps the
            data.
        holder: Folder of the job that started the pool; empty if a user started it.
        stranded: Nodes that were lost under the same lease and could not be cleaned up.
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
    keep_data: bool = False
    holder: str = ""
    stranded: list[str] = []


@dataclass(frozen=True)
class DownResult:
    """Result of `down` or `audit`.

    Attributes:
        receipts: What was removed from each node that succeeded; for `audit`, what is left on the node.
        unreached: Nodes that failed or did not respond.
        refused: Nodes where the folder does not belong to the pool, with the reason.
    """

    receipts: Mapping[str, Mapping[str, Any]]
    unreached: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- records


def _records_dir() -> Path:
    base = env.state_home(env.read())
    if base is None:  # do not fall back to the working directory: commands run programs stated in records
        raise ConfigError("HOME and XDG_STATE_HOME are not set, so pool records cannot be stored", hint="set HOME")
    return base / "penstock/pools"


def names() -> list[str]:
    """Names of all pools that have a record on this machine."""
    return sorted(path.stem for path in _records_dir().glob("*.json"))


def find(name: str) -> PoolRecord | None:
    """Return the record of a pool; None if it does not exist.

    Raises:
        ConfigError: The name is not valid for a pool, or its file is not a record.
    """
    path = _record_path(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=PoolRecord)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(
            f"{path} is not a valid pool record: {error}",
            hint="remove the record, then run penstock pool audit with --engine and --nodes",
        ) from error


def _record_path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name: `{name}` is not a valid pool name (letters, digits and dashes, at most 40)", where="--name"
        )
    return _records_dir() / f"{name}.json"


def _write_record(record: PoolRecord, *, is_new: bool = False) -> None:
    """Write a record atomically.

    Args:
        is_new: Do not replace an existing record. If two pools with the same name start concurrently, one start fails.

    Raises:
        PreconditionFailed: `is_new` is set, and a record of this name exists.
    """
    path = _record_path(record.spec.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_file(path, replaces=not is_new) as out:
            out.write(msgspec.json.encode(record))
    except FileExistsError:
        raise PreconditionFailed(
            f"pool {record.spec.name}: another `pool up` is creating a pool with this name",
            hint="use another --name",
        ) from None


def _delete_record(record: PoolRecord) -> None:
    """Delete the record, unless a record with another lease has replaced it."""
    found = find(record.spec.name)
    if found is not None and found.lease == record.lease:
        remove_file(_record_path(record.spec.name))


# ---------------------------------------------------------------- lifecycle


def up(
    cluster: Cluster,
    spec: PoolSpec,
    engine: str,
    settings: Mapping[str, Any],
    *,
    timeout_s: float,
    launcher: str = "",
    launcher_settings: Mapping[str, Any] | None = None,
    lease: str = "",
    holder: str = "",
    stranded: Sequence[str] = (),
) -> tuple[Pool, bool]:
    """Start the pool; return the pool, and whether it was already up. On failure, remove only what this call started.

    Args:
        lease: Lease of the pool; by default a new one. With the lease of an earlier call, the pool of that call is
            reused.
        holder: Folder of the job that uses the pool. A pool of another job cannot be used.
        stranded: Value for `PoolRecord.stranded`.

    Raises:
        PreconditionFailed: A pool of this name has a record, but cannot be used as requested.
        PenstockError: The pool could not be started. Started parts are removed; if that fails on some nodes, a note
            on the error lists them.
    """
    _check_spec(spec)
    made = engine_registry.load(engine, settings)
    until = time.monotonic() + timeout_s
    reserve = min(_ROLLBACK_S, timeout_s / 4)
    known = find(spec.name)
    if known is not None:
        same = (known.engine, known.spec, known.nodes) == (engine, spec, [node.name for node in cluster.nodes])
        return _reusable_pool(known, lease=lease, is_same=same), _require_serving(known, made, cluster, timeout_s / 2)
    record = PoolRecord(
        state="starting", engine=engine, engine_settings=dict(settings), spec=spec, lease=lease or uuid4().hex[:16], launcher=launcher,
        launcher_settings=dict(launcher_settings or {}), nodes=[node.name for node in cluster.nodes], holder=holder,
        stranded=list(stranded),
    )  # fmt: skip
    exits, facts = gather_facts(cluster, timeout_s=min(30.0, timeout_s / 3))
    raise_for_failures(exits, f"pool {spec.name}")
    _raise_for_problems(spec, made.probe(spec, facts), facts)
    _write_record(record, is_new=True)
    try:
        record.pool = made.up(spec, record.lease, cluster, timeout_s=max(1.0, until - reserve - time.monotonic()))
    except BaseException as error:
        _rollback(cluster, record, error, max(5.0, until - time.monotonic()))
        raise
    record.state = "up"
    _write_record(record)
    return record.pool, False


def _reusable_pool(known: PoolRecord, *, lease: str, is_same: bool) -> Pool:
    """Return the pool of a record if this start may use it; otherwise raise an error, and leave the pool unchanged."""
    name = known.spec.name
    ends = f"penstock pool down --name {name}"
    if known.state != "up" or known.pool is None:
        what = "`pool down`" if known.state == "stopping" else "`pool up`"
        keeps = "; the data are retained" if known.keep_data else ""
        where = ", ".join([*known.nodes, *known.stranded][:4])
        raise PreconditionFailed(
            f"pool {name}: an earlier {what} on {where} has not finished{keeps}", hint=f"run {ends} to finish it"
        )
    if known.holder and known.lease != lease:
        raise PreconditionFailed(
            f"pool {name}: the job in {known.holder} is using this pool",
            hint=f"give this job another name, or wait for the other job; if that job was killed, run {ends}",
        )
    if not is_same:
        raise PreconditionFailed(
            f"pool {name}: already running with different nodes or settings",
            hint=f"use another name, or run {ends} to end that pool",
        )
    return known.pool


def _require_serving(known: PoolRecord, made: Engine, cluster: Cluster, timeout_s: float) -> bool:
    """Return True if the pool is up on every node; otherwise raise an error."""
    assert known.pool is not None
    if set(made.status(known.pool, cluster, timeout_s=timeout_s).values()) == {"up"}:
        return True
    name = known.spec.name
    raise PreconditionFailed(
        f"pool {name}: running, but not up on all nodes",
        hint=f"run penstock pool status --name {name} to list the nodes, then penstock pool down",
    )


def _check_spec(spec: PoolSpec) -> None:
    _record_path(spec.name)
    if not spec.disk.startswith("/"):
        raise ConfigError(f"--disk: `{spec.disk}` is not an absolute path", where="--disk")
    if any("\ud800" <= letter <= "\udfff" for letter in spec.disk):
        raise ConfigError("--disk: must be valid UTF-8", where="--disk")
    if spec.copies < 1:
        raise ConfigError(f"--copies: must be at least 1 (got {spec.copies})", where="--copies")


def clock_skew_problems(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Messages about nodes whose clock differs from this machine's clock by more than 60 s."""
    return [
        f"{node}: its clock differs by {found['skew_s']:+.0f} s from this machine's"
        for node, found in facts.items()
        if abs(found["skew_s"]) > _SKEW_S
    ]


def _raise_for_problems(spec: PoolSpec, lacks: list[str], facts: Mapping[str, Mapping[str, Any]]) -> None:
    lacks += clock_skew_problems(facts)
    if lacks:
        more = f" (and {len(lacks) - 1} more)" if len(lacks) > 1 else ""
        raise SystemFault(
            f"pool {spec.name}: {lacks[0]}{more}", hint="run penstock doctor to list what each node lacks"
        )


def _rollback(cluster: Cluster, record: PoolRecord, error: BaseException, timeout_s: float) -> None:
    try:
        ended = _down(cluster, record, keep_data=False, timeout_s=timeout_s)
        if ended.unreached:
            error.add_note(
                f"no rollback on {', '.join(ended.unreached)}, which did not respond; run penstock pool down --name "
                f"{record.spec.name}"
            )
        else:
            _delete_record(record)
    except PenstockError as second:
        error.add_note(f"the rollback failed: {second}")


def status(cluster: Cluster, record: PoolRecord, *, timeout_s: float) -> dict[str, str]:
    """State of each node. All nodes are `degraded` if the pool was never up."""
    if record.pool is None:
        return dict.fromkeys(record.nodes, "degraded")
    return engine_registry.load(record.engine, record.engine_settings).status(record.pool, cluster, timeout_s=timeout_s)


def down(cluster: Cluster, record: PoolRecord, *, keep_data: bool = False, timeout_s: float) -> DownResult:
    """Take the pool down; safe to call twice.

    If a node does not respond, the record is kept, so that a later call can remove the pool from that node.

    Raises:
        PreconditionFailed: Another start has created a pool with this name.
    """
    record.keep_data = record.keep_data or keep_data
    found = find(record.spec.name)
    if found is not None:
        if found.lease != record.lease:
            raise PreconditionFailed(
                f"pool {record.spec.name}: another `pool up` has created a pool with this name",
                hint=f"run penstock pool down --name {record.spec.name} to end that pool",
            )
        record.state = "stopping"
        _write_record(record)
    ended = _down(cluster, record, keep_data=record.keep_data, timeout_s=timeout_s)
    if not ended.unreached and not ended.refused:
        _delete_record(record)
    return ended


def _down(cluster: Cluster, record: PoolRecord, *, keep_data: bool, timeout_s: float) -> DownResult:
    made = engine_registry.load(record.engine, record.engine_settings)
    receipts = made.down(record.spec, cluster, lease=record.lease, keep_data=keep_data, timeout_s=timeout_s)
    # Nodes in the record but not in this cluster count as unreached, because they still have data of the pool.
    wanted = dict.fromkeys([*(node.name for node in cluster.nodes), *record.nodes, *record.stranded])
    unreached = tuple(name for name in wanted if name not in receipts)
    refused = {name: ", ".join(receipt["refused"]) for name, receipt in receipts.items() if "refused" in receipt}
    return DownResult({name: receipt for name, receipt in receipts.items() if name not in refused}, unreached, refused)


def audit(cluster: Cluster, record: PoolRecord, *, timeout_s: float) -> DownResult:
    """List what is left of the pool on each node that responds, as messages in `receipts`."""
    made = engine_registry.load(record.engine, record.engine_settings)
    found = made.audit(record.spec, cluster, timeout_s=timeout_s)
    return DownResult(
        {node: {"left": left} for node, left in found.items()},
        tuple(n.name for n in cluster.nodes if n.name not in found),
    )


def forget(name: str) -> None:
    """Delete the record of a pool whose unreachable nodes will not come back.

    Raises:
        NotFound: The record does not exist.
    """
    record = find(name)
    if record is None:
        raise NotFound(f"no pool `{name}` is recorded on this machine")
    _delete_record(record)
