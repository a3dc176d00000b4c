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
from penstock.launchers.steps import BEYOND_S, StepLauncher, check, door_line, ended_here, exit_of, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.protocols import Exit, Hear, Node

__all__ = ["LabelledLauncher"]

_RECORD = re.compile(rb"\x1e(\{.*?\})\x1e")


class LabelledLauncher(StepLauncher):
    """A subclass gives `nodes`, `on_node` (one rank on one node), `step` (all of them) and how a label looks."""

    label: re.Pattern[bytes]

    def step(self, argv: Sequence[str], on: Sequence[Node], ranks_per_node: int, env: Mapping[str, str]) -> list[str]:
        """The command line here that starts every rank."""
        raise NotImplementedError

    def line(self, argv: Sequence[str], on: Sequence[Node], ranks_per_node: int = 1) -> list[list[str]]:
        check(argv, on, ranks_per_node)
        return [spoken(self.step(self._door(argv, on, ranks_per_node, 0, None, fills=False), on, ranks_per_node, {}))]

    def run(
        self,
        argv: Sequence[str],
        on: Sequence[Node],
        ranks_per_node: int = 1,
        *,
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        hear: Hear | None = None,
        fills: bool = False,
    ) -> list[Exit]:
        if stdin is not None:
            return super().run(
                argv, on, ranks_per_node, deadline_s=deadline_s, env=env, cwd=cwd, stdin=stdin, hear=hear, fills=fills
            )
        check(argv, on, ranks_per_node)
        words = self._door(argv, on, ranks_per_node, deadline_s, cwd, fills=fills)
        began = time.monotonic()
        heard = _Heard(self.label, on, ranks_per_node, hear)
        out, err = heard.sink("out"), heard.sink("err")
        code: int | None = -1
        with self.stoppable() as stop:
            try:
                code = attend(
                    self.step(words, on, ranks_per_node, env or {}), env={**self.environment, **(env or {})},
                    limit_s=deadline_s + BEYOND_S, stop=stop, out=out, err=err,
                )  # fmt: skip
            except OSError as error:
                heard.own.take(f"{self.step([], on, 1, {})[0]}: {error.strerror}".encode())
        out.end()
        err.end()
        took = time.monotonic() - began
        silent = ended_here(code, is_stopped=stop.is_set())
        return [heard.exit(rank, silent, took, deadline_s) for rank in range(len(on) * ranks_per_node)]

    def _door(
        self,
        argv: Sequence[str],
        on: Sequence[Node],
        ranks_per_node: int,
        limit_s: float,
        cwd: str | None,
        *,
        fills: bool,
    ) -> list[str]:
        options = {
            "limit_s": limit_s, "cwd": cwd, "fills": fills, "ranks_per_node": ranks_per_node, "names": [node.name for node in on],
        }  # fmt: skip
        return door_line(self.python, options, argv)


class _Heard:
    """What the ranks said, sorted out by label; what has none is the launcher's own word."""

    def __init__(self, label: re.Pattern[bytes], on: Sequence[Node], ranks_per_node: int, hear: Hear | None) -> None:
        self._label = label
        self._on = on
        self._a_node = ranks_per_node
        self._hear = hear
        self._lock = Lock()
        self._tails = {(rank, stream): Tail() for rank in range(len(on) * ranks_per_node) for stream in ("out", "err")}
        self._records: dict[int, dict[str, Any]] = {}
        self.own = Tail()

    def sink(self, stream: str) -> Any:
        return Lines(lambda line: self._take(stream, line), Tail(limit=0))

    def node(self, rank: int) -> str:
        return self._on[rank // self._a_node].name

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
        if self._hear is not None:
            self._hear(self.node(rank), rank, stream, rest)

    def exit(self, rank: int, silent: dict[str, Any] | None, seconds: float, limit_s: float) -> Exit:
        """A rank's end; `silent` is the record of one whose door told nothing."""
        out, err = (bytes(self._tails[rank, stream].kept) for stream in ("out", "err"))
        record = self._records.get(rank, silent)
        # Where nothing came of a rank, the launcher's own words say why; they are no rank's stderr.
        ended = exit_of(self.node(rank), rank, record, out, err or bytes(self.own.kept), seconds, limit_s)
        return replace(ended, err=err)
