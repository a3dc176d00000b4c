# SPDX-License-Identifier: Apache-2.0
"""Progress of a stage or a verification, as a bar, plain lines, JSON events or a log file."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from penstock._native import StageJob
    from penstock.stage.node_progress import SharedProgress

__all__ = ["STYLES", "Follow", "Log", "line", "options"]

STYLES = ("auto", "bar", "lines", "json", "none")
_LINES_S = 10.0
_EVENTS_S = 1.0
_INTERVAL_S = 0.1
# Time after which the first node stops showing a node that no longer reports.
_LINGER_S = 10.0


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--progress` and `--log` to a verb that follows a job."""
    command = click.option(
        "--log",
        "log",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Append events to FILE, one per line with time and node. Secrets are left out.",
    )(command)
    return click.option(
        "--progress",
        "style",
        type=click.Choice(STYLES),
        default="auto",
        show_default=True,
        help="Style of progress: auto is a bar on a terminal and a line every 10 s elsewhere; json is one event per second on stdout.",
    )(command)


# Parts of a URL that may be secret: user, password and signature.
_SECRET = re.compile(r"(://(?=[^/\s]*@)|\?(?=\S*=))[^\s@?]*")


class Log:
    """Append-only log of whole lines, so that several nodes can write to the same file. The file is opened when the
    stage starts, so that an error in opening it stops the stage immediately, not later.
    """

    def __init__(self, path: str | Path | None, node: int = 0, nodes: int = 1) -> None:
        self._file = None if path is None else open(path, "a", encoding="utf-8", errors="replace", buffering=1)  # noqa: PTH123, SIM115
        self._who = f"node {node}/{nodes}" if nodes > 1 else "node 0"

    def write(self, kind: str, text: str) -> None:
        if self._file is None:
            return
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = _SECRET.sub(r"\1...", " ".join(text.split()))
        try:
            self._file.write(f"{moment} {self._who} {kind}: {text}\n")
        except OSError:
            self._file = None  # a full disk must not stop the job that is logged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, _trace: object) -> None:
        from penstock.errors import PenstockError

        if isinstance(error, PenstockError):
            self.write("error", f"[{error.code}] {error}")
        elif kind is not None:
            self.write("error", getattr(kind, "__name__", "unknown"))
        if self._file is not None:
            self._file.close()


def _rates(now: dict[str, Any], seconds: float) -> tuple[float, float | None]:
    """Bytes per second so far, and estimated remaining seconds."""
    rate = now["bytes_in"] / seconds if seconds > 0 else 0.0
    got = min(max(now["done_bytes"], now["bytes_in"] + now["resumed_bytes"]), now["bytes"])
    return rate, (now["bytes"] - got) / rate if rate > 0 else None


def _nodes(now: dict[str, Any]) -> list[str]:
    """Progress text for a launch with several nodes."""
    if now["nodes"] < 2:
        return []
    silent = now["nodes"] - now["nodes_seen"]
    text = [f"{now['nodes']:,} nodes" + (f" ({silent:,} not reporting)" if silent else "")]
    if now["slowest_node"] is not None:
        text.append(f"slowest node {now['slowest_node']} at {100 * now['slowest_share']:.0f} %")
    return text


def line(now: dict[str, Any], seconds: float) -> str:
    """Format one plain line, for logs."""
    from penstock.units import format_bytes, format_rate, format_seconds

    rate, eta_s = _rates(now, seconds)
    parts = [
        f"{now['done']:,} of {now['objects']:,} objects",
        f"{format_bytes(now['done_bytes'])} of {format_bytes(now['bytes'])}",
        f"{format_bytes(now['bytes_in'])} in",
        f"{format_bytes(now['bytes_out'])} out",
        format_rate(rate),
    ]
    if eta_s is not None:
        parts.append(f"{format_seconds(eta_s)} left")
    parts += [
        f"{now[name]:,} {label}" for name, label in (("throttles", "throttled"), ("failed", "failed")) if now[name]
    ]
    return ", ".join(parts + _nodes(now))


def bar(now: dict[str, Any], seconds: float, width: int) -> str:
    """Format a progress bar of at most `width` columns. If the space is too small, the least important parts are
    omitted.
    """
    from penstock.units import format_bytes, format_rate, format_seconds

    rate, eta_s = _rates(now, seconds)
    got = min(max(now["done_bytes"], now["bytes_in"] + now["resumed_bytes"]), now["bytes"])
    share = got / now["bytes"] if now["bytes"] else 1.0
    trouble = [f"{now[n]:,} {label}" for n, label in (("failed", "failed"), ("throttles", "throttled")) if now[n]]
    nodes = _nodes(now)
    # Parts in decreasing order of importance.
    parts = [f"{100 * share:3.0f} %", f"{now['done']:,}/{now['objects']:,}", format_rate(rate)]
    parts += [f"{format_seconds(eta_s)} left"] if eta_s is not None else []
    parts += (
        trouble + nodes[1:] + [f"{format_bytes(now['bytes_in'])} in, {format_bytes(now['bytes_out'])} out"] + nodes[:1]
    )
    kept = ""
    for part in parts:
        if len(kept) + 2 + len(part) <= width:
            kept += ("  " if kept else "") + part
    room = min(width - len(kept) - 4, 40)
    if room < 8:
        return kept[:width]
    full = int(room * share)
    return f"[{'#' * full}{'.' * (room - full)}]  {kept}"


class Follow:
    """Follows one job to its end. With a `board`, the first node shows the sum of all nodes' counters."""

    def __init__(
        self, *, style: str, log: Log, board: SharedProgress | None = None, shows: bool = True, verb: str = "stage"
    ) -> None:
        if style == "auto":
            style = "bar" if sys.stderr.isatty() else "lines"
        self._style = style if shows else "none"
        self._log, self._board, self._verb = log, board, verb
        self._began = self._printed_s = self._logged = time.monotonic()
        self._live: Any = None

    def wait(self, job: StageJob) -> dict[str, Any]:
        from penstock import stage

        try:
            summary = stage.wait(job, on_progress=self._show, interval_s=_INTERVAL_S)
            self._linger(job)
        finally:
            if self._live is not None:
                self._live.stop()
            if self._board is not None:
                self._board.close()
        return summary

    def _linger(self, job: StageJob) -> None:
        """Show progress until the last node has ended. The launch ends at the same time."""
        if self._board is None:
            return
        self._board.post(job.progress())
        while self._style != "none" and self._board.running(_LINGER_S):
            self._show(job.progress())
            time.sleep(_INTERVAL_S)

    def _show(self, mine: dict[str, int]) -> None:
        from penstock.stage.node_progress import summed

        if not mine["objects"]:
            return
        now: dict[str, Any]
        if self._board is not None:
            self._board.post(mine)
            now = summed(self._board.seen(), self._board.nodes)
        else:
            now = summed({0: mine}, 1)
        moment = time.monotonic()
        seconds = moment - self._began
        if moment - self._logged >= _LINES_S:
            self._logged = moment
            self._log.write("progress", line(now, seconds))
        if self._style == "bar":
            self._draw(now, seconds)
        elif self._style == "lines" and moment - self._printed_s >= _LINES_S:
            self._printed_s = moment
            click.echo(line(now, seconds), err=True)
        elif self._style == "json" and moment - self._printed_s >= _EVENTS_S:
            self._printed_s = moment
            rate, eta_s = _rates(now, seconds)
            event = {"event": "progress", "schema_version": 1, "verb": self._verb, "seconds": round(seconds, 3)}
            click.echo(json.dumps(event | now | {"rate_bytes_per_s": rate, "eta_s": eta_s}))

    def _draw(self, now: dict[str, Any], seconds: float) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(bar(now, seconds, self._live.console.width)), refresh=True)
