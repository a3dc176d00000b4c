# SPDX-License-Identifier: Apache-2.0
"""A/B comparison of two commands: runs both until a difference is shown or excluded, or the run limit is reached.

Each block runs A B B A or B A A B, chosen by the seed. Steady drift (a warming machine, a filling cache, burst credits)
therefore cancels in each block's ratio. `sequential` decides when the evidence is sufficient.
"""

from __future__ import annotations

import math
import os
import random
import re
import select
import subprocess
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.machine_card import MachineCard
from penstock.bench.machine_card import read as read_machine_card
from penstock.bench.sequential import always_valid, bootstrap, evidence
from penstock.child_process import child_process
from penstock.errors import ConfigError, Deadline, Denied, NotFound, SystemFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Comparison", "Metric", "Side", "compare", "runner"]

RUNS_A_BLOCK = 4
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# Maximum number of output bytes to keep. A benchmark prints a few pages; more output is probably data, and is
# discarded.
_LIMIT_OUTPUT_BYTES = 64_000_000


class Metric(msgspec.Struct, frozen=True):
    """The compared quantity: `wall` or `cpu` seconds of a run, or a number that the command prints (`printed`).

    Attributes:
        pattern: Regular expression for the number. The value is its first group, or the whole match if it has no group.
            The last match in the output is used.
    """

    name: str = "wall"
    pattern: str | None = None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two commands, and the metric of each of its runs, in order."""

    argv: tuple[str, ...]
    median: float
    values: tuple[float, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison. Ratios are B over A.

    Attributes:
        verdict: `different`, `same` (within the margin) or `none shown`.
        interval: Confidence interval of the ratio, which is valid after any number of blocks. The verdict uses this
            interval.
        bootstrap: Narrower interval, for comparison with tools that fix the number of runs in advance. This interval
            must not be used to decide when to stop.
        evidence: Bayes factor: the likelihood of the blocks with a difference, divided by their likelihood without a
            difference.
        stopped: Reason why no further block was run.
    """

    schema_version: int = 1
    verdict: str
    metric: str
    ratio: float
    interval: tuple[float | None, float | None]
    bootstrap: tuple[float, float]
    evidence: float
    alpha: float
    margin: float
    blocks: int
    runs: int
    seed: int
    stopped: str
    a: Side
    b: Side
    machine: MachineCard


def _printed(text: str, pattern: str | None, name: str) -> float:
    found: list[Any] = re.findall(pattern or _NUMBER, text)
    if not found:
        raise ConfigError(
            f"{name} printed no number" + (f" that matches {pattern!r}" if pattern else ""),
            hint="pass --pattern with a regular expression whose first group is the number",
        )
    last = found[-1][0] if isinstance(found[-1], tuple) else found[-1]
    try:
        value = float(last.replace("_", "").replace(",", ""))
    except ValueError:
        raise ConfigError(f"{name}: --pattern matched {last!r}, which is not a number") from None
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} printed {last}, but a ratio requires a finite number above 0")
    return value


def runner(metric: Metric, *, limit_s: float | None = None) -> Callable[[Sequence[str], str], float]:
    """Return a function that runs a command once and returns its metric.

    The function raises NotFound or Denied if the command cannot be started, and SystemFault if the command fails. It
    raises Deadline after `limit_s`, and ConfigError if the output contains no number.
    """

    def run(argv: Sequence[str], name: str) -> float:
        # Write the output to files, not to pipes. Draining a pipe would take processor time from the running command.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = time.perf_counter()
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            try:
                # The command gets its own session, so that all its child processes can be stopped with it.
                with child_process(argv, grace_s=0.0, start_new_session=True, **streams) as child:
                    status, used = _wait(child, start, limit_s, name)
                    wall_s = time.perf_counter() - start
                    code = child.returncode = os.waitstatus_to_exitcode(status)
            except FileNotFoundError:
                raise NotFound(f"{name}: command `{argv[0]}` not found", where=argv[0]) from None
            except PermissionError:
                raise Denied(f"{name}: `{argv[0]}` cannot be run: permission denied", where=argv[0]) from None
            if code != 0:
                err.seek(0)
                last = err.read(_LIMIT_OUTPUT_BYTES).decode(errors="replace").strip().rpartition("\n")[2][:200]
                raise SystemFault(
                    f"{name} failed with exit code {code} after {wall_s:.2f} s" + (f": {last}" if last else ""),
                    hint="fix the command; only successful runs can be compared",
                )
            if metric.name == "printed":
                out.seek(0)
                return _printed(out.read(_LIMIT_OUTPUT_BYTES).decode(errors="replace"), metric.pattern, name)
            return max(wall_s if metric.name == "wall" else used.ru_utime + used.ru_stime, 1e-9)

    return run


def _wait(child: subprocess.Popen[bytes], start: float, limit_s: float | None, name: str) -> tuple[int, Any]:
    if limit_s is None:
        _, status, used = os.wait4(child.pid, 0)
        return status, used
    watch = os.pidfd_open(child.pid)
    try:
        if not select.select([watch], [], [], max(0.0, limit_s - (time.perf_counter() - start)))[0]:
            raise Deadline(f"{name} did not end within {limit_s:g} s", limit_s=limit_s)
    finally:
        os.close(watch)
    return _wait(child, start, None, name)


def compare(
    a: Sequence[str],
    b: Sequence[str],
    run: Callable[[Sequence[str], str], float],
    *,
    metric: str = "wall",
    alpha: float = 0.05,
    margin: float = 0.03,
    max_runs: int = 200,
    warm_up: int = 1,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda _runs, _ratio: None,
) -> Comparison:
    """Run blocks until a difference is shown, a difference above the margin is excluded, or `max_runs` is reached.

    Args:
        run: Runs a command once and returns its metric; the second argument is `A` or `B`.
        alpha: Maximum probability of a false alarm, however often the evidence is evaluated.
        margin: Relative difference below which the commands count as the same.
        warm_up: Runs of each command before the first block; not recorded.
        progress: Called after each block with the runs so far and the ratio.

    Raises:
        ConfigError: `max_runs` is too small for any conclusion, or `alpha` or `margin` is out of range.
    """
    if not 0 < alpha < 1 or not 0 <= margin < 1:
        raise ConfigError(
            f"alpha must be above 0 and below 1 (got {alpha:g}), and margin at least 0 and below 1 (got {margin:g})"
        )
    if max_runs < 2 * RUNS_A_BLOCK:
        raise ConfigError(
            f"max-runs: must be at least {2 * RUNS_A_BLOCK}, the number of runs in two blocks (got {max_runs})"
        )
    draw = random.Random(seed)
    for _ in range(warm_up):
        run(a, "A")
        run(b, "B")
    values: dict[str, list[float]] = {"A": [], "B": []}
    blocks: list[float] = []
    stopped = f"the limit of {max_runs} runs is reached"
    verdict = "none shown"
    while RUNS_A_BLOCK * (len(blocks) + 1) <= max_runs:
        block = {"A": 0.0, "B": 0.0}
        for name in draw.choice(("ABBA", "BAAB")):
            value = run(a if name == "A" else b, name)
            values[name].append(value)
            block[name] += math.log(value)
        blocks.append((block["B"] - block["A"]) / 2)
        progress(RUNS_A_BLOCK * len(blocks), math.exp(math.fsum(blocks) / len(blocks)))
        if evidence(blocks) >= 1 / alpha:
            verdict, stopped = "different", f"a difference is shown at {alpha:.1%}"
            break
        if all(evidence(blocks, math.log1p(edge)) >= 1 / alpha for edge in (-margin, margin)) and (
            math.log1p(-margin) < math.fsum(blocks) / len(blocks) < math.log1p(margin)
        ):
            verdict, stopped = "same", f"any difference is at most {margin:.1%}"
            break
    interval = always_valid(blocks, alpha)
    narrow = bootstrap(blocks, alpha, seed=seed)
    return Comparison(
        verdict=verdict,
        metric=metric,
        ratio=math.exp(math.fsum(blocks) / len(blocks)),
        interval=(_ratio(interval.low), _ratio(interval.high)),
        bootstrap=(math.exp(narrow.low), math.exp(narrow.high)),
        evidence=evidence(blocks),
        alpha=alpha,
        margin=margin,
        blocks=len(blocks),
        runs=RUNS_A_BLOCK * len(blocks),
        seed=seed,
        stopped=stopped,
        a=Side(argv=tuple(a), median=median(values["A"]), values=tuple(values["A"])),
        b=Side(argv=tuple(b), median=median(values["B"]), values=tuple(values["B"])),
        machine=read_machine_card(),
    )


def _ratio(logarithm: float) -> float | None:
    """Convert a difference of logarithms to a ratio; None if it is not finite."""
    return math.exp(logarithm) if math.isfinite(logarithm) else None
