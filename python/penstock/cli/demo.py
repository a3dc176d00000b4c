# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: run all storage paths on realistic data and write a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.steps import steps

if TYPE_CHECKING:
    from penstock.report.comparison import Comparison

__all__ = ["command"]

SCHEMA_VERSION = 1
LEARNT = 0.9  # maximum MAE of a model that has learnt, relative to a constant prediction


@click.command(name="demo")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("penstock-demo"),
    show_default=True,
    help="Folder for the report and the runs.",
)
@click.option(
    "--size",
    type=click.Choice(["small", "tiny"]),
    default="small",
    show_default=True,
    help="Amount of data; tiny is for tests.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=1,
    show_default=True,
    help="Seed of the data, their order and the model.",
)
@click.option("--keep", is_flag=True, help="Keep the generated data in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout instead of the table.")
def command(output: Path, size: str, seed: int, keep: bool, as_json: bool) -> int:
    """Train one model over four storage paths and compare them, in about two minutes.

    Generates gzip'd samples, serves them from an emulated object store, and runs one short training over four paths:
    raw files through a mount (as published), gzip streamed from the Hot tier, gzip streamed from the Premium tier, and
    gzip that is first staged to the local disk. Real training steps show that all paths have the same losses; emulated
    accelerators show how each storage affects the utilisation. Prints a table and writes one HTML report: the
    measurements of each path, its limit, and the cost of the published job on it.

    Exit code 1: the losses of the paths differ, or the model did not learn.
    """
    from penstock.extras import require

    require("penstock demo", "demo")
    from penstock.demo.run import REPORT, DemoSpec, run
    from penstock.demo.sizes import SIZES

    with steps() as progress:
        facts = run(DemoSpec(out=output.absolute(), size=SIZES[size], seed=seed, keep=keep), progress)
    report = str(output.absolute() / REPORT)
    learnt = facts.learning.mae <= LEARNT * facts.learning.mae_constant
    if as_json:
        click.echo(json.dumps(_row(facts, report)))
    else:
        _show(facts)
        click.echo(f"\nreport: {report}")
    if not facts.learning.identical:
        click.echo("the paths' losses differ: something between store and model depends on the path", err=True)
    if not learnt:
        click.echo(
            f"the model did not learn: MAE {facts.learning.mae:.3f}, a constant answer has {facts.learning.mae_constant:.3f}",
            err=True,
        )
    return 0 if facts.learning.identical and learnt else 1


def _row(facts: Comparison, report: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "paths": {
            p.name: {
                "label": p.label,
                "losses": p.losses,
                "samples_per_s": p.samples_per_s,
                "model_samples_per_s": p.model_samples_per_s,
                "wait_share": p.wait_share,
                "first_batch_s": p.first_batch_s,
                "bytes": p.bytes,
                "requests": p.requests,
                "throttles": p.throttles,
                "stage_s": p.stage_s,
                "limited_by": p.limited_by,
                "predicted_hours": p.predicted.total_h,
                "predicted_usd": p.predicted.usd,
                "predicted_limited_by": p.predicted.limited_by,
                "published_hours": p.published.run_h if p.published else None,
                "published_usd": p.published.usd if p.published else None,
            }
            for p in facts.paths
        },
        "loss_identical": facts.learning.identical,
        "mae": facts.learning.mae,
        "mae_constant": facts.learning.mae_constant,
        "scale": facts.scale,
        "prices": facts.prices_line,
        "invalid": facts.invalid,
        "seconds": round(facts.seconds, 3),
        "report": report,
    }


def _show(facts: Comparison) -> None:
    import shutil

    from penstock.report.table import lines

    click.echo()
    for line in lines(facts, shutil.get_terminal_size((100, 24)).columns):
        click.echo(click.style(line.text, bold=line.strong, dim=line.faint) if line.strong or line.faint else line.text)
