# SPDX-License-Identifier: Apache-2.0
"""Reads the state of a migration job from its store."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from penstock.arrays.lease import Holder
from penstock.arrays.rtm.job import Job, shot_name
from penstock.arrays.rtm.stack import markers

if TYPE_CHECKING:
    import os

__all__ = ["Claim", "JobStatus", "StageStatus", "status"]

_PARTS = ("claim_s", "read_s", "compute_s", "write_s")


@dataclass(frozen=True)
class Claim:
    """A claim: the shot, the worker, and the seconds until another worker can take over the claim (negative if the
    claim has expired).
    """

    shot: int
    host: str
    pid: int
    ends_in_s: float
    is_abandoned: bool


@dataclass(frozen=True)
class StageStatus:
    """State of one stage of all shots.

    Attributes:
        done: Number of finished shots.
        total: Number of all shots.
        seconds: Median seconds that a shot takes for each part of the work: claim_s, read_s, compute_s, write_s.
        cpu_s: Median CPU seconds of a shot; 0 if the workers did not record them.
        io_share: Share of the total time of all finished shots that was spent on I/O (claim, read and write).
        stored_bytes: Number of bytes that the shots have stored.
        shots: For each shot, the seconds for each part of the work.
    """

    done: int
    total: int
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    io_share: float = 0.0
    stored_bytes: int = 0
    shots: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobStatus:
    """State of a job.

    Attributes:
        url: URL of the job.
        stages: State of each stage.
        claims: Claims, sorted by shot.
        failed: Last error of each unfinished shot that has failed.
        is_stacked: True if a stacked image exists.
        workers: For each host and process, the number of finished stages of shots.
    """

    url: str
    stages: dict[str, StageStatus]
    claims: list[Claim]
    failed: dict[int, str]
    is_stacked: bool
    workers: dict[str, int]

    @property
    def is_complete(self) -> bool:
        """True if all shots are migrated."""
        return all(stage.done == stage.total for stage in self.stages.values())

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {**asdict(self), "is_complete": self.is_complete}


def status(job_url: str | os.PathLike[str], *, timeout_s: float = 600.0) -> JobStatus:
    """Read the state of a job: finished shots, claims with their workers, and the time for each part of the work.

    Raises:
        NotFound: No job exists at the URL.
        Corrupt: A marker is damaged.
    """
    job = Job.load(job_url, timeout_s=timeout_s)
    stages: dict[str, StageStatus] = {}
    workers: dict[str, int] = {}
    unfinished: set[int] = set()
    for kind in job.kinds:
        done = job.done(kind)
        unfinished |= set(range(job.survey.shots)) - done
        facts = markers(job, kind, done)
        shots = {shot: each["seconds"] for shot, each in facts.items()}
        total_s = sum(each[part] for each in shots.values() for part in _PARTS)
        compute_s = sum(each["compute_s"] for each in shots.values())
        stages[kind] = StageStatus(
            len(done),
            job.survey.shots,
            {part: round(median(each[part] for each in shots.values()), 6) for part in _PARTS} if shots else {},
            round(median(each.get("cpu_s", 0.0) for each in facts.values()), 6) if facts else 0.0,
            round(1 - compute_s / total_s, 6) if total_s else 0.0,
            sum(each["stored_bytes"] for each in facts.values()),
            shots,
        )
        for each in facts.values():
            worker = f"{each['host']}:{each['pid']}"
            workers[worker] = workers.get(worker, 0) + 1
    is_stacked = (job.location / "stack/done.json").entry() is not None
    return JobStatus(job.location.url, stages, _claims(job), _failures(job, unfinished), is_stacked, workers)


def _claims(job: Job) -> list[Claim]:
    found = []
    for shot in sorted(job.claimed()):
        text = job.location.read(f"claims/{shot_name(shot)}")
        if text is None:
            continue
        try:
            facts = json.loads(text)
            holder = Holder(facts["owner"], facts["host"], facts["pid"], facts["expires_s"])
        except (ValueError, KeyError, TypeError):
            holder = Holder("unknown", "unknown", 0, 0.0)
        left_s = round(holder.expires_s - time.time(), 1)
        found.append(Claim(shot, holder.host.partition("/")[0], holder.pid, left_s, holder.is_gone))
    return found


def _failures(job: Job, shots: set[int]) -> dict[int, str]:
    found = {}
    listed = {entry[0] for entry in job.location.files.described(b"failed/")}
    for shot in sorted(shots):
        name = f"failed/{shot_name(shot)}"
        text = job.location.read(name) if name.encode() in listed else None
        if text is not None:
            found[shot] = str(json.loads(text)["error"])
    return found
