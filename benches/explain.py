# SPDX-License-Identifier: Apache-2.0
"""Counts how often `penstock explain` names the planted limit of a program, and measures what observing costs.

    .venv/bin/python benches/explain.py [--runs 20] [--seconds 9] [--cases a,b] [--neighbour no|yes|both] [--json]
    .venv/bin/python benches/explain.py --effect [--seconds 6]
    .venv/bin/python benches/explain.py --overhead slow_model,no_workers [--max-runs 60]

The programs and their limits are those of `tests/explain/planted.py`. The seed of a run draws its parameters, so that no
two runs are the same; `--seed` is the first one. With a neighbour, another process keeps one core busy. The order of
the cases is drawn anew in each round. `small_disk` needs root. The exit status is 1 if any case is named in fewer
than 95 % of its runs.

`--effect` runs each program with and without its limit. If the rate without the limit is less than 1.5 times as high,
the limit was not the program's bottleneck, and the exit status is 1.

`--overhead` compares the rate of a program alone with its rate under `explain`, in ABBA blocks, until a difference is
shown or a difference above 2 % is excluded.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from penstock.bench.ab import compare
from penstock.bench.machine_card import read as read_machine_card
from penstock.child_process import child_process
from penstock.explain.result import Explanation, decode
from tests.explain.planted import CASES, LIMITS, Case, Planted, planted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

NAMED_RIGHT = 0.95
EFFECT = 1.5
MARGIN = 0.02
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
_RATE = re.compile(r"([\d.]+) steps/s")


class Run(msgspec.Struct, frozen=True):
    """One run under `explain`: what was planted, and what was named."""

    case: str
    seed: int
    neighbour: bool
    parameters: dict[str, Any]
    right: bool
    kind: str
    second: str | None
    confidence: str
    sentence: str
    overhead_share: float
    load: float
    shares: dict[str, float]


def explain_argv(program: Planted, file: Path, seconds: float, *, stop: bool) -> list[str]:
    """Command line that observes a program for `seconds`."""
    ending = ["--stop"] if stop else []
    return [PENSTOCK, "explain", "--seconds", f"{seconds:g}", *ending, "--output", str(file), "--", *program.argv]


def explained(program: Planted, folder: Path, seconds: float) -> Explanation:
    """Run a program under `explain` and return the result."""
    file = folder / "explanation.json"
    file.unlink(missing_ok=True)
    argv = explain_argv(program, file, seconds, stop=True)
    done = subprocess.run(argv, env=program.env, capture_output=True, text=True, timeout=seconds + 90, check=False)
    if not file.exists():
        raise RuntimeError(f"explain wrote no result (exit code {done.returncode}): {done.stderr[-800:]}")
    return decode(file.read_bytes())


def rate(program: Planted, argv: Sequence[str], seconds: float) -> float:
    """Steps per second that a program prints."""
    done = subprocess.run(argv, env=program.env, capture_output=True, text=True, timeout=seconds + 120, check=False)
    found = _RATE.findall(done.stdout + done.stderr)
    if done.returncode != 0 or not found:
        raise RuntimeError(f"{program.case.name} failed (exit code {done.returncode}): {done.stderr[-800:]}")
    return float(found[-1])


def neighbour(*, busy: bool) -> AbstractContextManager[Any]:
    """Context manager: a process that keeps one core busy, if requested."""
    return child_process([sys.executable, "-c", "while True: pass"], grace_s=0.0) if busy else nullcontext()


def observe(case: Case, seed: int, seconds: float, folder: Path, *, busy: bool) -> Run:
    """One run of a case under `explain`."""
    with planted(case, folder, seed=seed, seconds=seconds + 30) as program, neighbour(busy=busy):
        result = explained(program, folder, seconds)
    verdict = result.verdict
    return Run(
        case=case.name,
        seed=seed,
        neighbour=busy,
        parameters=program.parameters,
        right=verdict.kind in case.kinds,
        kind=verdict.kind,
        second=verdict.second,
        confidence=verdict.confidence,
        sentence=verdict.sentence,
        overhead_share=result.overhead.share,
        load=os.getloadavg()[0],
        shares={one.name: round(one.critical, 3) for one in result.shares if one.critical > 0.005},
    )


def verdicts(
    cases: Sequence[Case], runs: int, seed: int, seconds: float, busy: Sequence[bool], folder: Path
) -> list[Run]:
    """All runs, in rounds of all cases. Each finished run is reported on stderr."""
    made: list[Run] = []
    with suppress(KeyboardInterrupt):  # the table then covers the runs that have ended
        for number in range(seed, seed + runs):
            plan = [(case, is_busy) for case in cases for is_busy in busy]
            random.Random(number).shuffle(plan)
            for case, is_busy in plan:
                made.append(_noted(case, number, seconds, folder, is_busy=is_busy))
    return made


def _noted(case: Case, seed: int, seconds: float, folder: Path, *, is_busy: bool) -> Run:
    """One run, reported on stderr. A run without a verdict counts as wrong."""
    try:
        run = observe(case, seed, seconds, folder, busy=is_busy)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        run = Run(case.name, seed, is_busy, {}, False, "failed", None, "low", str(error), 0.0, os.getloadavg()[0], {})
    mark = "right" if run.right else "WRONG"
    where = " with a neighbour" if is_busy else ""
    detail = run.sentence if run.kind == "failed" else run.shares
    print(f"{mark} {run.case}{where}, seed {seed}: {run.kind} {detail}", file=sys.stderr, flush=True)
    return run


def tally(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Number of correct verdicts, by case and neighbour."""
    groups = collections.defaultdict(list)
    for run in runs:
        groups[run.case, run.neighbour].append(run)
    rows = []
    for (case, busy), group in sorted(groups.items(), key=lambda item: (list(CASES).index(item[0][0]), item[0][1])):
        wrong = collections.Counter(run.kind for run in group if not run.right)
        right = sum(run.right for run in group)
        overhead = sorted(run.overhead_share for run in group)[len(group) // 2]
        rows.append(
            {"case": case, "neighbour": busy, "right": right, "runs": len(group), "share": right / len(group),
             "wrong": dict(wrong), "overhead_share_median": overhead}
        )  # fmt: skip
    return rows


def effects(cases: Sequence[Case], seed: int, seconds: float, folder: Path) -> list[dict[str, Any]]:
    """Rates with and without each limit."""
    rows = []
    for case in cases:
        found = {}
        for is_limited in (True, False):
            with planted(case, folder, seed=seed, seconds=seconds, limited=is_limited) as program:
                found[is_limited] = rate(program, program.argv, seconds)
        ratio = found[False] / max(found[True], 1e-9)
        rows.append({"case": case.name, "limited": found[True], "free": found[False], "ratio": ratio})
        print(
            f"{case.name}: {found[True]:.3g} steps/s, {found[False]:.3g} without its limit", file=sys.stderr, flush=True
        )
    return rows


def overheads(cases: Sequence[Case], seed: int, seconds: float, max_runs: int, folder: Path) -> list[dict[str, Any]]:
    """Seconds per step under `explain` over those alone, by interleaved runs."""
    rows = []
    for case in cases:
        with planted(case, folder, seed=seed, seconds=seconds) as program:
            file = folder / "explanation.json"
            under = explain_argv(program, file, 600, stop=False)
            found = compare(
                program.argv,
                under,
                lambda argv, _name, program=program: 1 / rate(program, argv, seconds),
                metric="seconds per step",
                margin=MARGIN,
                max_runs=max_runs,
                seed=seed,
                progress=lambda runs, ratio: print(f"  {runs} runs: {ratio:.4f}", file=sys.stderr, flush=True),
            )
            own = decode(file.read_bytes()).overhead
        rows.append(
            {"case": case.name, "verdict": found.verdict, "ratio": found.ratio, "interval": found.interval,
             "bootstrap": found.bootstrap, "runs": found.runs, "own_share": own.share, "own_cpu_s": own.cpu_s,
             "own_pause_s": own.pause_s, "wall_s": own.wall_s}
        )  # fmt: skip
    return rows


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a Markdown table."""
    if not rows:
        return
    print(f"\n{title}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


def main() -> int:
    """Runs what was asked for, and prints tables or one JSON document."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--runs", type=int, default=20)
    parse.add_argument("--seconds", type=float, default=9.0)
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--cases", default=",".join(CASES))
    parse.add_argument("--neighbour", choices=["no", "yes", "both"], default="both")
    parse.add_argument("--effect", action="store_true")
    parse.add_argument("--overhead", default="", metavar="CASES")
    parse.add_argument("--max-runs", type=int, default=60)
    parse.add_argument("--json", action="store_true")
    args = parse.parse_args()
    cases = [CASES[name] for name in args.cases.split(",")]
    busy = {"no": [False], "yes": [True], "both": [False, True]}[args.neighbour]
    began = time.monotonic()
    found: dict[str, Any] = {"schema_version": 1, "machine": msgspec.to_builtins(read_machine_card())}
    found |= {"seed": args.seed, "seconds": args.seconds}
    with tempfile.TemporaryDirectory(prefix="penstock-explain-") as name:
        folder = Path(name)
        if args.effect:
            held = [case for case in cases if case in LIMITS]
            found["effect"] = effects(held, args.seed, args.seconds, folder)
            is_short = any(row["ratio"] < EFFECT for row in found["effect"])
        elif args.overhead:
            watched = [CASES[name] for name in args.overhead.split(",")]
            found["overhead"] = overheads(watched, args.seed, args.seconds, args.max_runs, folder)
            is_short = any(row["ratio"] > 1 + MARGIN for row in found["overhead"])
        else:
            runs = verdicts(cases, args.runs, args.seed, args.seconds, busy, folder)
            found["named"], found["runs"] = tally(runs), msgspec.to_builtins(runs)
            is_short = any(row["share"] < NAMED_RIGHT for row in found["named"])
    found["took_s"] = time.monotonic() - began
    if args.json:
        print(json.dumps(found))
    else:
        show("Named right", found.get("named", []))
        show("Rate with and without the limit", found.get("effect", []))
        show("Seconds per step under explain / alone", found.get("overhead", []))
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main())
