# SPDX-License-Identifier: Apache-2.0
"""A job handed to a batch system: its script written, sbatch or qsub called, waited for where that is asked, ended on Ctrl-C."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, Deadline, NotFound, SystemFault
from penstock.job.export import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.job.export.request import Asked

__all__ = ["plan", "submit", "system_of"]

_ASK_S = 60
# Who is ended before it has told a number may have handed the job over by then, and is heard for so long.
_LATE_S = 5
# A job that is asked to end takes its pool down first.
_TAKE_DOWN_S = 180
# Slurm: `12` or `12;cluster`. PBS: `12.server`, `12[].server`.
_NUMBER = re.compile(r"[0-9]+[A-Za-z0-9_.;\[\]-]*")


@dataclass(frozen=True)
class _System:
    """Words that hand a job over, that wait for it, that end it where it has not begun, that ask its script alone to end, and
    that end it at once.

    A cancelled Slurm job starts no steps any more, by which a pool would be taken down: so its script is asked first. Where
    a system cannot end only what has not begun, it refuses to ask such a job's script, and the job is ended at once.
    """

    start: tuple[str, ...]
    wait: tuple[str, ...]
    withdraw: tuple[str, ...]
    ask: tuple[str, ...]
    end: tuple[str, ...]


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


def system_of(asked: Asked) -> str:
    """Whose batch job it becomes.

    Raises:
        ConfigError: Neither the launcher nor `[submit]` says.
    """
    found = asked.submit.system or asked.job.cluster.launcher
    if found not in _SYSTEMS:
        raise ConfigError(
            f"submit.system: launcher {found} belongs to no batch system", hint='[submit] system = "slurm" or "pbs"'
        )
    return found


def plan(asked: Asked, *, waits: bool) -> tuple[Path, str, list[str]]:
    """Where the job's script is to lie, its text, and the words that hand it over. Writes and starts nothing.

    Raises:
        ConfigError: No batch system, or a job that it cannot say.
    """
    system = system_of(asked)
    script = asked.runs / asked.job.name / f"job.{system}"
    words = _SYSTEMS[system]
    return script, write(system, asked), [*words.start, *(words.wait if waits else ()), str(script)]


def submit(asked: Asked, environment: Mapping[str, str], *, waits: bool, told: Callable[[str], None]) -> int:
    """Hands the job over.

    Args:
        waits: Until it has ended; Ctrl-C ends it, its pool first.
        told: Given the job's number as soon as it has one.

    Returns:
        The job's exit code; 0 where nobody waits.

    Raises:
        NotFound: The system's program is not here.
        SystemFault: The system refused the job, in its own words.
        Deadline: It has not answered, which is waited for as long as it lives where `waits`; a job that it may have taken
            stays.
    """
    words = _SYSTEMS[system_of(asked)]
    script, text, line = plan(asked, waits=waits)
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    number, running = "", None
    try:
        with _signals_later():
            running = _started(line, environment, hint=f"--export {system_of(asked)} writes the script")
        assert running.stdout is not None
        # One that blocks until the job has ended may keep its number in a buffer until then.
        if not select.select([running.stdout], [], [], None if waits else _ASK_S)[0]:
            raise _silent(line[0])
        number = running.stdout.readline().strip()
        if _NUMBER.fullmatch(number):
            told(number)
        try:
            _, said = running.communicate(timeout=None if waits else _ASK_S)
        except subprocess.TimeoutExpired:
            raise _silent(line[0]) from None
    except BaseException as error:
        if running is not None:
            with running:  # its pipes are closed, and its end is waited for
                try:
                    if not isinstance(error, Deadline):  # else nobody wants the job ended
                        number = number or _late(running)
                        if _NUMBER.fullmatch(number):
                            _end(words, number.partition(";")[0], running, environment)
                finally:
                    running.kill()
        raise
    if not _NUMBER.fullmatch(number):
        last = (said.strip() or number or f"exit code {running.returncode}").splitlines()[-1]
        raise SystemFault(f"{line[0]}: {last.removeprefix(f'{line[0]}: ')[:300]}", hint=f"the script is {script}")
    return running.returncode


def _started(line: list[str], environment: Mapping[str, str], *, hint: str) -> subprocess.Popen[str]:
    try:
        # In a session of its own: a terminal's Ctrl-C is for us.
        return subprocess.Popen(
            line, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NotFound(f"{line[0]}: {error.strerror}", hint=f"this machine submits no jobs; {hint}") from error


@contextmanager
def _signals_later() -> Iterator[None]:
    """Lets no signal in between a start and the note of what was started: one that comes meanwhile is heard at the end."""
    came: list[int] = []
    # No other thread is interrupted, nor may one set handlers.
    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    held = {number: handler for number in ours if callable(handler := signal.getsignal(number))}
    for number in held:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _late(running: subprocess.Popen[str]) -> str:
    """The number that is told only now; empty where none is."""
    assert running.stdout is not None
    is_told = select.select([running.stdout], [], [], _LATE_S)[0]
    return running.stdout.readline().strip() if is_told else ""


def _silent(program: str) -> Deadline:
    return Deadline(
        f"{program} has not answered within {_ASK_S} s",
        limit_s=_ASK_S,
        hint="it may have taken the job: look at its queue",
    )


def _end(words: _System, number: str, running: subprocess.Popen[str], environment: Mapping[str, str]) -> None:
    """Asks the job to end, and ends it where it has not done so after a while, or at a second Ctrl-C."""

    def call(line: tuple[str, ...]) -> bool:
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [*line, number], env=dict(environment), check=False, timeout=_ASK_S, capture_output=True
            )
            return done.returncode == 0
        return False

    try:
        if words.withdraw:
            call(words.withdraw)
        if not call(words.ask):
            call(words.end)
        running.wait(_TAKE_DOWN_S)
    except subprocess.TimeoutExpired:
        call(words.end)
    except BaseException:
        call(words.end)
        raise
