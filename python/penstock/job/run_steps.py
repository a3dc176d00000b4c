# SPDX-License-Identifier: Apache-2.0
"""Job runner: runs the steps provision, pool up, stage, ranks, archive and pool down.

Every step is timed and logged. Finished steps are saved for `--resume`. The pool is taken down in every case.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock.atomic_file import atomic_file
from penstock.cluster.cluster import Cluster
from penstock.cluster.exits import describe, raise_for_failures
from penstock.errors import Busy, ConfigError, NotFound, PenstockError, PreconditionFailed
from penstock.job import staged_folder_lease
from penstock.job.node_loss_recovery import evict_lost_objects, unreachable_nodes
from penstock.job.provision import provision
from penstock.job.spec import staged_leftover
from penstock.job.step_commands import StepCommands
from penstock.pool import lifecycle
from penstock.pool.context import NODE, VARIABLE, PoolContext, to_env
from penstock.protocols import Pool, PoolSpec, RunRequest
from penstock.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.job.spec import Job
    from penstock.protocols import Exit, Node, NodeSlice, OnLine, RankPrefix

__all__ = ["Execution", "Step", "StepRow"]

_DOWN_TIMEOUT_S = 120.0
_REMOVE_TIMEOUT_S = 300.0


class StepRow(msgspec.Struct):
    """A step that has begun.

    `state` is `running`, `done`, `failed` or `skipped`. A skipped step was done by an earlier run of the job, and
    `seconds` is its duration in that run.
    """

    name: str
    state: str = "running"
    seconds: float = 0.0
    detail: str = ""


class _State(msgspec.Struct):
    """State of a job, saved for later runs.

    Attributes:
        job: Hash of the job file's content.
        lease: Lease of the pool or staged folder that this job created; empty if the job created neither.
        marks: Steps that need not run again, with the inputs of their run.
        steps: Steps that the last run has begun.
    """

    job: str
    lease: str = ""
    marks: dict[str, str] = {}
    steps: list[StepRow] = []


Step = tuple[str, "Callable[[], str]"]


class Execution:
    """One run of a job.

    Args:
        folder: Contains `job.json` (the state) and `logs/STEP/NODE.log`.
        environment: Additional environment variables for the steps on the nodes, such as credentials of stores.
        on_step: Called when a step begins and when it ends.
        node_slice: Set if this machine is a single node of the job, and all other nodes are started separately.

    Raises:
        ConfigError: The job has a pool, which needs all nodes, but `node_slice` is set.
    """

    def __init__(
        self, job: Job, folder: Path, environment: Mapping[str, str], *, on_step: Callable[[StepRow], None], on_line: OnLine | None = None,
        node_slice: NodeSlice | None = None,
    ) -> None:  # fmt: skip
        self.job = job
        self.folder = folder
        self.environment = dict(environment)
        self._on_step = on_step
        self._on_line = on_line
        self._commands = StepCommands(job, node_slice)
        self._node_slice = node_slice
        if node_slice is not None and job.pool is not None:
            raise ConfigError(
                "pool: not supported with --node, because one node cannot start the pool of all nodes",
                hint="use a [stage] with a destination, which stages each node's share",
            )
        self._state = _State(hashlib.sha256(msgspec.json.encode(job)).hexdigest()[:16])
        self._pool: Pool | None = None
        self._cluster: Cluster | None = None
        self._earlier: dict[str, float] = {}
        self._lock: int | None = None
        self._recreated_because: str | None = None
        self.lost: dict[str, str] = {}
        """Nodes lost during this run, with the reason."""
        self.is_partial = False
        """True if the ranks of lost nodes were not run again on other nodes."""

    # ------------------------------------------------------------ public

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened on first access."""
        if self._cluster is None:
            if self._node_slice is not None:
                self._cluster = Cluster.open("local", {"nodes": 1, "first": self._node_slice.node})
            else:
                self._cluster = Cluster.open(self.job.cluster.launcher, self.job.cluster.given())
        return self._cluster

    def plan(self) -> list[tuple[str, list[list[str]]]]:
        """Return the command lines of every step, as this machine would start them. Starts nothing.

        The pool's URL is not known yet, and is shown as POOL.
        """
        job, everyone = self.job, list(self.cluster.nodes)
        steps: list[tuple[str, list[list[str]]]] = []

        def lines(
            argv: list[str],
            on: list[Node],
            ranks_per_node: int = 1,
            rank_prefix: RankPrefix | None = None,
            bind: str | None = None,
        ) -> list[list[str]]:
            call = RunRequest(argv, on, ranks_per_node, expand_placeholders=True, rank_prefix=rank_prefix, bind=bind)
            return [list(line) for line in self.cluster.launcher.line(call)]

        if job.provision:
            steps.append(("provision", lines(["sh", job.provision.at], everyone)))
        if job.pool:
            steps.append(("pool up", [self._commands.pool_up()]))
        if job.stage:
            steps.append(("stage", lines(self._commands.stage(self._commands.data("POOL/")), everyone)))
        argv, rank_prefix = self._commands.ranks(self._commands.data("POOL/"), self._variables())
        steps.append(("ranks", lines(argv, everyone, job.run.ranks_per_node, rank_prefix, job.run.bind)))
        if job.archive:
            on = everyone if job.archive.on == "all" else everyone[:1]
            steps.append(("archive", lines(self._commands.archive(), on)))
        if disk := staged_leftover(job):
            steps.append(("remove", [["penstock", "pool", "down", "--name", job.name, "--disk", disk]]))
        if job.pool:
            steps.append(("pool down", [["penstock", "pool", "down", "--name", job.name]]))
        return steps

    def has_begun(self) -> bool:
        """True if the folder contains the state of an earlier run."""
        return (self.folder / "job.json").exists()

    def refuse_if_begun(self) -> None:
        """Raise ConfigError if the folder contains the state of an earlier run."""
        if self.has_begun():
            raise ConfigError(
                f"{self.folder} contains an earlier run of this job",
                hint="use --resume to continue it, or --output to choose another folder",
            )

    def steps(self) -> list[StepRow]:
        """Return the steps that have begun in this run. Also valid after a failure."""
        return self._state.steps

    def run(self, *, resume: bool) -> list[StepRow]:
        """Run all steps. If this job started the pool, it is taken down at the end, even after a failure or Ctrl-C.

        Raises:
            ConfigError: The folder contains an earlier run and `resume` is false, or a run of another job.
            PenstockError: A step failed; the error message begins with the step's name.
        """
        self._open(resume=resume)
        steps: list[Step] = []
        if self.job.provision:
            steps.append(("provision", self._provision))
        if self.job.pool:
            steps.append(("pool up", self._pool_up))
        if self.job.stage:
            steps.append(("stage", self._stage))
        steps.append(("ranks", self._ranks))
        if self.job.archive and not (self._node_slice and self._node_slice.node and self.job.archive.on == "leader"):
            steps.append(("archive", self._archive))
        try:
            for name, do in steps:
                self._run_step(name, do)
        except BaseException as error:
            try:
                self._clean_up()
            except PenstockError as second:
                error.add_note(str(second))  # raise the first failure, not the failure of the clean-up
            raise
        else:
            self._clean_up()
        finally:
            self.close()
        return self._state.steps

    def _clean_up(self) -> None:
        """Remove the staged data and the pool that the job created only for its own duration."""
        if staged_leftover(self.job) is not None and self._state.lease:
            self._run_step("remove", self._remove)
        if self._has_own_pool():
            self._run_step("pool down", self._pool_down)

    def _has_own_pool(self) -> bool:
        """Whether this job started the pool, in this run or in an earlier run, as the lease shows."""
        return self._pool is not None and self._pool.lease == self._state.lease

    def close(self) -> None:
        """Close the cluster and unlock the folder."""
        if self._cluster is not None:
            self._cluster.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ------------------------------------------------------------ state

    def _open(self, *, resume: bool) -> None:
        path = self.folder / "job.json"
        self._take_folder(is_new=not resume)
        if not resume:
            self.refuse_if_begun()
        if path.exists():
            found = msgspec.json.decode(path.read_bytes(), type=_State)
            if found.job != self._state.job:
                raise ConfigError(
                    f"{self.folder} contains a run of a different job file",
                    hint="resume with the job file of that run",
                )
            self._state.marks, self._state.lease = found.marks, found.lease
            self._earlier = {row.name: row.seconds for row in found.steps if row.state in ("done", "skipped")}
        elif resume:
            raise NotFound(f"{self.folder} contains no run to resume")
        self._save()

    def _take_folder(self, *, is_new: bool) -> None:
        """Lock the folder until the job ends, so that a second command cannot write the same state.

        If this process is killed, the kernel releases the lock. On a file system without locks, the folder is not
        locked.
        """
        if is_new:
            self.folder.mkdir(parents=True, exist_ok=True)
        elif not self.folder.is_dir():
            return
        # Child processes do not inherit the descriptor. Otherwise a program that outlives its rank would keep the lock.
        lock = os.open(self.folder / ".job.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Busy(f"{self.folder}: another command is running this job") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(lock)
                raise
        self._lock = lock

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.folder / "job.json") as out:
            out.write(msgspec.json.encode(self._state))

    def _run_step(self, name: str, do: Callable[[], str]) -> None:
        row = StepRow(name)
        self._state.steps.append(row)
        self._on_step(row)
        began = time.monotonic()
        try:
            row.detail = do()
            row.state = "skipped" if row.detail == "done before" else "done"
        except BaseException as error:
            row.state, row.detail = "failed", str(error)
            raise
        finally:
            took = time.monotonic() - began
            row.seconds = self._earlier.get(name, took) if row.state == "skipped" else took
            self._save()
            self._on_step(row)

    def _is_marked(self, step: str, what: str) -> bool:
        return self._state.marks.get(step) == what

    def _mark(self, step: str, what: str) -> None:
        self._state.marks[step] = what
        self._save()

    # ------------------------------------------------------------ steps

    def _variables(self) -> list[str]:
        """Names of the environment variables that the job sets for every rank."""
        of_pool = [VARIABLE, NODE] if self.job.pool else []
        return [*self.environment, *self.job.run.env, *of_pool]

    def _on_nodes(self, step: str, argv: list[str], deadline: str, **options: Any) -> list[Exit]:
        return self.cluster.run(
            argv, timeout_s=parse_seconds(deadline), env=self.environment | options.pop("env", {}),
            logs=self.folder / "logs" / step.replace(" ", "-"), on_line=self._on_line, expand_placeholders=True, **options,
        )  # fmt: skip

    def _provision(self) -> str:
        section = self.job.provision
        assert section is not None
        return provision(
            self.cluster,
            section,
            lambda todo: self._on_nodes("provision", ["sh", section.at], section.timeout, on=todo),
        )

    def _pool_up(self) -> str:
        record = lifecycle.find(self.job.name)
        is_own = record is not None and record.lease == self._state.lease
        if record is not None and is_own and record.state != "up":
            # An earlier run of this job was killed during `pool up` or `pool down`.
            ended = lifecycle.down(Cluster(self.cluster.launcher), record, timeout_s=_DOWN_TIMEOUT_S)
            if ended.unreached or ended.refused:
                text = ", ".join([*ended.refused.values(), *(f"{name} did not respond" for name in ended.unreached)])
                raise PenstockError(
                    f"{text}; the pool of an earlier run still has files on these nodes",
                    hint=f"run penstock pool down --name {self.job.name} when these nodes respond again",
                )
            is_own = False
        return self._bring_up("" if is_own else uuid4().hex[:16])

    def _bring_up(self, lease: str = "", stranded: Sequence[str] = ()) -> str:
        """Start the pool with a new `lease`, or with the lease in the state if `lease` is empty.

        The state is saved with the lease before any node is contacted.
        """
        section = self.job.pool
        assert section is not None
        self._state.lease = lease or self._state.lease
        self._save()
        self._pool, was_up = lifecycle.up(
            self.cluster, PoolSpec(self.job.name, section.disk, section.copies), section.engine, section.settings,
            timeout_s=parse_seconds(section.timeout), launcher=self.job.cluster.launcher, launcher_settings=self.job.cluster.given(),
            lease=self._state.lease, holder=str(self.folder.absolute()), stranded=stranded,
        )  # fmt: skip
        stays = "" if self._has_own_pool() else "; left running, since this job did not start it"
        return f"{self._pool.url}{f' (was up{stays})' if was_up else ''}"

    def _stage(self) -> str:
        section = self.job.stage
        assert section is not None
        data = self._commands.data(self._pool.url if self._pool else "")
        # The mark contains the pool's lease, because a new pool is empty even if an earlier run has staged the data.
        what = f"{data} {self._pool.lease if self._pool else ''} {len(self.cluster.nodes)}"
        # If the ranks have already ended, do not stage data again that the job would only remove at its end.
        if self._is_marked("stage", what) or (staged_leftover(self.job) and self._is_marked("ranks", "ended")):
            return "done before"
        if disk := staged_leftover(self.job):
            self._state.lease = self._state.lease or uuid4().hex[:16]
            self._save()
            staged_folder_lease.claim(self.cluster, self.job.name, disk, self._state.lease, timeout_s=_DOWN_TIMEOUT_S)
        raise_for_failures(self._on_nodes("stage", self._commands.stage(data), section.timeout), "stage")
        self._mark("stage", what)
        return data

    def _ranks(self) -> str:
        section = self.job.run
        if self._is_marked("ranks", "ended"):
            return "done before"
        bad = self._run_ranks()
        tries = 1
        while bad:
            unreachable = unreachable_nodes(self.cluster, bad)
            if not unreachable or section.lost_node == "abort":
                raise_for_failures(bad, "ranks")
            self._drop_nodes(unreachable, bad)
            if section.lost_node == "continue":
                raise_for_failures([ended for ended in bad if ended.node not in unreachable], "ranks")
                self.is_partial = True
                break
            self._restore_pool()
            bad = self._run_ranks()
            tries += 1
        self._mark("ranks", "ended")
        text = f"{len(self.cluster.nodes) * section.ranks_per_node} ranks"
        if self.lost:
            text += f", {tries} starts; lost: {', '.join(self.lost)} ({next(iter(self.lost.values()))})"
        if self._recreated_because is not None:
            text += f"; the pool was started again: {self._recreated_because}"
        return text

    def _run_ranks(self) -> list[Exit]:
        """Run the ranks on all remaining nodes; return the exits of the failed ranks."""
        section = self.job.run
        data = self._commands.data(self._pool.url if self._pool else "")
        argv, rank_prefix = self._commands.ranks(data, self._variables())
        env = {**self._pool_env(data), **section.env}
        exits = self._on_nodes(
            "ranks", argv, section.timeout, ranks_per_node=section.ranks_per_node, cwd=section.cwd, env=env, rank_prefix=rank_prefix,
            node_slice=self._node_slice, bind=section.bind,
        )  # fmt: skip
        return [ended for ended in exits if ended.code != 0]

    def _pool_env(self, data: str) -> dict[str, str]:
        """Environment variables with the pool, so that ranks read their own node's files first and the bucket last."""
        pool, stage = self.job.pool, self.job.stage
        if self._pool is None or pool is None or stage is None:
            return {}
        return to_env(
            PoolContext(self._pool, data, source=stage.source, engine_settings=pool.settings, lost=tuple(self.lost))
        )

    def _drop_nodes(self, unreachable: Sequence[str], bad: Sequence[Exit]) -> None:
        self.lost.update({ended.node: describe(ended) for ended in bad if ended.node in unreachable})
        left = tuple(node for node in self.cluster.nodes if node.name not in unreachable)
        if not left:
            raise_for_failures(bad, "ranks")
        self.cluster.nodes = left

    def _restore_pool(self) -> None:
        """Restore the dataset on the remaining nodes: objects that were stored only on a lost node are staged again."""
        section = self.job.pool
        if self._pool is not None and section is not None:
            limit_s = parse_seconds(section.timeout)
            try:
                evict_lost_objects(
                    self.cluster, self._pool, section.settings, list(self.lost), self._commands, timeout_s=limit_s
                )
            except PenstockError as error:
                # The whole pool may be lost, for example with its first node. In that case, replace the pool with a
                # new, empty pool. A pool that is still running is kept, and the error is raised.
                record = lifecycle.find(self.job.name)
                if record is None or not self._has_own_pool() or self._is_up(record):
                    raise
                self._recreated_because = str(error)
                ended = lifecycle.down(self.cluster, record, timeout_s=_DOWN_TIMEOUT_S)
                if ended.refused or not set(ended.unreached) <= set(self.lost):
                    raise
                if ended.unreached:
                    lifecycle.forget(self.job.name)
                self._state.marks.pop("stage", None)
                # Use the same lease, so that a later `pool down` also removes files on lost nodes that come back.
                self._bring_up(stranded=ended.unreached)
        if self.job.stage is not None:
            self._stage()

    def _is_up(self, record: lifecycle.PoolRecord) -> bool:
        """Whether the pool is up on all remaining nodes."""
        states = lifecycle.status(self.cluster, record, timeout_s=_DOWN_TIMEOUT_S)
        return all(states.get(node.name) == "up" for node in self.cluster.nodes)

    def _archive(self) -> str:
        section = self.job.archive
        assert section is not None
        on = list(self.cluster.nodes) if section.on == "all" else [self.cluster.leader]
        raise_for_failures(self._on_nodes("archive", self._commands.archive(), section.timeout, on=on), "archive")
        return section.to

    def _remove(self) -> str:
        """Remove the data that this job has staged; its lease identifies the folder."""
        disk = staged_leftover(self.job)
        assert disk is not None
        self._state.marks.pop("stage", None)
        self._save()
        everyone = Cluster(self.cluster.launcher)
        staged_folder_lease.release(
            everyone, self.job.name, disk, self._state.lease, lost=self.lost, timeout_s=_REMOVE_TIMEOUT_S
        )
        return disk

    def _pool_down(self) -> str:
        record = lifecycle.find(self.job.name)
        if record is None or record.lease != self._state.lease:
            return "it was taken down by another command"
        everyone = Cluster(self.cluster.launcher)  # includes lost nodes, so that the result lists them
        ended = lifecycle.down(everyone, record, timeout_s=_DOWN_TIMEOUT_S)
        if ended.refused:
            raise PreconditionFailed(f"pool down: {', '.join(ended.refused.values())}")
        if ended.unreached:
            text = f"{', '.join(ended.unreached)} did not respond; the pool still has files there"
            if set(ended.unreached) <= set(self.lost):
                return text
            raise PenstockError(
                f"pool down: {text}",
                hint=f"run penstock pool down --name {self.job.name} when these nodes respond again",
            )
        return f"{len(ended.receipts)} nodes"
