# SPDX-License-Identifier: Apache-2.0
"""`penstock train --scale`: measures scaling over ranks and nodes, and prints a table with efficiencies."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.app.document import Document
    from penstock.bench.app.spec import Scaling
    from penstock.train import TrainSpec

__all__ = ["Placement", "run_scaling"]

# Options that the ranks do not get: the sweep sets them itself, or they concern the output of the sweep.
_OWN = frozenset(
    [
        "scale",
        "scaling",
        "repeats",
        "launcher",
        "nodes",
        "ranks_per_node",
        "ranks",
        "batch_size",
        "global_batch",
        "warm_up_steps",
        "output",
        "no_save",
        "label",
        "output_format",
        "as_json",
        "price_tier",
        "synthetic",
        "data",
    ]
)


class Placement(NamedTuple):
    """Launcher of the ranks, its nodes, and the maximum number of ranks per node."""

    launcher: str
    nodes: str | None
    ranks_per_node: int | None


def run_scaling(
    spec: TrainSpec,
    ranks: Sequence[int],
    *,
    scaling: Scaling,
    repeats: int,
    on: Placement | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Measure, print progress on stderr and the result on stdout, and save it to `output`/ID/scaling.json."""
    import msgspec

    from penstock.bench.app.document import save
    from penstock.bench.results import new_id
    from penstock.cli.bench.app_output import print_summary

    sizes = (spec, ranks, scaling, repeats)
    found = _on_this_node(*sizes) if on is None else _on_nodes(*sizes, on)
    file = None
    if output is not None:
        file = save(found, Path(output) / new_id("train-scaling", time.time()))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    print_summary(found.summary, found.notes)
    if file is not None:
        click.echo(str(file))


def _on_this_node(spec: TrainSpec, ranks: Sequence[int], scaling: Scaling, repeats: int) -> Document:
    from penstock.train.scaling import measure_scaling, rate_figure
    from penstock.units import plural

    total = len(ranks) * repeats
    unit = rate_figure(spec).name

    def ran(number: int, size: int, rate: float | None, error: str | None) -> None:
        what = f"{rate:,.1f} {unit}" if rate is not None else f"failed: {error}"
        click.echo(f"run {number} of {total}: {plural(size, 'rank')}, {what}", err=True)

    return measure_scaling(spec, ranks, scaling=scaling, repeats=repeats, on_run=ran)


def _on_nodes(spec: TrainSpec, ranks: Sequence[int], scaling: Scaling, repeats: int, on: Placement) -> Document:
    from penstock.bench.app.spec import Spec
    from penstock.cli.bench.app_output import run_printer
    from penstock.errors import NotFound
    from penstock.train.scaling import measure_scaling_on_nodes, rate_figure

    sweep = Spec(
        command=tuple(_command_line(spec)),
        launcher=on.launcher,
        nodes=on.nodes,
        ranks=tuple(ranks),
        ranks_per_node=on.ranks_per_node,
        scaling=scaling,
        size=spec.global_batch,
        repeats=repeats,
        warm_up=0,
        timeout_s=86_400.0,
        figure=rate_figure(spec),
    )
    try:
        return measure_scaling_on_nodes(spec, sweep, on_run=run_printer(sweep))
    except NotFound as error:
        # A launcher's program is a setting of `bench app`; here, --set is a setting of the workload.
        error.__notes__ = [note.partition(", or set an installed program")[0] for note in [error.hint] if note]
        raise


def _command_line(spec: TrainSpec) -> list[str]:
    """Return the command line of the ranks: the given command line without the options of the sweep."""
    context = click.get_current_context()
    argv = [sys.executable, "-m", "penstock", "train", spec.workload, "--json", "--no-save"]
    argv += ["--global-batch", "{size}", "--warm-up", str(spec.warm_up_steps)]
    argv += ["--synthetic"] if context.params["synthetic"] else ["--data", spec.data]
    for option in context.command.params:
        value, source = context.params[str(option.name)], context.get_parameter_source(str(option.name))
        is_default = source in (None, click.core.ParameterSource.DEFAULT)
        if is_default or option.name in _OWN or not isinstance(option, click.Option):
            continue
        flag = option.opts[0]
        if option.is_flag:
            argv += [flag] if value else []
        elif isinstance(value, dict):
            argv += [text for name, one in value.items() for text in (flag, f"{name}={json.dumps(one)}")]
        elif option.name == "join_timeout_s":
            argv += [flag, f"{value}s"]
        else:
            argv += [flag, str(value)]
    return argv
