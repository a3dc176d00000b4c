# SPDX-License-Identifier: Apache-2.0
"""What `penstock run` says before it does anything: command lines, the money, and when a pool starts to pay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.job.runner import Execution
    from penstock.job.spec import Job

__all__ = ["print_breakeven", "show"]

# The job itself waits for this, and it is only talk.
_LISTING_TIMEOUT_S = 20.0


def show(job: Job, execution_of: Callable[[Job], Execution], *, as_json: bool) -> int:
    """--dry-run: of each path in turn, where there are several; the exit code."""
    from penstock.cli.run_breakeven import breakeven_lines, job_breakeven
    from penstock.cli.run_cost import list_source, source_of, tier_of
    from penstock.job import compare_paths

    ways = [compare_paths.for_path(job, path) for path in job.paths] or [job]
    with_nodes = execution_of(job)
    try:
        nodes = len(with_nodes.cluster.nodes)
    finally:
        with_nodes.close()
    # One listing for all that is said of it.
    found = list_source(job, nodes) if source_of(job) and tier_of(job) is not None else None
    rows = [_planned(execution_of(one), nodes, found) for one in ways]
    pays = job_breakeven(job, nodes, found)
    if as_json:
        plain = [{key: value for key, value in row.items() if key != "said"} for row in rows]
        click.echo(json.dumps({"schema_version": 1, "name": job.name, "jobs": plain, "pool_pays": pays}))
        return 0
    for row in rows:
        _print_plan(row, f"{row['name']}: " if job.paths else "")
    for line in breakeven_lines(pays):
        click.echo(f"# {line}")
    return 0


def _planned(execution: Execution, nodes: int, found: dict[str, Any] | None) -> dict[str, Any]:
    from penstock.cli.run_cost import job_money, money_lines

    try:
        steps = [{"name": step, "lines": lines} for step, lines in execution.plan()]
    finally:
        execution.close()
    money = job_money(execution.job, nodes, found)
    return {"name": execution.job.name, "steps": steps, "money": money, "said": money_lines(execution.job, money)}


def _print_plan(row: dict[str, Any], whose: str) -> None:
    from penstock.cli.cluster.options import spelt

    for step in row["steps"]:
        click.echo(f"# {whose}{step['name']}")
        for line in step["lines"]:
            click.echo(spelt(line))
    click.echo(f"# {whose}money")
    for line in row["said"]:
        click.echo(f"# {line}")


def print_breakeven(job: Job, execution_of: Callable[[Job], Execution], *, is_quiet: bool) -> dict[str, Any] | None:
    """When a pool starts to pay, of a job that brings none up or compares; the numbers, for JSON.

    Its source is listed only where `[demand]` says what is eaten of it, and not for long: one that cannot be listed by then
    is a line on stderr here, and the stage's to fail on.
    """
    from penstock.cli.run_breakeven import breakeven_lines, job_breakeven, needs_listing
    from penstock.cli.run_cost import list_source, source_of
    from penstock.errors import Deadline, PenstockError

    def talk(line: str) -> None:
        if not is_quiet:
            click.echo(line, err=True)

    if job.pool is not None and job.pool.engine != "local" and not job.paths:
        return None
    execution = execution_of(job)
    found = None
    try:
        nodes = len(execution.cluster.nodes)
        if needs_listing(job):
            talk(f"pool: {source_of(job)} is being listed, to tell when a pool starts to pay")
            found = list_source(job, nodes, deadline_s=_LISTING_TIMEOUT_S)
        pays = job_breakeven(job, nodes, found)
    except PenstockError as error:
        is_late = isinstance(error, Deadline)
        why = f"{source_of(job)} was not listed within {_LISTING_TIMEOUT_S:g} s" if is_late else str(error)
        talk(f"pool: when one starts to pay is not told: {why}")
        return None
    finally:
        execution.close()
    if pays is not None and pays["source_bytes_per_s"] is not None:
        for line in breakeven_lines(pays):
            talk(line)
    return pays
