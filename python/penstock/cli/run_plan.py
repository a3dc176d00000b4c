# SPDX-License-Identifier: Apache-2.0
"""Plan of `penstock run`: prints command lines, the job's cost, and the break-even of a pool before anything starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.job.run_steps import Execution
    from penstock.job.spec import Job

__all__ = ["print_breakeven", "show"]

# Time limit of the listing. A short limit is enough: the job waits for the listing, which is needed only for printed
# information.
_LISTING_TIMEOUT_S = 20.0


def show(job: Job, execution_of: Callable[[Job], Execution], *, as_json: bool) -> int:
    """Run --dry-run, for each path if the job has several. Returns the exit code."""
    from penstock.cli.run_breakeven import breakeven_lines
    from penstock.cli.run_cost import list_source
    from penstock.job.spec import for_path
    from penstock.plan.job_breakeven import job_breakeven, needs_listing
    from penstock.price.job_cost import source_of, tier_of

    ways = [for_path(job, path) for path in job.paths] or [job]
    with_nodes = execution_of(job)
    try:
        nodes = len(with_nodes.cluster.nodes)
    finally:
        with_nodes.close()
    # List the source once for all outputs below.
    found = list_source(job, nodes) if source_of(job) and tier_of(job) is not None else None
    rows = [_planned(execution_of(one), nodes, found) for one in ways]
    pays = job_breakeven(job, nodes, found or (list_source(job, nodes) if needs_listing(job) else None))
    if as_json:
        plain = [{key: value for key, value in row.items() if key != "said"} for row in rows]
        click.echo(json.dumps({"schema_version": 2, "name": job.name, "jobs": plain, "breakeven": pays}))
        return 0
    for row in rows:
        _print_plan(row, f"{row['name']}: " if job.paths else "")
    for line in breakeven_lines(pays):
        click.echo(f"# {line}")
    return 0


def _planned(execution: Execution, nodes: int, found: dict[str, Any] | None) -> dict[str, Any]:
    from penstock.cli.run_cost import money_lines
    from penstock.job.spec import staged_leftover
    from penstock.price.job_cost import job_money

    try:
        steps = [{"name": step, "lines": lines} for step, lines in execution.plan()]
    finally:
        execution.close()
    # If the job stages to the nodes' own disks, every node gets the whole dataset.
    copies = nodes if staged_leftover(execution.job) is not None else 1
    money = job_money(execution.job, nodes, found, copies=copies)
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
    """Print the break-even of a pool, for a job that starts no pool or compares paths. Return the numbers for JSON.

    If the job has a `[demand]`, the source is listed, with a short time limit. If the listing fails, a line on stderr
    reports the error. The stage raises the same error later.
    """
    from penstock.cli.run_breakeven import breakeven_lines
    from penstock.cli.run_cost import list_source
    from penstock.errors import Deadline, PenstockError
    from penstock.plan.job_breakeven import job_breakeven, needs_listing
    from penstock.price.job_cost import source_of

    def log(line: str) -> None:
        if not is_quiet:
            click.echo(line, err=True)

    if job.pool is not None and job.pool.engine != "local" and not job.paths:
        return None
    execution = execution_of(job)
    found = None
    try:
        nodes = len(execution.cluster.nodes)
        if needs_listing(job):
            log(f"pool: listing {source_of(job)} to find the break-even of a pool")
            found = list_source(job, nodes, timeout_s=_LISTING_TIMEOUT_S)
        pays = job_breakeven(job, nodes, found)
    except PenstockError as error:
        is_late = isinstance(error, Deadline)
        why = f"{source_of(job)} was not listed within {_LISTING_TIMEOUT_S:g} s" if is_late else str(error)
        log(f"pool: break-even unknown: {why}")
        return None
    finally:
        execution.close()
    if pays is not None and pays["source_bytes_per_s"] is not None:
        for line in breakeven_lines(pays):
            log(line)
    return pays
