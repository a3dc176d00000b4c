# SPDX-License-Identifier: Apache-2.0
"""`penstock run`: a job file from its first node to its last."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cluster.compare import Compared
    from penstock.cluster.execute import Execution, StepRow
    from penstock.cluster.job import Job

__all__ = ["command"]


@click.command("run")
@click.argument("file", metavar="JOB.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="Holds the job's state and its nodes' logs, under the job's name.",
)
@click.option("--resume", is_flag=True, help="Go on where an earlier start was stopped or killed.")
@click.option("--dry-run", is_flag=True, help="Print every command line that would be started, and start none.")
@click.option("--quiet", is_flag=True, help="Leave the nodes' lines to the logs.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line: the steps and what each took.")
def command(file: Path, runs: Path, resume: bool, dry_run: bool, quiet: bool, as_json: bool) -> int:
    """Run a job on a cluster: provision its nodes, bring a pool up, stage, run the ranks, archive, take the pool down.

    With `paths` in the file the same job is run over each of them, and they are compared. Each step is timed. Ctrl-C, and any failure, takes the pool down. --resume does again only what is not done.
    """
    from penstock.cluster import compare
    from penstock.cluster.execute import Execution
    from penstock.cluster.job import load
    from penstock.stage.job import variables

    job = load(file)
    # Homes and state folders are each node's own; credentials go along.
    given = {
        name: value for name, value in variables().items() if name not in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    }

    def execution_of(one: Job) -> Execution:
        say, hear = _quietly if as_json else _say, None if quiet or as_json else _hear
        return Execution(one, runs / one.name, given, say=say, hear=hear)

    if dry_run:
        for one in [compare.over(job, path) for path in job.paths] or [job]:
            _show(execution_of(one), f"{one.name}: " if job.paths else "")
        return 0
    if job.paths:
        found, is_whole = compare.run(job, execution_of, resume=resume)
        if as_json:
            told = {"schema_version": 1, "name": job.name, "paths": compare.plain(found)}
            click.echo(json.dumps(told))
        else:
            _table(found)
        return 0 if is_whole else 1
    execution = execution_of(job)
    steps = execution.run(resume=resume)
    if as_json:
        rows = [{"name": row.name, "state": row.state, "seconds": row.seconds, "detail": row.detail} for row in steps]
        click.echo(
            json.dumps(
                {"schema_version": 1, "name": job.name, "steps": rows, "lost": sorted({e.node for e in execution.lost})}
            )
        )
    return 1 if execution.lost else 0


def _show(execution: Execution, whose: str) -> None:
    from penstock.cli.cluster.options import spelt

    try:
        for step, lines in execution.plan():
            click.echo(f"# {whose}{step}")
            for line in lines:
                click.echo(spelt(line))
    finally:
        execution.close()


def _table(rows: Sequence[Compared]) -> None:
    from penstock.units import format_seconds

    width = max(len(row.path) for row in rows)
    for row in rows:
        times = f"{format_seconds(row.before_s)} before · {format_seconds(row.ranks_s)} ranks · {format_seconds(row.total_s)}"
        how = f"{row.over_fastest:.2f} x the fastest" if row.over_fastest is not None else f"failed: {row.fault}"
        click.echo(f"{row.path:<{width}}  {times} · {how}")


def _quietly(_row: StepRow) -> None:
    return


def _say(row: StepRow) -> None:
    from penstock.units import format_seconds

    if row.state == "running":
        click.echo(f"{row.name} ...", err=True)
        return
    click.echo(f"{row.name}: {row.state} in {format_seconds(row.seconds)}{f': {row.detail}' if row.detail else ''}")


def _hear(node: str, rank: int, stream: str, line: bytes) -> None:  # noqa: ARG001
    # The job's own words are on stdout; what the ranks say is talk, and stands in the logs too.
    sys.stderr.buffer.write(f"{node}: ".encode() + line + b"\n")
    sys.stderr.flush()
