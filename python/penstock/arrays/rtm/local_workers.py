# SPDX-License-Identifier: Apache-2.0
"""Runs several workers on this machine, each as a separate process with its share of the cores."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from penstock.arrays.rtm.job import Job
from penstock.arrays.rtm.memory import check_memory
from penstock.arrays.rtm.worker import LEASE_TERM_S, WorkerReport, stage_kinds
from penstock.child_process import child_process
from penstock.env import read
from penstock.errors import ConfigError, RankFailed
from penstock.ownership import signal_child

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LocalWorkers", "pinned_threads"]

# Time in which a worker can release its claim before it is killed.
_GRACE_S = 8.0


def pinned_threads(threads: int) -> dict[str, str]:
    """Return environment variables that limit a worker to this number of threads. Variables that the user has set are
    left out.
    """
    wanted = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    return {name: value for name, value in wanted.items() if name not in read()}


class LocalWorkers:
    """Workers of a job on this machine. `run` starts them and waits for them.

    Args:
        job_url: The job.
        workers: Number of processes.
        threads: Number of threads of each worker; by default its share of the cores.
        stage, term_s, waits, snapshots_dir: See `Worker`.
        checks_memory: Before the start, check that the available memory is sufficient for the workers.
        on_shot: Function that is called in this process with the done marker of each finished stage of a shot.
        timeout_s: Time limit of each request, in seconds.
    Raises:
        ConfigError: An argument is invalid.
        BudgetExceeded: The memory is too small for the workers.
    """

    def __init__(
        self,
        job_url: str | os.PathLike[str],
        workers: int,
        *,
        threads: int | None = None,
        stage: str = "all",
        term_s: float = LEASE_TERM_S,
        waits: bool = True,
        snapshots_dir: str | os.PathLike[str] | None = None,
        checks_memory: bool = True,
        on_shot: Callable[[dict[str, Any]], None] | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers: must be at least 1 (got {workers})", where="workers")
        self.job = Job.load(job_url, timeout_s=timeout_s)
        kinds = stage_kinds(self.job, stage)
        if checks_memory:
            check_memory(self.job, kinds, workers=workers, on_disk=snapshots_dir is not None)
        self._count, self._on_shot, self._stage = workers, on_shot, stage
        cores = sorted(os.sched_getaffinity(0))
        self._threads = threads or max(1, len(cores) // workers)
        # Cores of each worker. If there are more workers than cores, workers are not pinned (see `_pin`).
        self._cores = [set(cores[at * self._threads : (at + 1) * self._threads]) for at in range(workers)]
        self._argv = [
            sys.executable, "-m", "penstock", "array", "rtm", "shots", self.job.location.url, "--stage", stage,
            "--lease", f"{term_s}s", "--timeout", f"{timeout_s}s", "--events",
            "--no-memory-check",
        ]  # fmt: skip
        self._argv += [] if waits else ["--no-wait"]
        self._argv += [] if snapshots_dir is None else ["--snapshots-dir", os.fspath(snapshots_dir)]
        self._children: list[subprocess.Popen[bytes]] = []

    def stop(self) -> None:
        """Let each worker finish its current shot and end. Another thread or a signal handler can call this method."""
        for child in self._children:
            signal_child(child, signal.SIGUSR1)

    def run(self) -> WorkerReport:
        """Compute shots until all shots are finished. If a worker dies, another worker takes over its shot.

        Raises:
            RankFailed: A worker died or failed, and shots remain. The error of the worker is on stderr.
        """
        report, ends = WorkerReport(), queue.SimpleQueue[tuple[int, list[dict[str, Any]]]]()
        shots = self.job.survey.shots
        with ExitStack() as running:
            for number in range(self._count):
                argv = [*self._argv, "--first", str(number * shots // self._count)]
                child = running.enter_context(
                    child_process(
                        argv, grace_s=_GRACE_S, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        env={**read(), **pinned_threads(self._threads)},
                    )
                )  # fmt: skip
                self._pin(child, number)
                self._children.append(child)
                threading.Thread(target=self._follow, args=(number, child, ends), daemon=True).start()
            for _ in range(self._count):
                # Wait with a short timeout, so that Python can handle a signal between two waits.
                while True:
                    try:
                        number, reports = ends.get(timeout=0.5)
                        break
                    except queue.Empty:
                        continue
                for each in reports:
                    report.add(each)
            codes = [child.wait() for child in self._children]
        missing = {
            shot for kind in stage_kinds(self.job, self._stage) for shot in set(range(shots)) - self.job.done(kind)
        }
        report.remaining = len(missing)
        bad = [code for code in codes if code not in (0, 1, 143)]
        if missing and bad and not report.is_stopped:
            raise RankFailed(
                f"{len(bad)} of {self._count} workers ended early (exit codes {', '.join(map(str, bad))}),"
                f" and {len(missing):,} shots remain",
                hint="repeat the command to migrate the remaining shots",
            )
        return report

    def _pin(self, child: subprocess.Popen[bytes], number: int) -> None:
        """Pin a child process to its cores before it starts threads."""
        if self._cores[number] and self._threads * self._count <= len(os.sched_getaffinity(0)):
            try:
                os.sched_setaffinity(child.pid, self._cores[number])
            except OSError:
                return  # the child has ended, or pinning is forbidden; pinning is optional

    def _follow(self, number: int, child: subprocess.Popen[bytes], ends: Any) -> None:
        """Read the output of a child (one line of JSON per finished stage, then a report), and forward it."""
        reports: list[dict[str, Any]] = []
        assert child.stdout is not None  # because it is a pipe
        try:
            with child.stdout as lines:
                for line in lines:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        continue  # the child ended before it completed this line
                    if event.get("event") == "shot" and self._on_shot is not None:
                        self._on_shot(event)
                    elif event.get("event") == "report":
                        reports.append(event)
        finally:
            ends.put((number, reports))
