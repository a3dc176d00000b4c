# SPDX-License-Identifier: Apache-2.0
"""`penstock index`: list a dataset once and write its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import SECONDS, patterns

if TYPE_CHECKING:
    import penstock

__all__ = ["command"]


@click.command("index")
@click.argument("url", metavar="URL")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="File for the manifest."
)
@click.option(
    "--format",
    "written_as",
    type=click.Choice(["json", "parquet"]),
    help="Format of the manifest.  [default: by FILE's suffix; without one, Parquet from 100,000 objects on]",
)
@patterns
@click.option("--records", is_flag=True, help="Read each object once, and store the offsets of its records.")
@click.option(
    "--dry-run", is_flag=True, help="With --records: print the number of bytes to read and the cost; read nothing."
)
@click.option("--timeout", type=SECONDS, metavar="TIME", help="Time limit of the whole command (10min, 2h).")
@click.option(
    "--retry-timeout", type=SECONDS, metavar="TIME", help="Longest time to retry one request that the store throttles."
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def command(
    url: str,
    output: Path | None,
    written_as: str | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    records: bool,
    dry_run: bool,
    timeout: float | None,
    retry_timeout: float | None,
    as_json: bool,
) -> int:
    """List the dataset at URL once, and print a summary of its objects.

    URL is a folder of objects or one object: s3://bucket/prefix/, file:///path/ or a plain path; or a pattern, such as
    s3://bucket/train/*.gz (quote it). No object is opened: codec and record format are taken from the names. With -o,
    the list is written as a manifest. `penstock stage --manifest` and `penstock.open(url, manifest=...)` read it
    instead of listing again, and read exactly the listed versions.

    With --records, each object without an index is read once. The offsets of its records are stored in PENSTOCK_CACHE,
    and loaders use them to read single records. The bytes to read and their cost are printed first; with --dry-run,
    nothing else is done. An object is not read if a stage has recorded its offsets, or if another program wrote an
    index (DALI's .idx, wids' index.json).
    """
    from penstock import stage
    from penstock.errors import ConfigError

    if dry_run and not records:
        raise ConfigError("--dry-run: requires --records, because a listing does not read objects", where="--dry-run")
    if records and (select or exclude):
        raise ConfigError(
            "--records: cannot be combined with --select or --exclude, because it indexes all of URL", where="--records"
        )

    facts = stage.index(
        url,
        output,
        timeout_s=timeout,
        retry_timeout_s=retry_timeout,
        select=select,
        exclude=exclude,
        written_as=written_as,
    )
    if records:
        import penstock

        dataset = penstock.open(url)
        facts |= _scan(dataset)
        if not as_json:
            click.echo(_announced(facts), err=not dry_run)
        if not dry_run:
            counted = dataset.index()
            facts |= {"records": counted.samples, "records_indexed": counted.is_indexed}
    click.echo(json.dumps(facts) if as_json else _readable(facts))
    return 0


def _scan(dataset: penstock.Dataset) -> dict[str, Any]:
    """Return the source of the record offsets. If the offsets have no source yet, also return the bytes and the cost of
    a scan of all objects.
    """
    from penstock.price.estimates import estimate_stage

    rung = dataset.indexed_rung()
    source = dataset.source
    requests, size = (0, 0) if rung else (source.requests, source.size_bytes)
    money = estimate_stage({"source": dataset.url, "share_requests": [requests], "shares": [size]})["money"]
    return {"rung": rung or "scan", "scan_bytes": size, "scan_requests": requests, "scan_money": money}


def _announced(facts: dict[str, Any]) -> str:
    from penstock.units import format_bytes

    if facts["rung"] != "scan":
        return f"record counts are known without a scan (source: `{facts['rung']}`)"
    text = f"a scan reads {format_bytes(facts['scan_bytes'])} in {facts['scan_requests']:,} requests"
    money = facts["scan_money"]
    if money is None:
        return text
    text += f": ${money['requests_usd']:,.2f} for the requests ({money['tier']})"
    if money["egress_usd"] is not None:
        text += f", and ${money['egress_usd']:,.2f} if the bytes leave the cloud"
    return text


def _readable(facts: dict[str, Any]) -> str:
    from penstock.units import format_bytes

    def counted(kinds: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in kinds.items())

    lines = [
        f"{facts['url']}: {facts['objects']:,} objects, {format_bytes(facts['bytes'])}",
        f"  codecs   {counted(facts['codecs'])}",
        f"  formats  {counted(facts['formats'])}",
        f"  dataset  {facts['fingerprint']}",
    ]
    if "records" in facts:
        kept = "indexed" if facts["records_indexed"] else "counted, but the cache could not be written"
        lines.append(f"  records  {facts['records']:,}, {kept}")
    if facts["manifest"]:
        lines.append(f"  manifest {facts['manifest']} ({facts['format']})")
    return "\n".join(lines)
