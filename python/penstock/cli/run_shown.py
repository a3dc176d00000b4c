# SPDX-License-Identifier: Apache-2.0
"""What `penstock run` says before it does anything: command lines, the money, and when a pool starts to pay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cluster.execute import Execution
    from penstock.cluster.job import Job

__all__ = ["show", "told_at_start"]


def show(job: Job, execution_of: Callable[[Job], Execution], *, as_json: bool) -> int:
    """--dry-run: of each path in turn, where there are several; the exit code."""
    from penstock.cli.run_money import listed, tier_of
    from penstock.cli.run_pays import pays_lines, pays_of
    from penstock.cluster import compare

    ways = [compare.over(job, path) for path in job.paths] or [job]
    with_nodes = execution_of(job)
    try:
        nodes = len(with_nodes.cluster.nodes)
    finally:
        with_nodes.close()
    # One listing for all that is said of it.
    found = listed(job, nodes) if tier_of(job) is not None else None
    rows = [_planned(execution_of(one), nodes, found) for one in ways]
    pays = pays_of(job, nodes, found)
    if as_json:
        plain = [{key: value for key, value in row.items() if key != "said"} for row in rows]
        click.echo(json.dumps({"schema_version": 1, "name": job.name, "jobs": plain, "pool_pays": pays}))
        return 0
    for row in rows:
        _say_planned(row, f"{row['name']}: " if job.paths else "")
    for line in pays_lines(pays):
        click.echo(f"# {line}")
    return 0


def _planned(execution: Execution, nodes: int, found: dict[str, Any] | None) -> dict[str, Any]:
    from penstock.cli.run_money import money_lines, money_of

    try:
        steps = [{"name": step, "lines": lines} for step, lines in execution.plan()]
    finally:
        execution.close()
    money = money_of(execution.job, nodes, found)
    return {"name": execution.job.name, "steps": steps, "money": money, "said": money_lines(execution.job, money)}


def _say_planned(row: dict[str, Any], whose: str) -> None:
    from penstock.cli.cluster.options import spelt

    for step in row["steps"]:
        click.echo(f"# {whose}{step['name']}")
        for line in step["lines"]:
            click.echo(spelt(line))
    click.echo(f"# {whose}money")
    for told in row["said"]:
        click.echo(f"# {told}")


def told_at_start(job: Job, execution_of: Callable[[Job], Execution], *, is_quiet: bool) -> dict[str, Any] | None:
    """When a pool starts to pay, of a job that brings none up or compares; the numbers, for JSON.

    Its source is listed only where `[demand]` says what is eaten of it; one that cannot be listed is the stage's to tell.
    """
    from penstock.cli.run_pays import pays_lines, pays_of
    from penstock.errors import PenstockError

    if job.pool is not None and job.pool.engine != "local" and not job.paths:
        return None
    execution = execution_of(job)
    try:
        pays = pays_of(job, len(execution.cluster.nodes))
    except PenstockError:
        return None
    finally:
        execution.close()
    if not is_quiet and pays is not None and pays["source_bytes_per_s"] is not None:
        for line in pays_lines(pays):
            click.echo(line, err=True)
    return pays
