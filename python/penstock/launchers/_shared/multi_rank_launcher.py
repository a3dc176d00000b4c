# SPDX-License-Identifier: Apache-2.0
"""Launchers that start all ranks by one program (srun, mpirun), which numbers them and labels their lines.

The launcher's numbers stay, so that MPI programs meet. A call with bytes for stdin goes node by node instead, since mpirun
hands stdin to one rank only.
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
from penstock.launchers._shared.child import Lines, Tail, attend
from penstock.launchers._shared.subprocess_launcher import (
    BEYOND_S,
    StepLauncher,
    check,
    door_line,
    ended_here,
    exit_of,
    kept,
    sinks,
    spoken,
    worded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Call, Exit

__all__ = ["LabelledLauncher"]

_RECORD = re.compile(rb"\x1e(\{.*?\})\x1e")


class LabelledLauncher(StepLauncher):
    """A subclass gives `nodes`, `on_node` (one rank on one node), `step` (all of them) and how a label looks."""

    label: re.Pattern[bytes]

    def step(self, call: Call, words: Sequence[str]) -> list[str]:
        """The command line here that starts `words` on every rank of a call."""
        raise NotImplementedError

    def check(self, call: Call) -> None:
        """Refuses a call that cannot be."""
        check(call)

    def line(self, call: Call) -> list[list[str]]:
        self.check(call)
        return [spoken(self.step(call, self._door(call)))]

    def run(self, call: Call) -> list[Exit]:
        self.check(call)
        if call.part is not None:
            raise Unsupported("a part of a larger job: this launcher numbers ranks by itself", hint="launcher = local")
        if call.stdin is not None:
            return super().run(call)
        began = time.monotonic()
        heard = _Heard(self.label, call)
        out, err = heard.sink("out"), heard.sink("err")
        line = self.step(call, self._door(call))
        code: int | None = -1
        with self.stoppable() as stop:
            try:
                code = attend(
                    line, env={**self.environment, **call.env}, limit_s=call.deadline_s + BEYOND_S, stop=stop, out=out, err=err
                )  # fmt: skip
            except OSError as error:
                heard.own.take(f"{line[0]}: {error.strerror}".encode())
        out.end()
        err.end()
        took = time.monotonic() - began
        silent = ended_here(code, is_stopped=stop.is_set())
        return [heard.exit(rank, silent, took) for rank in range(call.world)]

    def _door(self, call: Call) -> list[str]:
        return door_line(
            self.python, {**worded(call), "names": [node.name for node in call.on], "frames": True}, call.argv
        )


class _Heard:
    """What the ranks said, sorted out by label; what has none is the launcher's own word.

    A label may stand in the middle of a line: Open MPI puts one before every piece that it reads. So pieces are put
    together again by rank, and then the door's frames, which say where lines ended.
    """

    def __init__(self, label: re.Pattern[bytes], call: Call) -> None:
        self._label = label
        self._call = call
        self._lock = Lock()
        ranks = [(rank, self.node(rank)) for rank in range(call.world)]
        self._sinks = {
            rank: dict(zip(("out", "err"), sinks(call.hear, node, rank), strict=True)) for rank, node in ranks
        }
        self._lines = {
            (rank, stream): Lines(partial(self._line, rank, stream), Tail(limit=0)) for rank, _ in ranks for stream in ("out", "err")
        }  # fmt: skip
        self._records: dict[int, dict[str, Any]] = {}
        self.own = Tail()

    def sink(self, stream: str) -> Lines:
        return Lines(partial(self._take, stream), Tail(limit=0))

    def node(self, rank: int) -> str:
        return self._call.on[rank // self._call.ranks_per_node].name

    def _take(self, stream: str, line: bytes) -> None:
        found = list(self._label.finditer(line))
        with self._lock:
            if not found or found[0].start():
                self.own.take(line[: found[0].start() if found else None] + b"\n")
            if not found:
                return
            ends = [*(each.start() for each in found[1:]), len(line)]
            for at, (each, end) in enumerate(zip(found, ends, strict=True), 1):
                lines = self._lines.get((int(each["rank"]), stream))
                if lines is not None:
                    lines.take(line[each.end() : end] + (b"\n" if at == len(found) else b""))

    def _line(self, rank: int, stream: str, line: bytes) -> None:
        if line.startswith(b"\x1f"):  # of the rank, whatever it says
            self._sinks[rank][stream].take(line[2:] + (b"\n" if line[1:2] == b"." else b""))
        elif record := _RECORD.search(line):
            told = json.loads(record[1])
            self._records[told["rank"]] = told
        else:
            self.own.take(line + b"\n")  # of the launcher's own on the rank's node: the door was not reached

    def exit(self, rank: int, silent: dict[str, Any] | None, seconds: float) -> Exit:
        """A rank's end; `silent` is the record of one whose door told nothing."""
        out, err = (kept(self._sinks[rank][stream]) for stream in ("out", "err"))
        record = self._records.get(rank, silent)
        # Where nothing came of a rank, the launcher's own words say why; they are no rank's stderr.
        said = err or bytes(self.own.kept)
        ended = exit_of(self.node(rank), rank, record, out, said, seconds, self._call.deadline_s)
        return replace(ended, err=err)
