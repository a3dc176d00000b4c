# SPDX-License-Identifier: Apache-2.0
"""`penstock bench feed`: compare Penstock's loader with other loaders that can read a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.fields import field, field_option
from penstock.cli.parameters import SECONDS
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.bench.feed import Contest

__all__ = ["command"]

SCHEMA_VERSION = 2


def _names(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for text in given for name in text.split(",") if name)


@click.command("feed")
@click.argument("url", metavar="URL")
@click.option(
    "--against",
    multiple=True,
    metavar="NAME,NAME,...",
    callback=_names,
    help="Loaders to compare with: tfdata, webdataset, litdata, ..., or planes (Penstock's transposed copies); an unknown name lists all.",
)
@click.option(
    "--peers",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder where DIR/NAME/bin/python is each loader's Python.  [default: this Python]",
)
@field_option
@click.option("--format", "kind", metavar="NAME", help="Format of the objects; `fixed` takes its columns from --field.")
@click.option(
    "--records-per-object", type=click.IntRange(1), metavar="N", help="Number of records in each object, if known."
)
@click.option("--random-crops", is_flag=True, help="Crop and mirror images at random, as in training.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Number of samples in a batch.")
@click.option(
    "--arrays",
    type=click.Choice(["numpy", "torch"]),
    default="numpy",
    show_default=True,
    help="Array type of the batches of Penstock's loader.",
)
@click.option("--cores", type=click.IntRange(1), help="Number of cores that each loader may use.  [default: all]")
@click.option(
    "--repeats", type=click.IntRange(1), default=5, show_default=True, help="Number of measured passes per loader."
)
@click.option(
    "--cache",
    type=click.Choice(["warm", "cold", "both"]),
    default="both",
    show_default=True,
    help="State of the page cache when a pass begins.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of epochs of the training whose cost is computed.",
)
@click.option(
    "--price-tier",
    metavar="NAME",
    help="Tier whose prices apply: s3-standard, gcs-standard, azure-hot, azure-premium.  [by the URL]",
)
@click.option("--timeout", type=SECONDS, default="10min", show_default=True, help="Time limit of one pass.")
@click.option(
    "--scratch", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder for converted copies."
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="runs",
    show_default=True,
    help="Folder for the results: DIR/ID/result.json.",
)
@click.option("--no-save", is_flag=True, help="Do not save the result.")
@click.option("--allow-debug", is_flag=True, help="Save the rows of a debug build, marked INVALID.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")
def command(
    url: str,
    against: tuple[str, ...],
    fields: tuple[str, ...],
    kind: str | None,
    records_per_object: int | None,
    random_crops: bool,
    cores: int | None,
    cache: str,
    epochs: int,
    price_tier: str | None,
    output: Path,
    no_save: bool,
    allow_debug: bool,
    as_json: bool,
    **rest: Any,
) -> int:
    """Read the dataset at URL with Penstock's loader and with other installed loaders, alternately.

    \b
    penstock bench feed /data/train --against tfdata,libdeflate --peers .tools/peers
    penstock bench feed s3://bucket/raw --format fixed --field x=uint8:16777216 --arrays torch --against obstore

    Each loader runs in its own process with the same objects, fields, batch size and cores. Its first pass is hashed
    and not measured. Then passes alternate (ABBA): cold passes, for which the files are dropped from the page cache,
    and warm ones. A ratio is a loader's median time divided by Penstock's; above 1, Penstock is faster. A loader that
    is not installed or cannot read the format is skipped, and the output names it.

    Exit code 0: all loaders returned the same samples. 1: the samples differ, or a loader failed.
    """  # noqa: D301 - click reads the \b, and not its spelling
    import os

    import penstock
    from penstock import _native
    from penstock.bench import feed, results
    from penstock.cli.epoch_cost import money_text
    from penstock.price.estimates import estimate_epochs

    if not no_save:
        results.refuse_debug(_native.__profile__, allow_debug=allow_debug)
    crop = "random" if random_crops else "center"
    specs = dict(field(text, crop=crop) for text in fields)
    if kind == "fixed" and not specs:
        raise ConfigError(
            "--format fixed requires columns from --field", hint="give columns, such as --field x=uint8:1024"
        )
    layout = penstock.formats.fixed(**specs) if kind == "fixed" else kind
    dataset = penstock.open(url, format=layout, records_per_object=records_per_object)
    if specs:
        dataset = dataset.fields(**specs)
    money = estimate_epochs(
        dataset.url,
        objects=dataset.source.objects,
        size_bytes=dataset.source.size_bytes,
        requests=dataset.expected_gets(rest["batch"], 1) * -(-dataset.samples // rest["batch"]),
        epochs=epochs,
        tier=price_tier,
    )
    if money is not None:
        click.echo(money_text(money), err=True)
    request = feed.Request(
        dataset=dataset,
        against=against,
        cores=min(cores or len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0))),
        caches=feed.CACHES if cache == "both" else (cache,),
        limit_s=rest.pop("timeout"),
        **rest,
    )
    contest = feed.run(request, log=lambda line: click.echo(line, err=True))
    saved = [] if no_save else [str(results.save(row, output, allow_debug=allow_debug)) for row in contest.rows]
    if as_json:
        click.echo(json.dumps(_plain(contest, money, saved)))
    else:
        click.echo(_readable(contest))
        for path in saved:
            click.echo(path)
    return 0 if contest.is_same and not contest.failed else 1


def _plain(contest: Contest, money: dict[str, Any] | None, saved: list[str]) -> dict[str, Any]:
    import msgspec

    return {
        "schema_version": SCHEMA_VERSION,
        "ratios": contest.ratios,
        "is_same": contest.is_same,
        "not_run": contest.not_run,
        "failed": contest.failed,
        "money": money,
        "rows": [msgspec.to_builtins(row) for row in contest.rows],
        "saved": saved,
    }


def _readable(contest: Contest) -> str:
    ours = contest.rows[0]
    machine = ours.provenance.machine
    load = max(one["load"] for row in contest.rows for one in row.workload["passes"])
    sizes = f"{ours.bytes / 1e9:.3f} GB stored, {ours.bytes_delivered / 1e9:.3f} GB in batches"
    used = f"{ours.spec['cores']} of {machine.cores} cores, load up to {load:.1f}, {ours.repeats} passes each"
    lines = [
        f"{ours.samples:,} samples, {sizes}; {used}",
        f"{'':<20} {'CPU ratio':>10} {'wall ratio':>10} {'samples/s':>11} {'CPU s':>8} {'wall s':>8} {'first s':>8}  cache",
    ]
    ratios = {(one["peer"], one["cache"]): one for one in contest.ratios}
    for row in contest.rows:
        ratio = ratios.get((row.label, row.cache.state), {"cpu": 1.0, "wall": 1.0})
        lines.append(
            f"{row.label:<20} {ratio['cpu']:>10.2f} {ratio['wall']:>10.2f} {row.samples_per_s:>11,.1f} {row.cpu_s:>8.3f}"
            f" {row.wall_s:>8.3f} {row.first_batch_s:>8.3f}  {row.cache.state}"
            + (f"  (converted in {row.workload['begin_s']:.1f} s)" if row.workload["converted_bytes"] else "")
        )
    lines += [f"{name}: not run: {why}" for name, why in contest.not_run.items()]
    lines += [f"{name}: failed: {why}" for name, why in contest.failed.items()]
    if ours.loader:
        lines.append(f"ours, last pass, limited by {ours.loader['limiting']}: {ours.loader['reason']}")
    lines.append(
        "all returned the same samples" if contest.is_same else "INVALID: the contestants returned different samples"
    )
    return "\n".join(lines)
