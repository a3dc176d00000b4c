# SPDX-License-Identifier: Apache-2.0
"""Live view of a job on a terminal: its steps and, for each node, the last output line with its rank."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from penstock.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from penstock.job.run_steps import StepRow

__all__ = ["LiveView"]

# Maximum number of displayed nodes. With more nodes, the nodes with the latest output are displayed.
_SHOWN = 24
_TIMES_A_SECOND = 4
_STYLES = {"done": "green", "failed": "red", "skipped": "dim", "running": "bold"}


class LiveView:
    """Context manager of a live view on stderr. Its methods may be called from any thread."""

    def __init__(self, job: str, console: Console | None = None) -> None:
        self._job = job
        self._done: list[tuple[str, float, bool]] = []
        self._of = job
        self._steps: dict[str, tuple[StepRow, float]] = {}
        self._nodes: dict[str, tuple[float, int, int, str]] = {}
        self._lock = Lock()
        self._live = Live(
            console=console or Console(stderr=True), refresh_per_second=_TIMES_A_SECOND, get_renderable=self.render
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def expect(self, nodes: Sequence[str]) -> None:
        """Add nodes, each of which gets a line even before its first output."""
        with self._lock:
            self._nodes.update(dict.fromkeys(nodes, (0.0, 0, 0, "")))

    def on_step(self, row: StepRow, *, of: str | None = None) -> None:
        """Update a step that has started or ended. `of` is the name of the job. When the job changes, one line remains
        for the previous job.
        """
        with self._lock:
            if of is not None and of != self._of:
                self._end_one()
                self._of = of
            began = self._steps.get(row.name, (row, time.monotonic()))[1]
            self._steps[row.name] = (row, began)

    def _end_one(self) -> None:
        rows = [row for row, _ in self._steps.values()]
        if rows:
            self._done.append((self._of, sum(row.seconds for row in rows), all(row.state != "failed" for row in rows)))
        self._steps.clear()

    def on_line(self, node: str, rank: int, stream: str, line: bytes) -> None:  # noqa: ARG002
        """Record a line that a rank has printed."""
        with self._lock:
            lines = self._nodes.get(node, (0.0, 0, 0, ""))[2]
            self._nodes[node] = (time.monotonic(), rank, lines + 1, line.decode(errors="replace"))

    def render(self) -> Group:
        """Render the current state: one line per step and one per node."""
        lines = [(self._job, "bold")]
        with self._lock:
            for name, took, is_well in self._done:
                state = "done" if is_well else "failed"
                lines.append((f"{format_seconds(took):>10}  {name}: {state}", _STYLES[state]))
            if self._of != self._job:
                lines.append((f"{'':>10}  {self._of}", "bold"))
            for row, began in self._steps.values():
                took = time.monotonic() - began if row.state == "running" else row.seconds
                lines.append((f"{format_seconds(took):>10}  {row.name}: {row.state}  {row.detail}", _STYLES[row.state]))
            latest = set(sorted(self._nodes, key=lambda name: -self._nodes[name][0])[:_SHOWN])
            width = max((len(name) for name in latest), default=0)
            for name, (_, rank, count, output) in self._nodes.items():
                if name in latest:
                    spoke = f"rank {rank}, {count:,} lines" if count else "silent"
                    lines.append((f"{name:<{width}}  {spoke:<24}  {output}", ""))
            if len(self._nodes) > _SHOWN:
                lines.append((f"and {len(self._nodes) - _SHOWN} more nodes", "dim"))
        # Remove control characters, so that the output of ranks cannot control the terminal.
        safe = [("".join(letter for letter in line if letter.isprintable()), style) for line, style in lines]
        return Group(*(Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in safe))
