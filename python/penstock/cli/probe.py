# SPDX-License-Identifier: Apache-2.0
"""`penstock probe`: measure the limits of a store or a disk, and write them as a tier that can be emulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import BYTES, SECONDS
from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from penstock.bench.rows import Row
    from penstock.probe.card import Card
    from penstock.probe.run import Probe
    from penstock.probe.spending import Meter

__all__ = ["command"]

_URL_BYTES = 20 * 10**9
_NO_LIMIT_BYTES = 10**18


@click.command("probe")
@click.argument("target", metavar="URL|PATH")
@click.option(
    "--time",
    "time_s",
    type=SECONDS,
    default="2min",
    show_default=True,
    metavar="TIME",
    help="Maximum time, 5 s to 5 min; more time makes the figures more precise.",
)
@click.option(
    "--budget",
    type=float,
    default=0.5,
    show_default=True,
    metavar="USD",
    help="Maximum cost of requests and egress, by the price book.",
)
@click.option(
    "--max-bytes",
    type=BYTES,
    metavar="SIZE",
    help="Maximum number of bytes to read and write.  [default: 20GB from a URL, no limit on a path]",
)
@click.option(
    "--same-region", is_flag=True, help="This machine is in the store's region, so that reads cost no egress."
)
@click.option(
    "--price-tier",
    metavar="NAME",
    help="Tier whose prices apply: none, s3-standard, gcs-standard, azure-hot, azure-premium.  [by the URL]",
)
@click.option(
    "--write",
    "writes",
    is_flag=True,
    help="Measure writes, too: to a new folder below URL, or a scratch file in PATH, which is removed at the end.",
)
@click.option("--cpu/--no-cpu", default=True, show_default=True, help="Measure inflating and decoding on these cores.")
@click.option(
    "--workload",
    metavar="NAME[:ACCELERATOR]",
    help="Add a workload's step time: published (cosmoflow:v100), or measured on this machine (trivial).",
)
@click.option("--name", metavar="NAME", help="Name of the tier in the card.  [default: from the URL]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order of the reads.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for card.json, tier.toml, and the rows of the phases.",
)
@click.option("--dry-run", is_flag=True, help="Print the upper bound of time, requests, bytes and cost, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the card as one JSON document on stdout.")
def command(target: str, output: Path | None, dry_run: bool, as_json: bool, **given: Any) -> int:
    """Measure the store at URL (s3, az, gs, http, https), or the disk or file system of PATH.

    \b
    penstock probe s3://bucket/train --dry-run
    penstock probe s3://bucket/train --same-region -o probe
    penstock emulate /data/sample --tier probe/tier.toml#probe-bucket-train
    penstock probe /data/train --time 30s --json

    Reads existing objects: small and large reads at rising concurrency, HEAD and LIST, until the rates stop rising or
    the store refuses requests. The result is a card: the limits with their uncertainty, and the names of the parts that
    could not be measured. A folder is probed by its largest file, with O_DIRECT.

    Exit code 0: the card is complete. 1: parts are missing (time, budget, permissions); the card names them. 3: the
    target cannot be read. 130: interrupted; the card names the missing parts.
    """  # noqa: D301 - click reads the \b, and not its spelling
    from penstock import env
    from penstock.bench.phases import Hooks
    from penstock.errors import ConfigError
    from penstock.local_paths import local_path
    from penstock.probe.endpoint import endpoint_of
    from penstock.probe.files import DiskProbe
    from penstock.probe.objects import ObjectProbe
    from penstock.probe.run import Settings
    from penstock.probe.spending import Meter, prices_of

    endpoint = endpoint_of(target, env.read())
    settings = Settings(
        time_s=given["time_s"],
        budget_usd=given["budget"],
        max_bytes=given["max_bytes"]
        if given["max_bytes"] is not None
        else (_NO_LIMIT_BYTES if endpoint.cloud == "file" else _URL_BYTES),
        writes=given["writes"],
        cpu=given["cpu"],
        workload=given["workload"],
        name=given["name"],
        seed=given["seed"],
    )
    if settings.name is not None and not settings.name.replace("-", "").isalnum():
        raise ConfigError(f"name: `{settings.name}` must contain only letters, digits and dashes", where="--name")
    if settings.workload is not None:
        from penstock.probe.step_time import check

        check(settings.workload)
    prices = prices_of(
        target,
        is_custom_endpoint=not endpoint.is_default,
        same_region=given["same_region"],
        tier="none" if endpoint.cloud in ("file", "http") and given["price_tier"] is None else given["price_tier"],
    )
    meter = Meter(prices, budget_usd=settings.budget_usd, max_bytes=settings.max_bytes, time_s=settings.time_s)
    _echo_bound(meter, settings.writes, as_json=as_json and dry_run)
    if dry_run:
        return 0
    is_path = endpoint.cloud == "file"
    place = local_path(target) if is_path else target
    shown = _Shown()
    kind: type[Probe] = DiskProbe if is_path else ObjectProbe
    probe = kind(
        place,
        settings,
        meter,
        hooks=Hooks(on_row=shown.row, on_progress=shown.on_progress),
        is_loopback=endpoint.is_loopback,
        say=shown.say,
    )
    try:
        probe.run()
    except KeyboardInterrupt:
        if probe.rows:
            _deliver(probe, output, as_json=as_json)
        raise
    card = _deliver(probe, output, as_json=as_json)
    return 1 if card.is_partial else 0


def _echo_bound(meter: Meter, writes: bool, *, as_json: bool) -> None:
    """Print the upper bounds before the first request."""
    import json

    prices = meter.prices
    if as_json:
        facts = {
            "schema_version": 1,
            "time_s": meter.time_s,
            "budget_usd": meter.budget_usd,
            "max_bytes": meter.max_bytes,
            "writes": writes,
            "read_usd": prices.read_usd,
            "write_usd": prices.write_usd,
            "egress_usd_per_gib": prices.egress_usd_per_gib,
            "prices": list(prices.used),
            "unknown_prices": list(prices.unknown),
        }
        click.echo(json.dumps(facts))
        return
    lines = [
        f"at most {format_seconds(meter.time_s)}"
        + (f", {format_bytes(meter.max_bytes)}" if meter.max_bytes < _NO_LIMIT_BYTES else "")
        + (f" and {meter.budget_usd:g} USD" if prices.is_billed else "; nothing is billed")
        + ("; writes to a new place, which is removed at the end" if writes else "; only reads")
    ]
    if prices.read_usd:
        lines.append(f"  {meter.budget_usd:g} USD are {meter.budget_usd / prices.read_usd:,.0f} reads without egress")
    if prices.egress_usd_per_gib:
        gib = meter.budget_usd / prices.egress_usd_per_gib
        lines.append(f"  or {gib:.2f} GiB of egress; pass --same-region if this machine is in the store's region")
    lines += [f"  {text}" for text in prices.used]
    lines += [f"  unknown price: {text}" for text in prices.unknown]
    click.echo("\n".join(lines), err=True)


class _Shown:
    """Progress on stderr."""

    def __init__(self) -> None:
        self._has_bar = False

    def _clear(self) -> None:
        if self._has_bar:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._has_bar = False

    def say(self, text: str) -> None:
        self._clear()
        click.echo(text, err=True)

    def on_progress(self, phase: str, workers: int, done: tuple[int, int, int]) -> None:
        if not sys.stderr.isatty():
            return
        click.echo(f"\r\x1b[K  {phase} by {workers}: {done[0]:,} requests", nl=False, err=True)
        self._has_bar = True

    def row(self, row: Row) -> None:
        self._clear()
        from penstock.probe.estimates import refused

        refusals = refused(row)
        per_s = row.last.ios_per_s or row.last.entries_per_s or 0
        click.echo(
            f"  {row.raw.get('request', row.operation.lower()):<6} x{row.workers:<4} {per_s:>10,.0f}/s"
            + (f" {format_rate(row.last.bytes_per_s):>12}" if row.last.bytes_per_s else "")
            + (f"  {refusals:,} refused" if refusals else ""),
            err=True,
        )


def _deliver(probe: Probe, output: Path | None, *, as_json: bool) -> Card:
    import msgspec

    from penstock.bench.results import provenance
    from penstock.probe.card import write

    card = probe.card()
    if output is not None:
        spec = {"bench": "probe", "kind": card.kind, **msgspec.to_builtins(probe.settings)}
        file = write(output, card, probe.rows, spec=spec, provenance=provenance())
        click.echo(f"penstock emulate DIR --tier {file}#{card.name}", err=True)
    if as_json:
        click.echo(msgspec.json.encode(card))
    else:
        click.echo(readable(card))
    return card


def readable(card: Card) -> str:
    """The card as text."""
    spent = card.spent
    usd = "" if spent["unknown_prices"] else f", {spent['usd']:.4f} USD"
    lines = [
        f"{card.name}@{card.created[:4]}: {card.url}, {card.created[:10]}, from {card.machine.cpu}, {card.machine.cores} cores",
        f"{spent['seconds']:.0f} s, {spent['read_requests'] + spent['write_requests']:,} requests,"
        f" {format_bytes(spent['bytes_read'] + spent['bytes_written'])}{usd}"
        + (f"; caches {card.cache}" if card.cache else ""),
        "",
    ]
    for what, fit in card.latency.items():
        lines.append(
            f"  {what + ' latency':22} {fit.p50_ms:.3g} ms ±{fit.p50_error:.0%}, p99 {fit.p99_ms:.3g} ms ±{fit.p99_error:.0%}"
            f" ({fit.count:,} requests)"
        )
    for one in card.limits:
        value = format_rate(one.value) if one.what.endswith("bytes") else f"{one.value:,.0f}/s"
        sign = "" if one.is_limit else "at least "
        lines.append(f"  {one.what:22} {sign}{value} ±{one.uncertainty:.1%} per {one.scope}: {one.note}")
    for burst in card.bursts:
        back = f"; {burst.regained:,.0f} came back in {burst.pause_s:.1f} s" if burst.regained is not None else ""
        lines.append(f"  {burst.what + ' burst':22} {burst.units:,.0f} ±{burst.error:,.0f} above the limit{back}")
    lines += [
        f"  {'knee of ' + what:22} {count} in flight reach 90 % of the highest rate"
        for what, count in card.knee.items()
    ]
    lines += [f"  {what:22} {value:,.0f}/s" for what, value in card.rates.items()]
    if (cpu := card.cpu) is not None:
        inflates = f"inflate {format_rate(cpu.inflate_bytes_per_s)}, " if cpu.inflate_bytes_per_s else ""
        decodes = f"decode {format_rate(cpu.decode_bytes_per_s)} per core; " if cpu.decode_bytes_per_s else ""
        rate = f"{cpu.samples_per_s:,.0f} samples/s with {cpu.threads} threads" if cpu.samples_per_s else ""
        lines.append(f"  {'cpu (' + cpu.format + ')':22} {inflates}{decodes}{rate}")
    if card.step:
        lines.append(
            f"  {'step':22} {format_seconds(card.step['step_s'])} for {card.step['batch']} samples"
            f" ({card.step['workload']}, {card.step['origin']}): asks {format_rate(card.step['bytes_per_s'])}"
        )
    lines += ["", "not seen:"] + [f"  {text}" for text in card.unseen] if card.unseen else []
    if card.is_partial:
        lines += ["missing:", *(f"  {name}: {why}" for name, why in card.missing.items())]
    return "\n".join(lines)
