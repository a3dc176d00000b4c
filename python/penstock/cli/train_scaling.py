# SPDX-License-Identifier: Apache-2.0
"""`penstock train --scale`: measures scaling over ranks of this node, and prints a table with efficiencies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.app.spec import Scaling
    from penstock.train import TrainSpec

__all__ = ["run_scaling"]


def run_scaling(
    spec: TrainSpec, ranks: Sequence[int], *, scaling: Scaling, repeats: int, output: str | None, as_json: bool
) -> None:
    """Measure, print progress on stderr and the result on stdout, and save it to `output`/ID/scaling.json."""
    import msgspec

    from penstock.bench.app.document import save
    from penstock.bench.app.summary import plural
    from penstock.bench.results import new_id
    from penstock.cli.bench.app_output import print_summary
    from penstock.train.scaling import measure_scaling

    total = len(ranks) * repeats

    def ran(number: int, size: int, rate: float | None, error: str | None) -> None:
        what = f"{rate:,.1f} samples/s" if rate is not None else f"failed: {error}"
        click.echo(f"run {number} of {total}: {plural(size, 'rank')}, {what}", err=True)

    found = measure_scaling(spec, ranks, scaling=scaling, repeats=repeats, on_run=ran)
    file = None
    if output is not None:
        file = save(found, Path(output) / new_id("train-scaling", time.time()))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    print_summary(found.summary, found.notes)
    if file is not None:
        click.echo(str(file))
