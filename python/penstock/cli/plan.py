# SPDX-License-Identifier: Apache-2.0
"""`penstock plan`: predict hours and money of each path of a plan file, and check predictions against runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.plan.analysis import Target
    from penstock.plan.result import PlanResult
    from penstock.plan.simulated_plan import SimulatedScenario
    from penstock.plan.spec import PlanSpec

__all__ = ["command"]


@click.command("plan")
@click.argument("files", metavar="SPEC|RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--nodes", metavar="N..N", help="Numbers of nodes, instead of the file's: 4, 1..64 or 1,2,4..8.")
@click.option("--region", help="Region of the nodes. The data stays in the file's region, and reads cross to this one.")
@click.option("--replicate", is_flag=True, help="With --region: copy the data to the nodes' region first.")
@click.option("--no-spot", is_flag=True, help="Leave out the spot machines of the file's [spot].")
@click.option("--target", metavar="RATE|TIME", help='Reach a rate, such as "20000 images/s", or end within a time: 6h.')
@click.option(
    "--minimise", type=click.Choice(["cost", "time"]), default="cost", show_default=True, help="Goal of --target."
)
@click.option("--all", "whole", is_flag=True, help="Print all rows, not only the frontier and the best of each path.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File for an HTML page.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Results folder whose predictions.jsonl gets the predictions, before anything is measured.",
)
@click.option("--dry-run", is_flag=True, help="Predict without writing to the log.")
@click.option(
    "--simulate",
    is_flag=True,
    help="Also simulate an epoch of each path with the most nodes, under the file's [simulation].",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="With --simulate: number of simulated epochs of each path.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="With --simulate: seed of the random numbers.")
@click.option("--check", "checks", is_flag=True, help="Compare the predictions in the log with measured RUNs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(
    files: tuple[Path, ...],
    nodes: str | None,
    region: str | None,
    replicate: bool,
    no_spot: bool,
    target: str | None,
    minimise: str,
    whole: bool,
    output: Path | None,
    log: Path,
    dry_run: bool,
    simulate: bool,
    replicas: int,
    seed: int,
    checks: bool,
    as_json: bool,
) -> None:
    """Predict staging, epoch, job and cost of every path in SPEC, a plan file, and which limit decides.

    With --check, compare earlier predictions with measured RUNs (folders of `penstock train` or `penstock demo`).

    \b
    penstock plan spec.toml
    penstock plan spec.toml --nodes 1..64 --output plan.html
    penstock plan spec.toml --region "West Europe" --replicate
    penstock plan spec.toml --nodes 1..64 --target "20000 images/s"
    penstock plan spec.toml --nodes 64 --simulate --replicas 20 --seed 1
    penstock plan --check runs
    """  # noqa: D301 - click reads the \b, and not its spelling
    if checks:
        _check(
            files, None if click.get_current_context().get_parameter_source("log") is _DEFAULT else log, output, as_json
        )
        return
    _plan(
        _one(files),
        {"nodes": nodes, "region": region, "replicate": replicate, "no_spot": no_spot},
        target=target,
        minimise=minimise,
        whole=whole,
        output=output,
        log=None if dry_run else log,
        as_json=as_json,
        simulation=(replicas, seed) if simulate else None,
    )


_DEFAULT = click.core.ParameterSource.DEFAULT


def _one(files: tuple[Path, ...]) -> Path:
    if len(files) > 1:
        from penstock.errors import ConfigError

        raise ConfigError(
            f"{len(files)} plan files are given, but one plan reads one file",
            hint="add --check to compare predictions with runs",
        )
    return files[0]


def _plan(
    file: Path,
    changes: dict[str, Any],
    *,
    target: str | None,
    minimise: str,
    whole: bool,
    output: Path | None,
    log: Path | None,
    as_json: bool,
    simulation: tuple[int, int] | None,
) -> None:
    import datetime as dt
    import shutil

    from penstock.cli.plan_output import lines
    from penstock.plan import prediction_log
    from penstock.plan.analysis import parse_target
    from penstock.plan.result import as_json as encoded
    from penstock.plan.result import make_plan
    from penstock.plan.spec_file import load
    from penstock.price import book

    spec = _changed(load(file), **changes)
    goal = parse_target(target, spec.workload.unit) if target is not None else None
    result = make_plan(spec, book.load(), dt.datetime.now(dt.UTC))
    simulated = _simulated(spec, *simulation) if simulation is not None else []
    is_reached, sentence = (True, None) if goal is None else _target_sentence(result, goal, minimise, target or "")
    if log is not None:
        written = prediction_log.append(prediction_log.rows_of(result), log)
        click.echo(f"predictions {result.id}.* are logged in {written}", err=True)
    if as_json:
        more: dict[str, Any] = {}
        if goal is not None:
            more["target"] = _target(result, goal, minimise, target or "")
        if simulation is not None:
            more["simulations"] = _simulation_rows(simulated)
        click.echo(_with(encoded(result), more) if more else encoded(result))
    else:
        from penstock.cli.plan_simulation import simulation_lines

        width = shutil.get_terminal_size((100, 24)).columns
        for line in (*lines(result, width, whole=whole), *simulation_lines(simulated)):
            click.echo(line)
    if output is not None:
        from penstock.report.document import write_whole
        from penstock.report.plan_page import plan_page

        write_whole(plan_page(result, target=sentence, simulated=simulated), output)
        click.echo(str(output), err=as_json)
    if sentence is not None:
        click.echo(sentence, err=as_json or not is_reached)
    if not is_reached:
        raise click.exceptions.Exit(1)


def _simulated(spec: PlanSpec, replicas: int, seed: int) -> list[SimulatedScenario]:
    from penstock.cli.plan_simulation import run
    from penstock.plan.scenario import scenarios
    from penstock.price import book

    return run(spec, scenarios(spec, book.load()), replicas, seed)


def _simulation_rows(simulated: list[SimulatedScenario]) -> list[dict[str, Any]]:
    from penstock.cli.plan_simulation import as_rows

    return as_rows(simulated)


def _with(document: bytes, more: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.json.encode({**msgspec.json.decode(document), **more})


def _target(result: PlanResult, goal: Target, minimise: str, text: str) -> dict[str, Any]:
    """Return the target for `--json`, with the id of the best row that reaches it. If no row reaches the target, return
    the id of the nearest row.
    """
    from penstock.plan.analysis import choose

    found, near = choose([row.prediction for row in result.rows], goal, "time" if minimise == "time" else "cost")
    return {
        "target": text,
        "minimise": minimise,
        "reached_by": None if found is None else result.row(found).id,
        "nearest": None if near is None else result.row(near).id,
    }


def _changed(spec: PlanSpec, *, nodes: str | None, region: str | None, replicate: bool, no_spot: bool) -> PlanSpec:
    """Apply the what-if flags, and check the plan again."""
    import msgspec

    from penstock.plan.spec_checks import check

    changes: dict[str, Any] = {}
    if nodes is not None:
        changes["nodes"] = nodes
    if no_spot:
        changes["spot"] = None
    if region is not None or replicate:
        place = spec.place
        if region is not None:
            # The data stay in the region that the file states for the data or, without one, in the region that it
            # states for the nodes.
            stays = place.data_region or place.region
            place = msgspec.structs.replace(place, region=region, data_region=stays)
        changes["place"] = msgspec.structs.replace(place, replicates=replicate or place.replicates)
    changed = msgspec.structs.replace(spec, **changes)
    check(changed)
    return changed


def _target_sentence(result: PlanResult, goal: Target, minimise: str, text: str) -> tuple[bool, str | None]:
    """Return whether a row reaches the target, and a sentence. The sentence is about the best row that reaches the
    target or, without such a row, about the limit.
    """
    from penstock.plan.analysis import choose, limit_words
    from penstock.plan.result import money_words
    from penstock.units import format_seconds

    rows = [row.prediction for row in result.rows]
    found, near = choose(rows, goal, "time" if minimise == "time" else "cost")
    one = found or near
    if one is None:
        return False, None
    words = (
        f"{one.path} on {one.nodes} x {one.machine}: {one.samples_per_s:,.0f} {result.unit}/s, "
        f"{format_seconds(one.finish_s)}, {money_words(one.money.total, result.currency)} (limited by "
        f"{limit_words(one.limited_by)})"
    )
    if found is not None:
        return True, f"Target {text}, least {minimise}: {words}"
    reaching = [row for row in rows if not row.impossible and goal.holds(row)]
    if reaching:
        return False, f"Target {text}: {len(reaching)} rows reach it, but their cost is unknown; use --minimise time"
    return False, f"Target {text}: none of {len(rows)} rows reaches it. Nearest: {words}"


def _check(files: tuple[Path, ...], log: Path | None, output: Path | None, as_json: bool) -> None:
    import shutil

    import msgspec

    from penstock.cli.plan_output import error_lines
    from penstock.plan.check import check, markdown

    found = check(files, log)
    if as_json:
        plain = msgspec.to_builtins(found)
        for row, given in zip(plain["rows"], found.rows, strict=True):
            row["error"] = given.error
        click.echo(msgspec.json.encode(plain))
    else:
        for line in error_lines(found, shutil.get_terminal_size((100, 24)).columns):
            click.echo(line)
    if output is not None:
        from penstock.report.document import write_whole

        write_whole(markdown(found), output)
        click.echo(str(output), err=as_json)
