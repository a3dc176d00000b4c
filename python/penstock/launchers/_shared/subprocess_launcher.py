# SPDX-License-Identifier: Apache-2.0
"""Base class of launchers that start every rank with a program on this machine (nsenter, srun, mpirun).

A subclass defines the local command line that runs a command on a node. This module runs every rank inside the rank
wrapper, converts the wrapper's record to an Exit, and copies files. The ssh launcher has its own connections, and uses
only the functions of this module.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer
from typing import IO, TYPE_CHECKING, Any

from penstock.cpu_binding import binding_kind
from penstock.errors import ConfigError, Deadline, Interrupted, NotFound, PenstockError, Unreachable, Unsupported
from penstock.launchers._remote import file_transfer
from penstock.launchers._shared.child import Lines, Sink, Tail, supervise
from penstock.node_program import node_program
from penstock.protocols import Exit, NodeSlice, RunRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.protocols import Node, OnLine

__all__ = [
    "FAILURE_GRACE_S",
    "WRAPPER_GRACE_S",
    "SubprocessLauncher",
    "captured",
    "check_request",
    "common_options",
    "display_argv",
    "exit_from_record",
    "line_sink",
    "missing_record",
    "rank_argv",
    "rank_options",
    "sinks",
    "split_records",
    "stop_later",
    "stops_others",
    "transfer_argv",
]

_RECORD = re.compile(rb"\x1e(\{.*?\})\x1e\n?")
# Time from the deadline until the local launcher process is terminated: covers the rank wrapper's start and grace period.
WRAPPER_GRACE_S = 8.0
# Time for the other ranks to end by themselves after a rank has failed.
FAILURE_GRACE_S = 3.0


def _node_script(name: str) -> str:
    return node_program(Path(__file__).parents[1] / "_remote" / name)


def rank_argv(python: str, options: Mapping[str, Any], argv: Sequence[str]) -> list[str]:
    """Command line that runs `argv` inside the rank wrapper."""
    return [python, "-c", _node_script("rank_wrapper.py"), json.dumps(options), *argv]


def transfer_argv(python: str, verb: str, path: str) -> list[str]:
    """Command line that sends or receives a file or folder; it runs on a node."""
    return [python, "-c", _node_script("file_transfer.py"), verb, path]


def display_argv(argv: Sequence[str]) -> list[str]:
    """Shorten a command line for display: replace embedded scripts with their names."""
    names = {_node_script(name): f"<{name}>" for name in ("rank_wrapper.py", "file_transfer.py")}
    return [names.get(arg, arg) for arg in argv]


def split_records(err: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Separate stderr into the rank wrappers' records and the remaining output."""
    return [json.loads(each) for each in _RECORD.findall(err)], _RECORD.sub(b"", err)


def exit_from_record(
    node: str, rank: int, record: Mapping[str, Any] | None, out: bytes, err: bytes, seconds: float, limit_s: float
) -> Exit:
    """Convert a rank wrapper's record to an Exit. Without a record, the command did not run; stderr has the reason."""
    fault: PenstockError | None = None
    if record is None:
        # Open MPI frames its messages with lines of dashes.
        stderr_lines = [line for line in err.decode(errors="replace").splitlines() if line.strip(" -")]
        fault = Unreachable(
            f"{node}: the command did not start{f': {stderr_lines[-1].strip()[:300]}' if stderr_lines else ''}",
            where=node,
        )
    elif record.get("fault") == "deadline":
        fault = Deadline(
            f"{node}: the command was stopped after its limit of {limit_s:g} s", where=node, limit_s=limit_s
        )
    elif record.get("fault") == "start":
        fault = NotFound(f"{node}: {record['text']}", where=node)
    elif record.get("fault") == "bind":
        fault = Unsupported(
            f"{node}: {record['text']}", where=node, hint="pass --bind show to see the CPUs that ranks get without it"
        )
    elif record.get("fault") == "stopped":
        fault = Interrupted(f"{node}: the command was stopped", where=node)
    code = None if record is None else record.get("code")
    return Exit(node, rank, code, out, err, seconds, fault, (record or {}).get("cpus", ""))


def common_options(request: RunRequest) -> dict[str, Any]:
    """Rank wrapper options that are equal for all ranks of a request."""
    rank_prefix = request.rank_prefix
    return {
        "limit_s": request.timeout_s, "cwd": request.cwd, "expand": request.expand_placeholders, "ranks_per_node": request.ranks_per_node,
        "bind": request.bind,
        "prefix": list(rank_prefix.argv) if rank_prefix and not rank_prefix.is_outermost else [], "cleanup": list(rank_prefix.cleanup_argv) if rank_prefix else [],
    }  # fmt: skip


def rank_options(request: RunRequest) -> list[tuple[Node, dict[str, Any]]]:
    """Node and rank wrapper options of every rank, in rank order, for launchers that do not number ranks themselves."""
    # Rendezvous address of the ranks. The port is not checked on the first node. If the port is in use, the ranks fail.
    rendezvous = (request.on[0].address, 20000 + time.time_ns() // 1_000_000 % 12000)
    node_slice = request.node_slice or NodeSlice(0, len(request.on), rendezvous)
    a_node = request.ranks_per_node
    alike = {
        **common_options(request),
        "rendezvous": node_slice.rendezvous,
        "nodes": node_slice.nodes,
        "world": node_slice.nodes * a_node,
    }
    return [
        (node, {**alike, "node": node.name, "node_at": at, "rank": at * a_node + local, "local_rank": local})
        for at, node in enumerate(request.on, node_slice.node)
        for local in range(a_node)
    ]


@dataclass(frozen=True)
class _RankProcess:
    """One local process that runs one rank: node, rank and command line."""

    node: Node
    rank: int
    argv: list[str]


class SubprocessLauncher:
    """Base class of launchers with one local process per rank. A subclass defines `nodes` and `on_node`."""

    def __init__(self, environment: Mapping[str, str], *, python: str = "") -> None:
        self.environment = dict(environment)
        self.python = python or sys.executable
        # Inside a container, the path of this interpreter usually does not exist.
        self.container_python = python or "python3"
        # One event per running call, so that stopping one call does not stop later calls that clean up after it.
        self._stops: set[Event] = set()

    def nodes(self) -> Sequence[Node]:
        raise NotImplementedError

    def on_node(self, node: Node, argv: Sequence[str]) -> list[str]:
        """Return the local command line that runs `argv` on the node."""
        raise NotImplementedError

    # ------------------------------------------------------------ launcher interface

    def line(self, request: RunRequest) -> list[list[str]]:
        return [display_argv(start.argv) for start in self._starts(request)]

    def run(self, request: RunRequest) -> list[Exit]:
        starts = self._starts(request)
        with tempfile.TemporaryFile() as held:
            held.write(request.stdin or b"")
            held.flush()
            return self._all(starts, request, held if request.stdin is not None else None)

    def copy(self, src: Path, dst: str, on: Sequence[Node], *, timeout_s: float) -> list[Exit]:
        request = RunRequest(transfer_argv(self.python, "receive", dst), on, timeout_s=timeout_s)
        starts = self._starts(request)
        with tempfile.TemporaryFile() as held:
            file_transfer.pack(str(src), held)
            return self._all(starts, request, held)

    def fetch(self, src: str, dst: Path, on: Node, *, timeout_s: float) -> Exit:
        request = RunRequest(transfer_argv(self.python, "send", src), [on], timeout_s=timeout_s)
        [start] = self._starts(request)
        with tempfile.TemporaryFile() as held:
            with self.stoppable() as stop:
                ended = self._one(start, request, None, stop, keep=held)
            if ended.code == 0:
                held.seek(0)
                file_transfer.unpack(held, str(dst))
            return ended

    def close(self) -> None:
        for stop in tuple(self._stops):
            stop.set()

    @contextmanager
    def stoppable(self) -> Iterator[Event]:
        """Context manager: an event that stops a call. The event is set by `close`, or by an exception in the block."""
        stop = Event()
        self._stops.add(stop)
        try:
            yield stop
        except BaseException:
            stop.set()
            raise
        finally:
            self._stops.discard(stop)

    # ------------------------------------------------------------ internals

    def _starts(self, request: RunRequest) -> list[_RankProcess]:
        check_request(request)
        return [
            _RankProcess(node, options["rank"], self.on_node(node, rank_argv(self.python, options, request.argv)))
            for node, options in rank_options(request)
        ]

    def _all(self, starts: Sequence[_RankProcess], request: RunRequest, stdin: IO[bytes] | None) -> list[Exit]:
        # On exit, the executor waits for processes that end when `stop` is set. Therefore, `stop` must be set before
        # that, and `stoppable` must be entered last.
        with ThreadPoolExecutor(len(starts), thread_name_prefix="penstock-launch") as pool, self.stoppable() as stop:
            return list(pool.map(lambda start: self._one(start, request, stdin, stop), starts))

    def _one(
        self,
        start: _RankProcess,
        request: RunRequest,
        stdin: IO[bytes] | None,
        stop: Event,
        *,
        keep: Sink | None = None,
    ) -> Exit:
        began, name = time.monotonic(), start.node.name
        out, err = sinks(request.on_line, name, start.rank)
        opened = None if stdin is None else Path(f"/proc/self/fd/{stdin.fileno()}").open("rb")  # noqa: SIM115 - an own offset for each
        try:
            code = supervise(
                start.argv, env={**self.environment, **request.env}, limit_s=request.timeout_s + WRAPPER_GRACE_S, stop=stop,
                out=keep or out, err=err, stdin=opened,
            )  # fmt: skip
        except OSError as error:
            fault = Unreachable(f"{name}: {start.argv[0]}: {error.strerror}", where=name)
            return Exit(name, start.rank, None, fault=fault)
        finally:
            if opened is not None:
                opened.close()
        found, rest = split_records(captured(err))
        record = found[-1] if found else missing_record(code, is_stopped=stop.is_set())
        ended = exit_from_record(
            name, start.rank, record, captured(out), rest, time.monotonic() - began, request.timeout_s
        )
        if stops_others(request, ended.code):
            stop_later(stop)
        return ended


def stops_others(request: RunRequest, code: int | None) -> bool:
    """Whether a rank's exit code (None: it did not start) stops the other ranks of the request. If a signal has ended the
    rank's command, the exit code is 128 + the signal's number.
    """
    is_killed = code is not None and 128 < code <= 128 + signal.SIGRTMAX
    return is_killed or (request.stops_on_failure and code != 0)


def stop_later(stop: Event) -> None:
    """Stop the other ranks of a request soon after a rank has failed, because they may wait for that rank forever."""
    timer = Timer(FAILURE_GRACE_S, stop.set)
    timer.daemon = True
    timer.start()


def missing_record(code: int | None, *, is_stopped: bool) -> dict[str, Any] | None:
    """Return a record for a rank whose wrapper has not sent a record. It contains the reason why Penstock ended the
    launcher process.

    Returns None if the launcher process exited by itself.
    """
    return None if code is not None else {"fault": "stopped" if is_stopped else "deadline"}


def check_request(request: RunRequest, *, takes_step: bool = False, takes_outermost: bool = False) -> None:
    """Raise an error for an invalid request.

    Raises:
        ConfigError: The command, the nodes or the ranks are missing or invalid.
        Unsupported: The launcher does not support the request's rank prefix.
    """
    if not request.argv or not all(isinstance(arg, str) and "\0" not in arg for arg in request.argv):
        raise ConfigError("a command must be a list of at least one string")
    if not request.on:
        raise ConfigError("nodes: at least one is required")
    if request.ranks_per_node < 1:
        raise ConfigError(f"ranks per node must be at least 1 (got {request.ranks_per_node})")
    if request.node_slice is not None and request.node_slice.node + len(request.on) > request.node_slice.nodes:
        raise ConfigError(
            f"nodes: the index of the last node ({request.node_slice.node + len(request.on) - 1}) must be less than "
            f"the number of nodes ({request.node_slice.nodes})"
        )
    if request.bind is not None:
        try:
            binding_kind(request.bind)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    rank_prefix = request.rank_prefix
    if rank_prefix is not None and rank_prefix.launcher_args and not takes_step:
        raise Unsupported(
            f"{rank_prefix.launcher_args[0]}: supported only by srun",
            hint="set launcher = slurm, or use another container runtime",
        )
    if rank_prefix is not None and rank_prefix.is_outermost and not takes_outermost:
        raise Unsupported(
            f"{rank_prefix.argv[0]}: not supported by this launcher, which cannot run inside the container",
            hint="set launcher = mpi with Open MPI",
        )


def line_sink(on_line: OnLine, node: str, rank: int, stream: str) -> Lines:
    """Sink that retains the end of a stream, and passes its lines to `on_line`, except the rank wrapper's records."""

    def pass_on(line: bytes) -> None:
        if not (stream == "err" and line.startswith(b"\x1e")):
            on_line(node, rank, stream, line)

    return Lines(pass_on)


def sinks(on_line: OnLine | None, node: str, rank: int) -> tuple[Tail | Lines, Tail | Lines]:
    """Sinks for stdout and stderr of a rank."""
    return (
        (Tail(), Tail())
        if on_line is None
        else (line_sink(on_line, node, rank, "out"), line_sink(on_line, node, rank, "err"))
    )


def captured(sink: Tail | Lines) -> bytes:
    """Return the retained end of a finished stream. An incomplete last line is passed to the callback first."""
    if isinstance(sink, Lines):
        sink.end()
        return bytes(sink.tail.kept)
    return bytes(sink.kept)
