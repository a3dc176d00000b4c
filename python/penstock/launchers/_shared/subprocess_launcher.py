# SPDX-License-Identifier: Apache-2.0
"""What launchers share that start programs of this machine (nsenter, srun, mpirun): ranks, records, copies.

A launcher says which command line here becomes a command there; this says how ranks go through the door, what their
Exit is, and how files cross. ssh has its own connections and shares only the words.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import ConfigError, Deadline, Interrupted, NotFound, PenstockError, Unreachable, Unsupported
from penstock.launchers._remote import file_transfer
from penstock.launchers._shared.child import Lines, Sink, Tail, attend
from penstock.node_program import node_program
from penstock.protocols import Call, Exit, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.protocols import Hear, Node

__all__ = [
    "BEYOND_S",
    "StepLauncher",
    "check",
    "door_line",
    "doors",
    "ended_here",
    "exit_of",
    "heard",
    "kept",
    "parcel_line",
    "records",
    "settings_of",
    "sinks",
    "spoken",
    "worded",
]

_RECORD = re.compile(rb"\x1e(\{.*?\})\x1e\n?")
# What the door is given beyond a deadline before the launcher's own process is ended: its grace, and the way there.
BEYOND_S = 8.0


def _program(name: str) -> str:
    return node_program(Path(__file__).parents[1] / "_remote" / name)


def door_line(python: str, options: Mapping[str, Any], argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` through the door."""
    return [python, "-c", _program("rank_wrapper.py"), json.dumps(options), *argv]


def parcel_line(python: str, verb: str, path: str) -> list[str]:
    """The command line that sends or receives a file or folder on a node."""
    return [python, "-c", _program("file_transfer.py"), verb, path]


def spoken(argv: Sequence[str]) -> list[str]:
    """A command line for people: the sources that go along are named, not printed."""
    names = {_program(name): f"<{name}>" for name in ("rank_wrapper.py", "file_transfer.py")}
    return [names.get(word, word) for word in argv]


def settings_of(name: str, settings: Mapping[str, Any], known: Mapping[str, type]) -> dict[str, Any]:
    """A launcher's settings, each of its type; text from a command line is taken for the number that it spells.

    Raises:
        ConfigError: An unknown one, or a value that cannot be.
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        kind = known.get(key)
        if kind is None:
            raise ConfigError(
                f"launcher {name}: it has no setting `{key}`", hint=f"its settings are: {', '.join(sorted(known))}"
            )
        if isinstance(value, str) and kind is int and value.isdecimal():
            value = int(value)
        if isinstance(value, str) and kind is bool and value in ("true", "false"):
            value = value == "true"
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"launcher {name}: {key} = {value!r} is no {kind.__name__}")
        found[key] = value
    return found


def records(err: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """What the doors told on stderr, and the rest of it."""
    return [json.loads(each) for each in _RECORD.findall(err)], _RECORD.sub(b"", err)


def exit_of(
    node: str, rank: int, record: Mapping[str, Any] | None, out: bytes, err: bytes, seconds: float, limit_s: float
) -> Exit:
    """An Exit by the door's record; without one, nothing came of the command and its stderr says why."""
    fault: PenstockError | None = None
    if record is None:
        said = err.decode(errors="replace").strip().splitlines()
        fault = Unreachable(f"{node}: the command did not start{f': {said[-1][:300]}' if said else ''}", where=node)
    elif record.get("fault") == "deadline":
        fault = Deadline(f"{node}: the command was ended after its {limit_s:g} s", where=node, limit_s=limit_s)
    elif record.get("fault") == "start":
        fault = NotFound(f"{node}: {record['text']}", where=node)
    elif record.get("fault") == "stopped":
        fault = Interrupted(f"{node}: the command was stopped", where=node)
    code = None if record is None else record.get("code")
    return Exit(node, rank, code, out, err, seconds, fault)


def worded(call: Call) -> dict[str, Any]:
    """What every rank's door of a call is told alike."""
    around = call.around
    return {
        "limit_s": call.deadline_s, "cwd": call.cwd, "fills": call.fills, "ranks_per_node": call.ranks_per_node,
        "around": list(around.words) if around and not around.is_outermost else [], "ends": list(around.ends) if around else [],
    }  # fmt: skip


def doors(call: Call) -> list[tuple[Node, dict[str, Any]]]:
    """Every rank's node and what its door is told, node after node, for launchers that number ranks by us."""
    # Where ranks may meet. Nobody has asked the leader whether the port is free: that is told by those who meet.
    meet = (call.on[0].address, 20000 + time.time_ns() // 1_000_000 % 12000)
    part = call.part or Part(0, len(call.on), meet)
    a_node = call.ranks_per_node
    alike = {**worded(call), "meet": part.meet, "nodes": part.nodes, "world": part.nodes * a_node}
    return [
        (node, {**alike, "node": node.name, "node_at": at, "rank": at * a_node + local, "local_rank": local})
        for at, node in enumerate(call.on, part.node)
        for local in range(a_node)
    ]


@dataclass(frozen=True)
class _Start:
    """One process of this machine that carries a rank: its node and rank, and its command line."""

    node: Node
    rank: int
    argv: list[str]


class _File:
    """A sink that keeps everything, on disk."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def take(self, chunk: bytes) -> None:
        self._file.write(chunk)


class StepLauncher:
    """Base of launchers whose every rank is a process of this machine. A subclass gives `nodes` and `on_node`."""

    def __init__(self, environment: Mapping[str, str], *, python: str = "") -> None:
        self.environment = dict(environment)
        self.python = python or sys.executable
        # One a call that is under way: what ends one call must not end those that clean up after it.
        self._stops: set[Event] = set()

    def nodes(self) -> Sequence[Node]:
        raise NotImplementedError

    def on_node(self, node: Node, argv: Sequence[str]) -> list[str]:
        """The command line here that runs `argv` there."""
        raise NotImplementedError

    # ------------------------------------------------------------ the contract

    def line(self, call: Call) -> list[list[str]]:
        return [spoken(start.argv) for start in self._starts(call)]

    def run(self, call: Call) -> list[Exit]:
        starts = self._starts(call)
        with tempfile.TemporaryFile() as held:
            held.write(call.stdin or b"")
            held.flush()
            return self._all(starts, call, held if call.stdin is not None else None)

    def copy(self, src: Path, dst: str, on: Sequence[Node], *, deadline_s: float) -> list[Exit]:
        call = Call(parcel_line(self.python, "receive", dst), on, deadline_s=deadline_s)
        starts = self._starts(call)
        with tempfile.TemporaryFile() as held:
            file_transfer.pack(str(src), held)
            return self._all(starts, call, held)

    def fetch(self, src: str, dst: Path, on: Node, *, deadline_s: float) -> Exit:
        call = Call(parcel_line(self.python, "send", src), [on], deadline_s=deadline_s)
        [start] = self._starts(call)
        with tempfile.TemporaryFile() as held:
            with self.stoppable() as stop:
                ended = self._one(start, call, None, stop, keep=_File(held))
            if ended.code == 0:
                held.seek(0)
                file_transfer.unpack(held, str(dst))
            return ended

    def close(self) -> None:
        for stop in tuple(self._stops):
            stop.set()

    @contextmanager
    def stoppable(self) -> Iterator[Event]:
        """An event that ends a call: set by `close`, and by whatever ends the block early (Ctrl-C)."""
        stop = Event()
        self._stops.add(stop)
        try:
            yield stop
        except BaseException:
            stop.set()
            raise
        finally:
            self._stops.discard(stop)

    # ------------------------------------------------------------ how

    def _starts(self, call: Call) -> list[_Start]:
        check(call)
        return [
            _Start(node, options["rank"], self.on_node(node, door_line(self.python, options, call.argv)))
            for node, options in doors(call)
        ]

    def _all(self, starts: Sequence[_Start], call: Call, stdin: IO[bytes] | None) -> list[Exit]:
        # The pool's end waits for its threads, and those for processes that `stop` ends: so it is entered last.
        with ThreadPoolExecutor(len(starts), thread_name_prefix="penstock-launch") as pool, self.stoppable() as stop:
            return list(pool.map(lambda start: self._one(start, call, stdin, stop), starts))

    def _one(
        self, start: _Start, call: Call, stdin: IO[bytes] | None, stop: Event, *, keep: Sink | None = None
    ) -> Exit:
        began, name = time.monotonic(), start.node.name
        out, err = sinks(call.hear, name, start.rank)
        opened = None if stdin is None else Path(f"/proc/self/fd/{stdin.fileno()}").open("rb")  # noqa: SIM115 - an own offset for each
        try:
            code = attend(
                start.argv, env={**self.environment, **call.env}, limit_s=call.deadline_s + BEYOND_S, stop=stop,
                out=keep or out, err=err, stdin=opened,
            )  # fmt: skip
        except OSError as error:
            fault = Unreachable(f"{name}: {start.argv[0]}: {error.strerror}", where=name)
            return Exit(name, start.rank, None, fault=fault)
        finally:
            if opened is not None:
                opened.close()
        told, rest = records(kept(err))
        record = told[-1] if told else ended_here(code, is_stopped=stop.is_set())
        return exit_of(name, start.rank, record, kept(out), rest, time.monotonic() - began, call.deadline_s)


def ended_here(code: int | None, *, is_stopped: bool) -> dict[str, Any] | None:
    """The record of a rank whose door told nothing: where its launcher's process was ended by us, that is why."""
    return None if code is not None else {"fault": "stopped" if is_stopped else "deadline"}


def check(call: Call, *, takes_step: bool = False, takes_outermost: bool = False) -> None:
    """Refuses a call that cannot be.

    Raises:
        ConfigError: No command, no node, no rank.
        Unsupported: What is to stand around its ranks is not for this launcher.
    """
    if not call.argv or not all(isinstance(word, str) and "\0" not in word for word in call.argv):
        raise ConfigError("a command is a list of texts, and has at least one")
    if not call.on:
        raise ConfigError("no node to run on")
    if call.ranks_per_node < 1:
        raise ConfigError(f"{call.ranks_per_node} ranks on a node run nothing")
    if call.part is not None and call.part.node + len(call.on) > call.part.nodes:
        raise ConfigError(f"node {call.part.node} and {len(call.on) - 1} more are not among {call.part.nodes}")
    around = call.around
    if around is not None and around.step and not takes_step:
        raise Unsupported(
            f"{around.step[0]}: only srun takes it", hint="launcher = slurm, or another container runtime"
        )
    if around is not None and around.is_outermost and not takes_outermost:
        raise Unsupported(
            f"{around.words[0]}: this launcher cannot run inside the container",
            hint="launcher = mpi can, with Open MPI",
        )


def heard(hear: Hear, node: str, rank: int, stream: str) -> Lines:
    """A sink that keeps a stream's end and tells its lines, the door's records left out."""

    def tell(line: bytes) -> None:
        if not (stream == "err" and line.startswith(b"\x1e")):
            hear(node, rank, stream, line)

    return Lines(tell)


def sinks(hear: Hear | None, node: str, rank: int) -> tuple[Tail | Lines, Tail | Lines]:
    """Sinks for a rank's two streams."""
    return (Tail(), Tail()) if hear is None else (heard(hear, node, rank, "out"), heard(hear, node, rank, "err"))


def kept(sink: Tail | Lines) -> bytes:
    """What a sink has kept of a stream that has ended; its last line is told."""
    if isinstance(sink, Lines):
        sink.end()
        return bytes(sink.tail.kept)
    return bytes(sink.kept)
