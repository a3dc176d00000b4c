# SPDX-License-Identifier: Apache-2.0
"""`penstock bench ab`: compare two commands, and report the better one, or that no difference was found."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from penstock.bench.ab import Comparison

__all__ = ["command"]

_BETWEEN = "--vs"


@click.command("ab", context_settings={"ignore_unknown_options": False})
@click.argument("commands", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- A... --vs B...")
@click.option(
    "--metric",
    type=click.Choice(["wall", "cpu", "printed"]),
    default="wall",
    show_default=True,
    help="Metric to compare: wall-clock seconds, CPU seconds, or the last number that a run prints.",
)
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Regular expression that matches the printed number. If it has a group, the first group is the number.",
)
@click.option(
    "--max-runs",
    type=click.IntRange(min=8),
    default=200,
    show_default=True,
    help="Maximum number of runs, both commands together.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Probability that a reported difference is false, over all interim evaluations.",
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.03,
    show_default=True,
    help="Stop once every difference above this share is excluded.",
)
@click.option(
    "--warm-up", type=click.IntRange(min=0), default=1, show_default=True, help="Number of warm-up runs per command."
)
@click.option("--timeout", "limit_s", type=SECONDS, help="Time limit of one run; a longer run ends the comparison.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order within the blocks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(
    commands: tuple[str, ...],
    metric: str,
    pattern: str | None,
    max_runs: int,
    alpha: float,
    margin: float,
    warm_up: int,
    limit_s: float | None,
    seed: int,
    as_json: bool,
) -> int:
    """Run two commands in blocks of A B B A until it is clear whether they differ.

    Exit code 0: the commands differ. 1: no difference found, or any remaining difference is below --margin.
    """
    import msgspec

    from penstock.bench.ab import Metric, compare, runner

    a, b = _sides(commands)
    if pattern is not None and metric != "printed":
        raise click.UsageError("--pattern requires --metric printed")
    terminal = sys.stderr.isatty()

    def progress(runs: int, ratio: float) -> None:
        if terminal:
            click.echo(f"\r{runs} runs, B/A {ratio:.3f} ", nl=False, err=True)

    try:
        comparison = compare(
            a,
            b,
            runner(Metric(metric, _compiled(pattern)), limit_s=limit_s),
            metric=metric,
            alpha=alpha,
            margin=margin,
            max_runs=max_runs,
            warm_up=warm_up,
            seed=seed,
            progress=progress,
        )
    finally:
        if terminal:
            click.echo(err=True)
    click.echo(msgspec.json.encode(comparison) if as_json else _sentence(comparison))
    return 0 if comparison.verdict == "different" else 1


def _sides(commands: tuple[str, ...]) -> tuple[list[str], list[str]]:
    if commands.count(_BETWEEN) != 1:
        raise click.UsageError(f"give two commands, separated by one {_BETWEEN}: -- A... {_BETWEEN} B...")
    at = commands.index(_BETWEEN)
    # If one of the two commands is a single word with blanks, it is a quoted command: split it as a shell would.
    sides = [shlex.split(s[0]) if len(s) == 1 else list(s) for s in (commands[:at], commands[at + 1 :])]
    if not all(sides):
        raise click.UsageError(f"a command is missing: -- A... {_BETWEEN} B...")
    return sides[0], sides[1]


def _compiled(pattern: str | None) -> str | None:
    import re

    try:
        return re.compile(pattern).pattern if pattern is not None else None
    except re.error as error:
        raise click.UsageError(f"--pattern {pattern!r} is not a regular expression: {error}") from None


def _sentence(comparison: Comparison) -> str:
    low, high = comparison.interval
    between = "any ratio" if low is None or high is None else f"{low:.3f} to {high:.3f}"
    unit = {"wall": "wall time", "cpu": "processor time", "printed": "number"}[comparison.metric]
    head = {
        "different": f"B's {unit} is {comparison.ratio:.3f} of A's",
        "same": f"no difference shown: B's {unit} is {comparison.ratio:.3f} of A's, and any difference is at most {comparison.margin:.1%}",
        "none shown": f"no difference shown: B's {unit} is {comparison.ratio:.3f} of A's so far",
    }[comparison.verdict]
    return (
        f"{head} ({between} with {1 - comparison.alpha:.0%} at any look; bootstrap {comparison.bootstrap[0]:.3f} to {comparison.bootstrap[1]:.3f})\n"
        f"medians {comparison.a.median:.6g} and {comparison.b.median:.6g}; {comparison.runs} runs in {comparison.blocks} blocks; {comparison.stopped}"
    )
