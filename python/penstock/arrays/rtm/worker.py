# SPDX-License-Identifier: Apache-2.0
"""Worker that computes shots of a job: it claims a shot, reads, computes and writes, and marks the shot as done.

Any number of workers can share a job through its store. If a worker is killed, only its current shot is lost. Another
worker takes over the claim when the lease expires, or immediately if the killed worker was on the same host. If two
workers compute the same shot, their images are equal, and only one of the workers creates the done marker.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from penstock import _native
from penstock.arrays.lease import Lease
from penstock.arrays.rtm.job import ARRAYS, Job, Kind, digest, shot_name
from penstock.arrays.rtm.memory import check_memory
from penstock.arrays.rtm.shot_grid import ShotGrid, shot_grid
from penstock.errors import Busy, Changed, ConfigError, Corrupt
from penstock.rtm.imaging import migrate_shot
from penstock.rtm.propagation import model_shot, propagator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.arrays.array import Array
    from penstock.rtm.propagation import Method

__all__ = ["LEASE_TERM_S", "STAGES", "Outcome", "Stage", "Worker", "WorkerReport", "run_shots", "stage_kinds"]

Stage = Literal["model", "migrate", "all"]
STAGES: tuple[Stage, ...] = ("model", "migrate", "all")

Outcome = Literal["done", "present", "held", "lost", "failed"]
"""Outcome of a shot: computed (`done`), already finished (`present`), claimed by another worker (`held`), taken over by
another worker (`lost`), or failed.
"""

LEASE_TERM_S = 60.0
"""Time in seconds after which a worker can take over the claim of a worker that died on another host."""

# Errors after which other shots can still succeed. Any other error ends the worker.
_SHOT_FAULTS = (ConfigError, Corrupt, Changed)


@dataclass
class WorkerReport:
    """Report of one or several workers.

    Attributes:
        computed: For each stage, the computed shots in the order in which they were finished.
        failed: Error of each shot that could not be computed.
        taken_over: Shots whose claim was taken over from a dead worker.
        lost: Shots that another worker took over from this worker, or finished first.
        remaining: Number of shots that are not finished when the worker ends.
        without_gather: Number of shots that cannot be migrated, because their gathers are not modelled yet.
        is_stopped: True if the worker was requested to stop.
        build_s: Seconds for building and compiling the operators, which happens once per process.
        claim_s, read_s, compute_s, write_s: Total seconds for this part of the work, over all shots.
    """

    computed: dict[str, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    taken_over: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    remaining: int = 0
    without_gather: int = 0
    is_stopped: bool = False
    build_s: float = 0.0
    claim_s: float = 0.0
    read_s: float = 0.0
    compute_s: float = 0.0
    write_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if all shots of the stage are finished."""
        return self.remaining == 0

    @property
    def is_held_elsewhere(self) -> bool:
        """True if other workers have claimed all remaining shots."""
        return not (self.failed or self.without_gather or self.is_stopped)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**asdict(self), "is_complete": self.is_complete}

    def add(self, other: dict[str, Any]) -> None:
        """Add the report of another worker, which is given as JSON."""
        for kind, shots in other["computed"].items():
            self.computed.setdefault(kind, []).extend(shots)
        self.failed |= {int(shot): text for shot, text in other["failed"].items()}
        self.taken_over += other["taken_over"]
        self.lost += other["lost"]
        self.without_gather = max(self.without_gather, other["without_gather"])
        self.is_stopped |= other["is_stopped"]
        for name in ("build_s", "claim_s", "read_s", "compute_s", "write_s"):
            setattr(self, name, round(getattr(self, name) + other[name], 4))


def stage_kinds(job: Job, stage: str) -> tuple[Kind, ...]:
    """Return the stages of a shot that `stage` names.

    Raises:
        ConfigError: The stage is unknown, or it is `model` and the job has recorded gathers.
    """
    if stage not in STAGES:
        raise ConfigError(f"stage: `{stage}` is not one of {', '.join(STAGES)}", where="stage")
    kinds: tuple[Kind, ...] = tuple(kind for kind in job.kinds if stage in ("all", kind))
    if not kinds:
        raise ConfigError(
            f"stage: `{stage}` does not apply to {job.location.url}, which has recorded gathers", where="stage"
        )
    return kinds


class Worker:
    """A worker of a job. It runs in one thread. Other threads can call `stop` and `give_back`.

    Args:
        job: The job.
        stage: "model", "migrate" or "all".
        term_s: Time in seconds after which another worker can take over a claim that is not renewed.
        waits: Whether the worker waits while other workers have claimed all remaining shots, to take over the shots of
            workers that die.
        snapshots_dir: Folder on a local disk in which snapshots are stored in a file; by default, snapshots are kept in
            memory.
        checks_memory: Before the first shot, check that the available memory is sufficient for a shot.
        first: First shot to try; by default a random shot, so that two workers rarely try the same shot.
        on_shot: Function that is called with the done marker of each finished stage of a shot.
    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        job: Job,
        *,
        stage: Stage = "all",
        term_s: float = LEASE_TERM_S,
        waits: bool = True,
        snapshots_dir: str | os.PathLike[str] | None = None,
        checks_memory: bool = True,
        first: int | None = None,
        on_shot: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        if not 0.3 <= term_s < float("inf"):
            raise ConfigError(f"term_s: must be finite and at least 0.3 s (got {term_s:g})", where="term_s")
        self.job, self.kinds = job, stage_kinds(job, stage)
        if snapshots_dir is not None and job.method != "snapshots":
            raise ConfigError(
                f"snapshots_dir: requires method snapshots; the job's method is {job.method}", where="snapshots_dir"
            )
        # `Job` has already validated its method.
        self._method: Method = "disk" if snapshots_dir is not None else cast("Method", job.method)
        self._snapshots_dir, self._term_s, self._waits, self._on_shot = snapshots_dir, term_s, waits, on_shot
        self._checks_memory = checks_memory
        self._first = int.from_bytes(os.urandom(4), "big") if first is None else first
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._arrays: dict[str, Array] = {}
        self._writers: dict[str, _native.ZarrWriter] = {}
        self._gathers_of: set[int] = set()
        self._modelled: tuple[int, np.ndarray[Any, Any]] | None = None
        self._is_built = False
        self.report = WorkerReport()

    def stop(self) -> None:
        """End after the current shot."""
        self.report.is_stopped = True
        self._stop.set()

    def give_back(self) -> None:
        """Release the claim of the current shot immediately. The partial result of this shot is lost."""
        self.stop()
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def run(self) -> WorkerReport:
        """Compute shots until all shots are finished or `stop` is called.

        Raises:
            BudgetExceeded: The memory is too small for a shot.
            PenstockError: The store, the disk or Devito reported an error. The current claim has been released.
        """
        while not self._stop.is_set():
            left = self._left()
            if not left:
                break
            if not self._pass(left):
                if not self._waits:
                    break
                # Other workers have claimed all remaining shots. Wait, and then check for expired claims.
                self._stop.wait(min(max(self._term_s / 4, 0.1), 5.0))
        self.report.remaining = len(self._unfinished())
        return self.report

    def run_shot(self, shot: int) -> Outcome:
        """Compute the missing stages of one shot.

        Raises:
            ConfigError: The survey has no such shot.
            PenstockError: The store, the disk or Devito reported an error.
        """
        grid = shot_grid(self.job.survey, shot, self.job.aperture_km)
        self._build(grid)
        begin = time.monotonic()
        lease = Lease(self.job.location, f"claims/{shot_name(shot)}", term_s=self._term_s)
        try:
            if lease.acquire() is not None:
                self.report.taken_over.append(shot)
        except Busy:
            return "held"
        with self._lock:
            self._lease = lease
        try:
            return self._claimed(shot, grid, lease, begin)
        except _SHOT_FAULTS as error:
            self.report.failed[shot] = str(error)
            facts = {"shot": shot, "error": str(error), "code": error.code, "host": platform.node()}
            self.job.location.write(f"failed/{shot_name(shot)}", json.dumps(facts).encode())
            return "failed"
        finally:
            with self._lock:
                held, self._lease = self._lease, None
            if held is not None:
                held.release()

    def _unfinished(self) -> set[int]:
        missing: set[int] = set()
        for kind in self.kinds:
            missing |= set(range(self.job.survey.shots)) - self.job.done(kind)
        return missing

    def _left(self) -> list[int]:
        """Return the shots to compute, in order from `first`, with claimed shots at the end."""
        left = self._unfinished() - self.report.failed.keys()
        if "model" not in self.kinds and "model" in self.job.kinds:
            ready = left & self.job.done("model")
            self.report.without_gather = len(left - ready)
            left = ready
        claimed = self.job.claimed() if left else set()
        shots = self.job.survey.shots
        return sorted(left, key=lambda shot: (shot in claimed, (shot - self._first) % shots))

    def _pass(self, shots: Sequence[int]) -> bool:
        """Compute shots until the listing of finished shots is outdated. Return True if a shot was computed, or was
        already finished.
        """
        is_useful = False
        for shot in shots:
            if self._stop.is_set():
                break
            outcome = self.run_shot(shot)
            if outcome in ("present", "lost"):
                return True
            is_useful |= outcome != "held"
        return is_useful

    def _build(self, grid: ShotGrid) -> None:
        """Check the memory and build the operators, before a claim is held."""
        if not self._is_built:
            if self._checks_memory:
                check_memory(self.job, self.kinds, on_disk=self._snapshots_dir is not None)
            with self._clock("build_s"):
                wave = propagator(grid.survey)
                if "model" in self.kinds:
                    wave.prepare()
                if "migrate" in self.kinds:
                    wave.prepare(self._method)
            self._is_built = True

    def _claimed(self, shot: int, grid: ShotGrid, lease: Lease, begin: float) -> Outcome:
        found: Outcome = "present"
        for kind in self.kinds:
            is_done = (self.job.location / f"done/{kind}/{shot_name(shot)}").entry() is not None
            seconds = {"claim_s": time.monotonic() - begin, "read_s": 0.0, "compute_s": 0.0, "write_s": 0.0}
            self.report.claim_s += seconds["claim_s"]
            cpu_begin = time.process_time()
            if not is_done:
                compute = self._model if kind == "model" else self._migrate
                arrays = compute(shot, grid, seconds)
                if lease.is_lost or self._lease is not lease:
                    self.report.lost.append(shot)
                    return "lost"
                with self._clock("write_s", seconds):
                    stored = sum(self._write(name, shot, each) for name, each in zip(ARRAYS[kind], arrays, strict=True))
                facts = {
                    "schema_version": 1, "shot": shot, "kind": kind, "sha256": digest(*arrays), "stored_bytes": stored,
                    "host": platform.node(), "pid": os.getpid(), "finished_s": round(time.time(), 3),
                    "seconds": {name: round(value, 6) for name, value in seconds.items()},
                    "cpu_s": round(time.process_time() - cpu_begin, 6),
                }  # fmt: skip
                if not self.job.mark(kind, shot, facts):
                    # Another worker took over the claim and finished first. Its result is equal to this worker's
                    # result.
                    self.report.lost.append(shot)
                    return "lost"
                self.report.computed.setdefault(kind, []).append(shot)
                found = "done"
                if self._on_shot is not None:
                    self._on_shot(facts)
            begin = time.monotonic()
        return found

    def _model(self, shot: int, grid: ShotGrid, seconds: dict[str, float]) -> list[np.ndarray[Any, Any]]:
        with self._clock("read_s", seconds):
            model = self._read("velocity", grid)
        with self._clock("compute_s", seconds):
            gather = model_shot(grid.survey, model, grid.shot)
        survey = self.job.survey
        traces = np.zeros((len(survey.receivers_km), survey.samples), dtype=np.float32)
        traces[grid.receivers] = gather.T
        self._modelled = (shot, traces)
        return [traces]

    def _migrate(self, shot: int, grid: ShotGrid, seconds: dict[str, float]) -> list[np.ndarray[Any, Any]]:
        with self._clock("read_s", seconds):
            model = self._read("smooth", grid)
            traces = self._gather(shot)
        with self._clock("compute_s", seconds):
            gather = np.ascontiguousarray(traces[grid.receivers].T)
            parts = migrate_shot(grid.survey, model, gather, grid.shot, self._method, snapshot_dir=self._snapshots_dir)
        return [grid.placed(part, self.job.survey.shape) for part in parts]

    def _gather(self, shot: int) -> np.ndarray[Any, Any]:
        """Return the traces of a shot, [receivers, samples]. They are read from the store unless this worker has just
        modelled them.
        """
        if self._modelled is not None and self._modelled[0] == shot:
            return self._modelled[1]
        if self.job.gathers is None and shot not in self._gathers_of:
            # Reopen the array, because an open array contains only the objects that existed when it was opened.
            self._arrays.pop("gathers", None)
            self._gathers_of = self.job.done("model")
        if "gathers" not in self._arrays:
            self._arrays["gathers"] = self.job.open_gathers()
        traces: np.ndarray[Any, Any] = self._arrays["gathers"][shot]
        return traces

    def _read(self, name: str, grid: ShotGrid) -> np.ndarray[Any, Any]:
        """Read the shot's part of a velocity model."""
        if name not in self._arrays:
            volume = self.job.velocity if name == "velocity" else self.job.smooth
            assert volume is not None  # a job with the stage "model" has a velocity model
            found = self.job.open(volume)
            if found.shape != self.job.survey.shape:
                raise ConfigError(
                    f"{volume.url}: shape {list(found.shape)} differs from the survey's {list(self.job.survey.shape)}",
                    where=volume.url,
                )
            self._arrays[name] = found
        model: np.ndarray[Any, Any] = self._arrays[name][grid.box]
        return model

    def _write(self, name: str, shot: int, values: np.ndarray[Any, Any]) -> int:
        if name not in self._writers:
            place, document = self.job.output(name)
            self._writers[name] = _native.ZarrWriter(
                place.url, json.dumps(document), place.variables, timeout_s=place.timeout_s
            )
        data = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)
        return self._writers[name].write((shot, *[0] * values.ndim), data)

    @contextmanager
    def _clock(self, name: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
        """Return a context manager that adds its duration to the report and to `seconds`."""
        begin = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - begin
            setattr(self.report, name, getattr(self.report, name) + took)
            if seconds is not None:
                seconds[name] += took


def run_shots(
    job_url: str | os.PathLike[str], stage: Stage = "all", *, timeout_s: float = 600.0, **options: Any
) -> WorkerReport:
    """Compute shots of a job in this process until all shots are finished.

    Args:
        job_url: A job that `prepare` has created.
        stage: "model" (gathers), "migrate" (images) or "all".
        timeout_s: Time limit of each request, in seconds.
        options: See `Worker`.
    Raises:
        NotFound: No job exists at the URL.
        ConfigError: An option is invalid.
        PenstockError: The store, the disk or Devito reported an error.
    """
    return Worker(Job.load(job_url, timeout_s=timeout_s), stage=stage, **options).run()
