# SPDX-License-Identifier: Apache-2.0
"""`penstock study run`: run a study and write its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.cluster.options import opened, reaching
from penstock.cli.parameters import Several
from penstock.cli.study.folder import studies_option

if TYPE_CHECKING:
    from penstock.study.spec import Part, Study

__all__ = ["command"]


@click.command("run")
@click.argument("name", metavar="NAME")
@click.option(
    "--size",
    default="small",
    show_default=True,
    metavar="SIZE",
    help="tiny (for tests), small (minutes on one machine), full (a cluster), or a size of the study's own.",
)
@click.option(
    "--only",
    type=Several(str, "list"),
    default=None,
    metavar="PARTS",
    help="Parts to run, separated by commas; results of other parts in the folder are kept.  [default: all of the size]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for results.json, report.md and report.html.  [default: runs/studies/NAME]",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Folder on the local disk for temporary data.  [default: the system's]",
)
@click.option("--dry-run", is_flag=True, help="Print the parts, their duration and what they need; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON document on stdout.")
@studies_option
@reaching("2h")
def command(
    name: str,
    size: str,
    only: tuple[str, ...] | None,
    output: Path | None,
    scratch: Path | None,
    dry_run: bool,
    as_json: bool,
    studies: Path | None,
    launcher: str,
    nodes: str | None,
    on: tuple[str, ...],
    settings: tuple[str, ...],
    timeout: float,
) -> int:
    """Run the study NAME and write its report, with the answer first.

    Exit code 1: data differs where it must be the same, or a program that is compared failed. A published figure that is
    not reached is listed in the report, and is not an error. All parts run on this machine, except those that use the
    nodes of --launcher at the size `full` (--dry-run shows them).

    \b
    penstock study run cosmoflow-staged --only prediction
    penstock study run ondemand-pool --size small --output pool-study
    penstock study run ondemand-pool --size full --launcher slurm
    """  # noqa: D301 - click's \b keeps the line breaks
    import shutil

    from penstock.errors import ConfigError
    from penstock.study.spec import find_study, studies_folder

    study = find_study(name, studies_folder(studies))
    parts = study.chosen(only or (), size)
    study.size(size)
    has_nodes = launcher != "local" or nodes is not None or bool(on or settings)
    if has_nodes and not (size == "full" and any(part.cluster for part in parts)):
        raise ConfigError(
            f"no part of study {study.name} uses the nodes of --launcher at size {size}",
            where="--launcher",
            hint="omit --launcher, --nodes, --on and --set: the parts run on this machine",
        )
    out = (output or Path("runs/studies") / study.name).absolute()
    if dry_run:
        _show_plan(study, parts, size, out, as_json=as_json)
        return 0
    import shlex
    import sys

    from penstock.cli.steps import steps
    from penstock.cli.study.report import show, write_reports
    from penstock.study.run import StudyRun, run_study
    from penstock.study.table import all_claims

    given = StudyRun(
        size=size, out=out, only=only or (), scratch=scratch, command=shlex.join(["penstock", *sys.argv[1:]]),
        open_cluster=(lambda: opened(launcher, nodes, on, settings)) if has_nodes else None,
        timeout_s=timeout,
    )  # fmt: skip
    with steps() as progress:
        result = run_study(study, given, progress)
    files = write_reports(result, out)
    show(result, files, as_json=as_json, width=shutil.get_terminal_size((100, 24)).columns)
    return 1 if any(claim.must and claim.holds is False for claim in all_claims(result)) else 0


def _show_plan(study: Study, parts: tuple[Part, ...], size: str, out: Path, *, as_json: bool) -> None:
    from penstock.study.run import lacks

    rows: list[dict[str, Any]] = [
        {
            "name": part.name, "what": part.what, "duration": part.duration.get(size, ""),
            "needs": part.full if size == "full" else "",
            "nodes": size == "full" and part.cluster, "lacks": lacks(part, size),
        }
        for part in parts
    ]  # fmt: skip
    if as_json:
        import json

        click.echo(
            json.dumps({"schema_version": 1, "study": study.name, "size": size, "output": str(out), "parts": rows})
        )
        return
    click.echo(f"study {study.about.letter}, {study.name}, size {size}, to {out}")
    for row in rows:
        duration = f", about {row['duration']}" if row["duration"] else ""
        click.echo(f"- {row['name']}: {row['what']}{duration}")
        if row["nodes"]:
            click.echo("    runs on the nodes of --launcher")
        if row["needs"]:
            click.echo(f"    needs {row['needs']}")
        if row["lacks"]:
            click.echo(f"    skipped: this machine lacks {', '.join(row['lacks'])}")
