# SPDX-License-Identifier: Apache-2.0
"""`penstock verify`: read a staged copy again from the disk or the store, and compare it with its records."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli.parameters import BYTES, SECONDS, patterns, with_units
from penstock.cli.progress import Follow, Log, options
from penstock.cli.signals import stopped

__all__ = ["command"]

# Maximum number of printed files. The JSON output contains all.
_MAX_SHOWN = 20


@click.command("verify")
@click.argument("destination", metavar="DST")
@click.option(
    "--repair", is_flag=True, help="Fetch damaged and missing objects again from their source, then verify them."
)
@click.option(
    "--quick", is_flag=True, help="For a copy in a store: trust the size, digest and version that the store reports."
)
@patterns
@click.option(
    "--journal",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Journal folder of `penstock stage`, for --repair in a store.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    metavar="N",
    help="Maximum number of requests in flight while repairing.",
)
@click.option(
    "--memory",
    type=BYTES,
    default="1GiB",
    show_default=True,
    metavar="SIZE",
    help="Maximum number of bytes in flight while repairing.",
)
@click.option("--timeout", type=SECONDS, metavar="TIME", help="Time limit of the whole command.")
@click.option(
    "--retry-timeout", type=SECONDS, metavar="TIME", help="Longest time to retry one request that the store throttles."
)
@options
@click.option("--quiet", is_flag=True, help="Show no progress; same as --progress none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line at the end.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    destination: str,
    *,
    repair: bool,
    style: str,
    log: str | None,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Read what `penstock stage` wrote to DST, a folder or a store, and compare sizes and digests with its records.

    Bytes are read from the disk or the store, not from the page cache. Files that were not staged are reported and not
    touched. --repair fetches damaged and missing objects again from their source, at the staged version; if the source
    is missing or was replaced, the file is not changed.

    --select and --exclude match paths below DST; other files are not read, repaired or reported.

    An unfinished stage (killed, still running, or with failed objects) is reported: the files may be correct, but some
    are missing.

    Exit code 0: all objects are correct. 1: some are damaged or missing; they are listed. 3: DST contains no staged
    copy.
    """
    from penstock import stage

    job = stage.start_verify(destination, repair=repair, **with_units(ctx.command, settings))
    with Log(log) as log_file:
        log_file.write("start", f"verify {destination}{' --repair' if repair else ''}")
        try:
            found = Follow(style="none" if quiet else style, log=log_file, verb="verify").wait(job)
        except KeyboardInterrupt as stop:
            what, code = stopped(stop)
            click.echo(f"{what}; repairs are recorded, and all other files are unchanged", err=True)
            log_file.write("end", what)
            return code
        for wrong in found["failed"]:
            log_file.write("failed", f"[{wrong['problem']}] {wrong['file']}: {wrong['detail']}")
        for share in found["unfinished"]:
            log_file.write("unfinished", _unfinished(share))
        log_file.write("end", _readable(found))
    for wrong in found["failed"][:_MAX_SHOWN]:
        click.echo(
            f"{click.style(wrong['problem'], fg='red', bold=True)}: {wrong['file']}: {wrong['detail']}", err=True
        )
        if "repair_error" in wrong:
            click.echo(f"  not repaired: {wrong['repair_error']}", err=True)
    if (left := len(found["failed"]) - _MAX_SHOWN) > 0:
        click.echo(f"... and {left:,} more (--json lists all)", err=True)
    if found["failed"] and not repair:
        click.echo("  hint: run penstock verify DST --repair to download only these again", err=True)
    for share in found["unfinished"]:
        click.echo(f"{click.style('unfinished', fg='red', bold=True)}: {_unfinished(share)}", err=True)
    if found["unfinished"]:
        click.echo("  hint: run the same penstock stage again; it moves only what is missing", err=True)
    click.echo(json.dumps(found) if as_json else _readable(found))
    return 1 if found["failed"] or found["unfinished"] else 0


def _unfinished(share: dict[str, Any]) -> str:
    node, nodes = share["share"].split("-of-")
    of_node = f" of node {node} of {nodes}" if nodes != "1" else ""
    if share["failed"] is None:
        return f"the last stage from {share['source']}{of_node} has not finished; objects are missing"
    return f"the last stage from {share['source']}{of_node} could not copy {share['failed']:,} objects"


def _readable(found: dict[str, Any]) -> str:
    from penstock.units import format_bytes, format_rate, format_seconds

    rate = format_rate(found["bytes"] / max(found["seconds"], 1e-9))
    lines = [
        f"{found['destination']}: {found['objects']:,} objects, {format_bytes(found['bytes'])} read in {format_seconds(found['seconds'])} ({rate})",
        f"  {found['ok']:,} right, {len(found['failed']):,} wrong, {len(found['repaired']):,} repaired",
    ]
    if found["unexpected_total"]:
        names = ", ".join(found["unexpected"][:3]) + (", ..." if found["unexpected_total"] > 3 else "")
        lines.append(f"  {found['unexpected_total']:,} unexpected files (not staged by Penstock): {names}")
    return "\n".join(lines)
