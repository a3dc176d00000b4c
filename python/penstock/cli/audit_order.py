# SPDX-License-Identifier: Apache-2.0
"""`penstock audit-order`: check the order of an epoch against the delivered records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.fields import field, field_option
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.feed.order_audit import Audit

__all__ = ["command"]

_SAME = ("fingerprint", "seed", "window", "epoch", "global_batch")


class _Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(int(text) for text in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            self.fail(f"`{value}` is not a list of whole numbers (such as 1,4,8)", param, ctx)
        return numbers


@click.command("audit-order")
@click.argument("url", metavar="URL")
@click.option(
    "--ranks",
    type=_Numbers(),
    default="1,4,8",
    show_default=True,
    metavar="N,N,...",
    help="Numbers of ranks to compare.",
)
@click.option(
    "--threads",
    type=_Numbers(),
    default="1,4",
    show_default=True,
    metavar="N,N,...",
    help="Numbers of threads to compare.",
)
@click.option("--batch", type=int, default=32, show_default=True, help="Number of samples in a batch over all ranks.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the shuffle.")
@click.option("--window", type=int, help="Shuffle window, in objects.")
@click.option("--epoch", type=int, default=0, show_default=True, help="Number of the epoch, from 0.")
@click.option("--steps", type=int, help="Number of steps to read.  [default: all]")
@field_option
@click.option("--manifest", type=click.Path(path_type=Path), help="Manifest written by `penstock index`.")
@click.option("--records-per-object", type=int, metavar="N", help="Number of records in each object, if known.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the audit.")
@click.option("--against", type=click.Path(path_type=Path), help="Audit file to compare with.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(
    url: str,
    ranks: tuple[int, ...],
    threads: tuple[int, ...],
    batch: int,
    seed: int,
    window: int | None,
    epoch: int,
    steps: int | None,
    fields: tuple[str, ...],
    manifest: Path | None,
    records_per_object: int | None,
    output: Path | None,
    against: Path | None,
    as_json: bool,
) -> int:
    """Check that the dataset at URL is delivered in the same order for any number of ranks and threads.

    Reads one epoch through the loader for each number of ranks and threads, and hashes the expected records and the
    delivered bytes of each step. A staged or decompressed copy has the same hashes, so two paths can be compared: write
    an audit of one path with --output, and audit the other path with --against. Without --field, the fields are those
    of the first record.

    Exit code 0: all orders are equal. 1: they differ; the output names the first step that differs.
    """
    import penstock
    from penstock.feed.order_audit import SCHEMA_VERSION, audit, first_difference, guess_fields

    saved = _read_saved(against) if against is not None else None
    dataset = penstock.open(url, manifest, records_per_object=records_per_object)
    specs = dict(field(text) for text in fields) or guess_fields(dataset)
    dataset = dataset.fields(**specs).shuffle(seed, window)
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "url": dataset.url,
        "fingerprint": dataset.fingerprint,
        "seed": seed,
        "window": dataset.window,
        "epoch": epoch,
        "global_batch": batch,
        "samples": dataset.samples,
        "expected_gets_per_batch": dataset.expected_gets(batch, ranks[0]),
    }
    audits: list[Audit] = []
    difference: dict[str, Any] | None = None
    for count in ranks:
        for number in threads:
            made = audit(dataset, global_batch=batch, ranks=count, threads=number, epoch=epoch, max_steps=steps)
            audits.append(made)
            step = first_difference(audits[0].steps, made.steps)
            if step is not None and difference is None:
                difference = {"step": step, "between": [_summary(audits[0]), _summary(made)]}
    found["steps"] = [list(step) for step in audits[0].steps]
    found["configurations"] = [{"ranks": a.ranks, "threads": a.threads, "digest": a.digest} for a in audits]
    if saved is not None and difference is None:
        difference = _compare(found, saved, str(against))
    found["is_same"] = difference is None
    found["difference"] = difference
    if output is not None:
        output.write_text(json.dumps(found) + "\n")
    click.echo(json.dumps(found) if as_json else _text(found))
    return 0 if difference is None else 1


def _summary(made: Audit) -> str:
    return f"{made.ranks} ranks, {made.threads} threads"


def _read_saved(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text())
        steps = saved["steps"]
        if not all(len(step) == 2 for step in steps):
            raise ValueError("every step must be a pair")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a valid audit: {error}", hint="run penstock audit-order with --output to write one"
        ) from None
    return dict(saved)


def _compare(found: dict[str, Any], saved: dict[str, Any], name: str) -> dict[str, Any] | None:
    from penstock.feed.order_audit import first_difference

    for what in _SAME:
        if saved.get(what) != found[what]:
            return {"what": what, "between": [found["url"], name], "values": [found[what], saved.get(what)]}
    step = first_difference(found["steps"], saved["steps"])
    return None if step is None else {"step": step, "between": [found["url"], name]}


def _text(found: dict[str, Any]) -> str:
    lines = [
        (
            f"{found['url']}: epoch {found['epoch']}, {len(found['steps']):,} steps of {found['global_batch']:,} samples,"
            f" seed {found['seed']}, window {found['window']:,} objects"
            f" ({found['expected_gets_per_batch']:.1f} object reads expected a step)"
        )
    ]
    lines += [f"{one['digest']}  {one['ranks']} ranks, {one['threads']} threads" for one in found["configurations"]]
    difference = found["difference"]
    if difference is None:
        lines.append("one order")
    elif "step" in difference:
        lines.append(f"they differ from step {difference['step']:,} on: {' and '.join(difference['between'])}")
    else:
        lines.append(
            f"they differ in {difference['what']}: {difference['values'][0]} and {difference['values'][1]}"
            f" ({' and '.join(difference['between'])})"
        )
    return "\n".join(lines)
