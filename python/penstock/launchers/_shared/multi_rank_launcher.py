# SPDX-License-Identifier: Apache-2.0
"""Base class of launchers that start all ranks with one program (srun, mpirun).

The program numbers the ranks and labels their output lines. The program's rank numbers are not changed, so that MPI
works. For a request with stdin, every rank gets its own launcher process, because mpirun passes stdin to only one rank.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.errors import Unsupported
from penstock.launchers._shared.child import Lines, Tail, supervise
from penstock.launchers._shared.subprocess_launcher import (
    WRAPPER_GRACE_S,
    SubprocessLauncher,
    captured,
    check_request,
    common_options,
    display_argv,
    exit_from_record,
    missing_record,
    rank_argv,
    sinks,
    stop_later,
    stops_others,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.protocols import Exit, RunRequest

__all__ = ["MultiRankLauncher"]

_RECORD = re.compile(rb"\x1e(\{.*?\})\x1e")


class MultiRankLauncher(SubprocessLauncher):
    """Base class of launchers with one program that starts all ranks.

    A subclass defines `nodes`, `on_node` (starts one rank on a node), `launch_argv` (starts all ranks) and `label`.
    """

    label: re.Pattern[bytes]
    # Bindings that the program implements by its own options. The rank wrapper implements all other bindings.
    own_bindings = ("core", "numa")

    def launch_argv(self, request: RunRequest, argv: Sequence[str]) -> list[str]:
        """Return the command line on this machine that starts `argv` on every rank of a request."""
        raise NotImplementedError

    def check(self, request: RunRequest) -> None:
        """Raise an error for a request that this launcher cannot run."""
        check_request(request)

    def line(self, request: RunRequest) -> list[list[str]]:
        self.check(request)
        return [display_argv(self.launch_argv(request, self._rank_argv(request)))]

    def run(self, request: RunRequest) -> list[Exit]:
        self.check(request)
        if request.node_slice is not None:
            raise Unsupported(
                "this launcher numbers ranks itself and cannot run a part of a larger job", hint="set launcher = local"
            )
        if request.stdin is not None:
            return super().run(request)
        began = time.monotonic()
        output = _LabelledOutput(self.label, request)
        out, err = output.sink("out"), output.sink("err")
        line = self.launch_argv(request, self._rank_argv(request))
        code: int | None = -1
        with self.stoppable() as stop:
            output.on_failure = partial(stop_later, stop)
            try:
                # If this process is killed, the program must end its ranks, also those on other nodes.
                code = supervise(
                    line, env={**self.environment, **request.env}, limit_s=request.timeout_s + WRAPPER_GRACE_S, stop=stop, out=out, err=err,
                    ends_with_parent=True,
                )  # fmt: skip
            except OSError as error:
                output.own.write(f"{line[0]}: {error.strerror}".encode())
        out.end()
        err.end()
        took = time.monotonic() - began
        # When a rank has been killed, Hydra kills the wrappers of the other ranks, which then send no record.
        has_failed = output.has_failed()
        silent = missing_record(None if has_failed else code, is_stopped=stop.is_set() or has_failed)
        return [output.exit(rank, silent, took) for rank in range(request.world)]

    def _rank_argv(self, request: RunRequest) -> list[str]:
        options = {**common_options(request), "names": [node.name for node in request.on], "frames": True}
        if request.bind in self.own_bindings:
            options["bind"] = None
        is_inside = request.rank_prefix is not None and request.rank_prefix.is_outermost
        return rank_argv(self.container_python if is_inside else self.python, options, request.argv)


class _LabelledOutput:
    """Separates the output of the ranks by label. Output without a label comes from the launcher itself.

    A label can occur inside a line, because Open MPI adds a label to every piece that it reads. Therefore, the pieces
    of each rank are joined, and split again at the rank wrapper's frames, which mark the ends of lines.
    """

    def __init__(self, label: re.Pattern[bytes], request: RunRequest) -> None:
        self._label = label
        self._request = request
        self._lock = Lock()
        ranks = [(rank, self.node(rank)) for rank in range(request.world)]
        self._sinks = {
            rank: dict(zip(("out", "err"), sinks(request.on_line, node, rank), strict=True)) for rank, node in ranks
        }
        self._lines = {
            (rank, stream): Lines(partial(self._line, rank, stream), Tail(limit=0)) for rank, _ in ranks for stream in ("out", "err")
        }  # fmt: skip
        self._records: dict[int, dict[str, Any]] = {}
        self.on_failure: Callable[[], None] = lambda: None
        self.own = Tail()

    def sink(self, stream: str) -> Lines:
        return Lines(partial(self._write, stream), Tail(limit=0))

    def node(self, rank: int) -> str:
        return self._request.on[rank // self._request.ranks_per_node].name

    def _write(self, stream: str, line: bytes) -> None:
        found = list(self._label.finditer(line))
        with self._lock:
            if not found or found[0].start():
                self.own.write(line[: found[0].start() if found else None] + b"\n")
            if not found:
                return
            ends = [*(each.start() for each in found[1:]), len(line)]
            for at, (each, end) in enumerate(zip(found, ends, strict=True), 1):
                lines = self._lines.get((int(each["rank"]), stream))
                if lines is not None:
                    lines.write(line[each.end() : end] + (b"\n" if at == len(found) else b""))

    def _line(self, rank: int, stream: str, line: bytes) -> None:
        if line.startswith(b"\x1f"):  # a frame: output of the rank
            self._sinks[rank][stream].write(line[2:] + (b"\n" if line[1:2] == b"." else b""))
        elif record := _RECORD.search(line):
            found = json.loads(record[1])
            self._records[found["rank"]] = found
            if stops_others(self._request, found.get("code")):
                self.on_failure()
        else:
            self.own.write(
                line + b"\n"
            )  # output of the launcher itself on the rank's node: the rank wrapper has not started

    def has_failed(self) -> bool:
        """Whether a rank has failed in a way that stops the others."""
        return any(stops_others(self._request, each.get("code")) for each in self._records.values())

    def exit(self, rank: int, silent: dict[str, Any] | None, seconds: float) -> Exit:
        """Return the Exit of a rank. `silent` is the record to use if the rank wrapper has not sent a record."""
        out, err = (captured(self._sinks[rank][stream]) for stream in ("out", "err"))
        record = self._records.get(rank, silent)
        # If a rank has no stderr, the launcher's own output is used for the error message, but not as the rank's
        # stderr.
        stderr_lines = err or bytes(self.own.kept)
        ended = exit_from_record(self.node(rank), rank, record, out, stderr_lines, seconds, self._request.timeout_s)
        return replace(ended, err=err)
