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
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.launchers.process import Lines, Tail, attend
from penstock.launchers.steps import BEYOND_S, StepLauncher, check, door_line, ended_here, exit_of, spoken, worded

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
        return door_line(self.python, {**worded(call), "names": [node.name for node in call.on]}, call.argv)


class _Heard:
    """What the ranks said, sorted out by label; what has none is the launcher's own word."""

    def __init__(self, label: re.Pattern[bytes], call: Call) -> None:
        self._label = label
        self._call = call
        self._lock = Lock()
        self._tails = {(rank, stream): Tail() for rank in range(call.world) for stream in ("out", "err")}
        self._records: dict[int, dict[str, Any]] = {}
        self.own = Tail()

    def sink(self, stream: str) -> Any:
        return Lines(lambda line: self._take(stream, line), Tail(limit=0))

    def node(self, rank: int) -> str:
        return self._call.on[rank // self._call.ranks_per_node].name

    def _take(self, stream: str, line: bytes) -> None:
        found = self._label.match(line)
        rank = int(found["rank"]) if found else -1
        with self._lock:
            if found is None or (rank, stream) not in self._tails:
                self.own.take(line + b"\n")
                return
            rest = line[found.end() :]
            if record := _RECORD.search(rest):
                told = json.loads(record[1])
                self._records[told["rank"]] = told
                rest = _RECORD.sub(b"", rest)
                if not rest:
                    return
            self._tails[rank, stream].take(rest + b"\n")
        if self._call.hear is not None:
            self._call.hear(self.node(rank), rank, stream, rest)

    def exit(self, rank: int, silent: dict[str, Any] | None, seconds: float) -> Exit:
        """A rank's end; `silent` is the record of one whose door told nothing."""
        out, err = (bytes(self._tails[rank, stream].kept) for stream in ("out", "err"))
        record = self._records.get(rank, silent)
        # Where nothing came of a rank, the launcher's own words say why; they are no rank's stderr.
        ended = exit_of(self.node(rank), rank, record, out, err or bytes(self.own.kept), seconds, self._call.deadline_s)
        return replace(ended, err=err)
