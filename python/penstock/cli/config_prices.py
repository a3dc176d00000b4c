# SPDX-License-Identifier: Apache-2.0
"""`penstock config prices`: list the prices with their dates, and refresh Azure's from its retail price service."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from penstock.price.azure_retail import Refreshed
    from penstock.price.book import Price

__all__ = ["prices"]


@click.group("prices")
def prices() -> None:
    """List and refresh the prices from which costs are computed."""


@prices.command("show")
@click.argument("pattern", required=False)
@click.option("--region", help="List only prices of this region.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def show(pattern: str | None, region: str | None, as_json: bool) -> None:
    """List all prices, or those whose item contains PATTERN, in order of precedence.

    The user's own prices come first: --prices FILE, otherwise prices.toml in the folder of the user's settings.

    \b
    Examples:
      penstock config prices show h100
      penstock --prices ours.toml config prices show --region eastus
    """  # noqa: D301 - click reads the \b, and not its spelling
    from penstock.errors import NotFound
    from penstock.price.book import STALE_AFTER_MONTHS, load, own_prices
    from penstock.price.override import own_file

    own, today = own_prices(), _today()
    rows = [
        {**_plain(price), "age_months": price.age_months(today), "is_own": index < len(own)}
        for index, price in enumerate(load().price)
        if (not pattern or pattern.casefold() in price.item.casefold())
        and (region is None or price.holds_in(region) or region.casefold() in price.region.casefold())
    ]
    if not rows:
        raise NotFound(
            f"no price matches {' in '.join(filter(None, (pattern, region)))}",
            hint="leave out the pattern and the region to list all prices",
        )
    file = own_file()
    if as_json:
        document = {"schema_version": 1, "own_file": str(file) if file else None, "prices": rows}
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    click.echo(f"own prices: {file}" if file else "own prices: none", err=True)
    for row in rows:
        old = f", {row['age_months']} months old" if row["age_months"] > STALE_AFTER_MONTHS else ""
        mark = "own  " if row["is_own"] else ""
        click.echo(f"{mark}{_amount(row)}  {row['item']}  {row['region']}  ({row['as_of']}{old}; {row['confidence']})")
    stale = sum(row["age_months"] > STALE_AFTER_MONTHS for row in rows)
    if stale:
        click.echo(
            f"{stale} of {len(rows)} prices are older than {STALE_AFTER_MONTHS} months: check them before you spend",
            err=True,
        )


@prices.command("refresh")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Price file to write.  [default: that of --prices, else prices.toml in the folder of the user's settings]",
)
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="NAME",
    help="Azure's name of a region, such as eastus; repeatable.  [default: southcentralus, eastus, westus, westus2]",
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="NAME",
    help="Machine type, such as Standard_ND40rs_v2; repeatable.  [default: those of the bundled prices]",
)
@click.option("--endpoint", metavar="URL", help="Address of the price service.  [default: Azure's]")
@click.option(
    "--timeout", type=SECONDS, default="5min", show_default=True, help="Time for all requests, waits included."
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def refresh(
    output: Path | None,
    regions: tuple[str, ...],
    machines: tuple[str, ...],
    endpoint: str | None,
    timeout: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write Azure's current prices of machines, block blobs and egress to your price file.

    Needs no key. Your own prices in the file stay, and keep their precedence; comments in the file do not. Prices that
    the service does not have are listed, and the bundled ones still hold.

    \b
    Examples:
      penstock config prices refresh --dry-run
      penstock config prices refresh --machine Standard_ND96isr_H200_v5
    """  # noqa: D301 - click reads the \b, and not its spelling
    from penstock.errors import ConfigError, redact
    from penstock.price import azure_retail
    from penstock.price.book import bundled, load, read_prices
    from penstock.price.override import own_file, with_refreshed

    target = output or own_file() or _default()
    if target is None:
        raise ConfigError("HOME and XDG_CONFIG_HOME are not set", hint="name the price file with --output")
    before = read_prices(target) if target.is_file() else ()
    found = azure_retail.refresh(
        _today(),
        regions=regions or azure_retail.REGIONS,
        machines=machines or azure_retail.MACHINES,
        endpoint=endpoint or azure_retail.ENDPOINT,
        timeout_s=timeout,
        on_query=lambda what: click.echo(redact(what), err=True),
        on_wait=lambda seconds: click.echo(f"the service throttles: waiting {seconds:g} s", err=True),
    )
    changes = _changes(found, load())
    content = with_refreshed(before, found.prices, azure_retail.SOURCE, bundled())
    is_written = bool(found.prices) and not dry_run
    if is_written:
        _write(target, content)
    if as_json:
        document = {
            "schema_version": 1,
            "file": str(target) if is_written else None,
            "requests": found.requests,
            "changes": changes,
            "missing": found.missing,
        }
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        _print(changes, found.missing)
    if is_written:
        click.echo(f"{target}: {len(found.prices)} refreshed prices, {len(content) - len(found.prices)} kept", err=True)
    else:
        click.echo(f"{target}: not written, " + ("as asked" if found.prices else "no price was found"), err=True)
    if not found.prices:
        raise click.exceptions.Exit(1)


def _today() -> dt.date:
    return dt.datetime.now(tz=dt.UTC).date()


def _default() -> Path | None:
    from penstock.env import read
    from penstock.price.override import default_file

    return default_file(read())


def _plain(price: Price) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(price)  # `to_builtins` would leave out defaults


def _amount(row: dict[str, Any]) -> str:
    per = f"{row['per']:,} {row['unit']}s" if row["per"] > 1 else row["unit"]
    return f"{row['value']:g} {row['currency']}/{per}"


def _changes(found: Refreshed, known: Any) -> list[dict[str, Any]]:
    """Return the refreshed prices, each with the earlier price in the same region (None if there was no earlier
    price).
    """
    rows = []
    for price in found.prices:
        held = next((p for p in known.price if p.item == price.item and p.holds_in(price.region)), None)
        rows.append({**_plain(price), "was": held.value * price.per / held.per if held else None})
    return rows


def _print(changes: list[dict[str, Any]], missing: list[str]) -> None:
    for row in changes:
        was = row["was"]
        if was is None:
            change = "new"
        elif abs(row["value"] - was) < 1e-9:
            change = "unchanged"
        else:
            change = f"was {was:g}" + (f", {row['value'] / was - 1:+.0%}" if was else "")
        click.echo(f"{_amount(row)}  {row['item']}  {row['region']}  ({change})")
    for reason in missing:
        click.echo(f"missing: {reason}", err=True)


def _write(file: Path, content: tuple[Price, ...]) -> None:
    from penstock.atomic_file import atomic_file
    from penstock.price.book import to_toml

    comment = (
        "Own prices: they take precedence over the bundled ones. Add yours anywhere; `penstock config prices refresh`\n"
        "replaces only prices whose source is the Azure Retail Prices API, and removes comments."
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as out:
        out.write(to_toml(content, comment).encode())
