# SPDX-License-Identifier: Apache-2.0
"""Batch submission: writes the job script, calls sbatch or qsub, optionally waits for the job, cancels it on Ctrl-C."""

from __future__ import annotations

import re
import select
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.child_process import deferred_signals
from penstock.errors import ConfigError, Deadline, NotFound, SystemFault
from penstock.job.export import write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.job.export.request import ExportRequest

__all__ = ["plan", "submit", "system_of"]

_COMMAND_TIMEOUT_S = 60
# How long to wait for the job id after an interruption, because sbatch may already have submitted the job.
_LATE_ID_TIMEOUT_S = 5
# How long to wait for the end of a terminated job, which takes its pool down before it ends.
_POOL_DOWN_TIMEOUT_S = 180
# Slurm: `12` or `12;cluster`. PBS: `12.server`, `12[].server`.
_JOB_ID = re.compile(r"[0-9]+[A-Za-z0-9_.;\[\]-]*")


@dataclass(frozen=True)
class _System:
    """Commands of a batch system.

    Attributes:
        submit: Submits a job.
        wait: Further arguments of `submit`, to wait until the job has ended.
        cancel_pending: Cancels a job that is still pending; empty if the system has no such command.
        terminate: Sends SIGTERM to the job script. A cancelled Slurm job cannot start further steps, and therefore
            cannot take its pool down. So the script gets SIGTERM before the job is cancelled.
        cancel: Cancels the job immediately. Used if `terminate` fails, for example for a pending PBS job.
    """

    submit: tuple[str, ...]
    wait: tuple[str, ...]
    cancel_pending: tuple[str, ...]
    terminate: tuple[str, ...]
    cancel: tuple[str, ...]


_SYSTEMS = {
    "slurm": _System(
        ("sbatch", "--parsable"),
        ("--wait",),
        ("scancel", "--state=PENDING"),
        ("scancel", "--batch", "--signal=TERM"),
        ("scancel",),
    ),
    "pbs": _System(("qsub",), ("-W", "block=true"), (), ("qsig", "-s", "SIGTERM"), ("qdel",)),
}


def system_of(request: ExportRequest) -> str:
    """Name of the batch system that runs the job.

    Raises:
        ConfigError: Neither the launcher nor `[submit]` specifies a batch system.
    """
    found = request.submit.system or request.job.cluster.launcher
    if found not in _SYSTEMS:
        raise ConfigError(
            f"submit.system: launcher {found} does not use a batch system",
            hint='set system = "slurm" or "pbs" in [submit]',
        )
    return found


def plan(request: ExportRequest, *, waits: bool) -> tuple[Path, str, list[str]]:
    """Return the path of the job script, its text, and the command that submits it. Writes and starts nothing.

    Raises:
        ConfigError: The batch system is unknown, or cannot express the job.
    """
    system = system_of(request)
    script = request.runs / request.job.name / f"job.{system}"
    commands = _SYSTEMS[system]
    return script, write(system, request), [*commands.submit, *(commands.wait if waits else ()), str(script)]


def submit(
    request: ExportRequest, environment: Mapping[str, str], *, waits: bool, on_submitted: Callable[[str], None]
) -> int:
    """Submit the job.

    Args:
        waits: Wait until the job has ended. During the wait, Ctrl-C terminates the job, which first takes its pool
            down.
        on_submitted: Called with the job id as soon as it is known.

    Returns:
        The job's exit code; 0 without `waits`.

    Raises:
        NotFound: The system's program is not installed.
        SystemFault: The batch system rejected the job; the error contains its message.
        Deadline: The program did not return in time (no limit with `waits`). If it accepted the job, the job is not
            cancelled.
    """
    system = _SYSTEMS[system_of(request)]
    script, text, line = plan(request, waits=waits)
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    job_id, running = "", None
    try:
        with deferred_signals():
            running = _start(line, environment, hint=f"--export {system_of(request)} writes the script")
        assert running.stdout is not None
        # `waits` disables the timeout, because the program may flush the job id only when the job has ended.
        if not select.select([running.stdout], [], [], None if waits else _COMMAND_TIMEOUT_S)[0]:
            raise _no_answer(line[0])
        job_id = running.stdout.readline().strip()
        if _JOB_ID.fullmatch(job_id):
            on_submitted(job_id)
        try:
            _, stderr = running.communicate(timeout=None if waits else _COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise _no_answer(line[0]) from None
    except BaseException as error:
        if running is not None:
            with running:  # closes its pipes and waits for its end
                try:
                    if not isinstance(error, Deadline):  # after a timeout, the job is not cancelled
                        job_id = job_id or _late_job_id(running)
                        if _JOB_ID.fullmatch(job_id):
                            _cancel(system, job_id.partition(";")[0], running, environment)
                finally:
                    running.kill()
        raise
    if not _JOB_ID.fullmatch(job_id):
        last = (stderr.strip() or job_id or f"exit code {running.returncode}").splitlines()[-1]
        raise SystemFault(f"{line[0]}: {last.removeprefix(f'{line[0]}: ')[:300]}", hint=f"check the script {script}")
    return running.returncode


def _start(line: list[str], environment: Mapping[str, str], *, hint: str) -> subprocess.Popen[str]:
    try:
        # The program runs in its own session, so that Ctrl-C in a terminal reaches only this process.
        return subprocess.Popen(
            line, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NotFound(
            f"{line[0]}: {error.strerror}", hint=f"submit from a machine that can submit jobs; {hint}"
        ) from error


def _late_job_id(running: subprocess.Popen[str]) -> str:
    """Wait a few seconds for a job id that the program has not printed yet; return it, or an empty text."""
    assert running.stdout is not None
    has_line = select.select([running.stdout], [], [], _LATE_ID_TIMEOUT_S)[0]
    return running.stdout.readline().strip() if has_line else ""


def _no_answer(program: str) -> Deadline:
    return Deadline(
        f"{program} did not respond within {_COMMAND_TIMEOUT_S} s",
        limit_s=_COMMAND_TIMEOUT_S,
        hint="check the queue, because the system may have accepted the job",
    )


def _cancel(system: _System, job_id: str, running: subprocess.Popen[str], environment: Mapping[str, str]) -> None:
    """Terminate the job. If it does not end in time, or on a second Ctrl-C, cancel it immediately."""

    def call(line: tuple[str, ...]) -> bool:
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [*line, job_id], env=dict(environment), check=False, timeout=_COMMAND_TIMEOUT_S, capture_output=True
            )
            return done.returncode == 0
        return False

    try:
        if system.cancel_pending:
            call(system.cancel_pending)
        if not call(system.terminate):
            call(system.cancel)
        running.wait(_POOL_DOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        call(system.cancel)
    except BaseException:
        call(system.cancel)
        raise
