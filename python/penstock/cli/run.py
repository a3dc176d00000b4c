# SPDX-License-Identifier: Apache-2.0
"""`penstock run`: run a job file, show its plan, submit it to a batch system, or run one node's part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.run_plan import print_breakeven, show
from penstock.cli.run_submit import node_slice_of, submit_or_export

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.job.compare_paths import PathResult
    from penstock.job.run_steps import Execution, StepRow
    from penstock.job.spec import Job
    from penstock.protocols import OnLine

    OnStep = Callable[[StepRow], None]

__all__ = ["command"]


@click.command("run")
@click.argument("file", metavar="JOB.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="Folder for the job's state and its nodes' logs, under the job's name.",
)
@click.option("--resume", is_flag=True, help="Continue a job that was stopped or killed.")
@click.option(
    "--dry-run", is_flag=True, help="Print each command line that would be started, and the cost; start nothing."
)
@click.option("--submit", is_flag=True, help="Submit the job to Slurm (sbatch) or PBS (qsub), and print its job ID.")
@click.option(
    "--wait", is_flag=True, help="With --submit: wait until the job ends, and return its exit code; Ctrl-C cancels it."
)
@click.option(
    "--export",
    metavar="FORM",
    help="Print the job as slurm, slurm-prolog, slurm-epilog, or (experimental) pbs, k8s, azureml, azure-batch.",
)
@click.option(
    "--node-only", is_flag=True, help="Run only this node's part of the job; another program starts the other nodes."
)
@click.option("--node", type=int, metavar="I", help="Number of this node, from 0. [from the launcher's variables]")
@click.option("--nodes", type=int, metavar="N", help="Number of nodes of the job. [from the launcher's variables]")
@click.option(
    "--rendezvous", metavar="HOST:PORT", help="Address and port where the job's ranks meet. [MASTER_ADDR:MASTER_PORT]"
)
@click.option("--quiet", is_flag=True, help="Write the nodes' output to the logs only.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON line at the end: the steps and their times; with --dry-run, the command lines and the cost.",
)
def command(
    file: Path,
    output: Path,
    resume: bool,
    dry_run: bool,
    submit: bool,
    wait: bool,
    export: str | None,
    node_only: bool,
    node: int | None,
    nodes: int | None,
    rendezvous: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run a job on a cluster: provision its nodes, bring a pool up, stage, run the ranks, archive, take the pool down.

    With `paths` in the file, the same job runs over each path, and the paths are compared. Each step is timed. Ctrl-C
    and any failure take the pool down. --resume repeats only the steps that are not done. Exit code 1: the job
    finished, but the ranks of lost nodes were not rerun.
    """
    from penstock.cli.renamed import warn_of_rename
    from penstock.env import for_nodes
    from penstock.errors import ConfigError
    from penstock.job import compare_paths
    from penstock.job.run_steps import Execution
    from penstock.job.spec import load

    if wait and not submit:
        raise ConfigError("--wait: requires --submit", where="--wait", hint="add --submit")
    if submit and export:
        raise ConfigError("--export and --submit cannot be combined", where="--export")
    job = load(file, warn_of_rename)
    if submit or export:
        return submit_or_export(
            job, file, output, form=export, resume=resume, waits=wait, as_json=as_json, dry_run=dry_run
        )  # fmt: skip
    node_slice = node_slice_of(node, nodes, rendezvous) if node_only or node is not None or nodes is not None else None
    given = for_nodes()

    def execution_of(
        one: Job, on_step: OnStep = _print_nothing if as_json else _print_step, on_line: OnLine | None = None
    ) -> Execution:
        on_line = on_line or (None if quiet or as_json else _on_line)
        folder = output / one.name if node_slice is None else output / one.name / f"n{node_slice.node}"
        return Execution(one, folder, given, on_step=on_step, on_line=on_line, node_slice=node_slice)

    if dry_run:
        return show(job, execution_of, as_json=as_json)
    pays = None if node_slice is not None else print_breakeven(job, execution_of, is_quiet=as_json)
    if sys.stderr.isatty() and not (quiet or as_json):
        return _run_in_view(execution_of, job, resume=resume)
    if job.paths:
        found, is_whole = compare_paths.run(job, execution_of, resume=resume)
        if as_json:
            result = {"schema_version": 2, "name": job.name, "paths": compare_paths.to_json(found), "breakeven": pays}
            click.echo(json.dumps(result))
        else:
            _table(found)
        return 0 if is_whole else 1
    execution = execution_of(job)
    steps = execution.run(resume=resume)
    if as_json:
        rows = [{"name": row.name, "state": row.state, "seconds": row.seconds, "detail": row.detail} for row in steps]
        result = {
            "schema_version": 2,
            "name": job.name,
            "steps": rows,
            "lost_nodes": sorted(execution.lost),
            "breakeven": pays,
        }
        click.echo(json.dumps(result))
    return 1 if execution.is_partial else 0


def _run_in_view(execution_of: Callable[[Job, OnStep, OnLine], Execution], job: Job, *, resume: bool) -> int:
    """Run the job, or its paths one after another, with a live view. The result is also printed on stdout unless stdout
    is a terminal.
    """
    from penstock.cli.run_live import LiveView
    from penstock.job import compare_paths

    view = LiveView(job.name)

    def with_view(one: Job) -> Execution:
        def on_step(row: StepRow) -> None:
            view.on_step(row, of=one.name)
            if not sys.stdout.isatty() and row.state != "running":
                _print_step(row)

        return execution_of(one, on_step, view.on_line)

    if job.paths:
        with view:
            found, is_whole = compare_paths.run(job, with_view, resume=resume)
        _table(found)
        return 0 if is_whole else 1
    execution = with_view(job)
    with view:
        view.expect([node.name for node in execution.cluster.nodes])
        execution.run(resume=resume)
    return 1 if execution.is_partial else 0


def _table(rows: Sequence[PathResult]) -> None:
    from penstock.units import format_seconds

    width = max(len(row.path) for row in rows)
    for row in rows:
        times = f"{format_seconds(row.before_s)} before · {format_seconds(row.ranks_s)} ranks · {format_seconds(row.total_s)}"
        how = f"{row.over_fastest:.2f} x the fastest" if row.over_fastest is not None else f"failed: {row.fault}"
        click.echo(f"{row.path:<{width}}  {times} · {how}")


def _print_nothing(_row: StepRow) -> None:
    return


def _print_step(row: StepRow) -> None:
    from penstock.units import format_seconds

    if row.state == "running":
        click.echo(f"{row.name} ...", err=True)
        return
    took = format_seconds(row.seconds)
    if row.state == "skipped":
        click.echo(f"{row.name}: skipped: {row.detail} in {took}")
        return
    click.echo(f"{row.name}: {row.state} in {took}{f': {row.detail}' if row.detail else ''}")


def _on_line(node: str, rank: int, stream: str, line: bytes) -> None:  # noqa: ARG001
    # stdout contains only the job's own output. The output of ranks goes to stderr and to the logs.
    sys.stderr.buffer.write(f"{node}: ".encode() + line + b"\n")
    sys.stderr.flush()
