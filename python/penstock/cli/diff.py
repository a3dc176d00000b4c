# SPDX-License-Identifier: Apache-2.0
"""`penstock diff`: compare two datasets by their manifests."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli.parameters import SECONDS, patterns

__all__ = ["command"]

# Maximum number of printed names per kind of difference. The JSON output contains all names.
_SHOWN = 20


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@patterns
@click.option("--timeout", type=SECONDS, metavar="TIME", help="Time limit of the whole command (10min, 2h).")
@click.option(
    "--retry-timeout", type=SECONDS, metavar="TIME", help="Longest time to retry one request that the store throttles."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(
    a: str,
    b: str,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    timeout: float | None,
    retry_timeout: float | None,
    as_json: bool,
) -> int:
    """Compare the datasets A and B by logical name: what was added, removed and changed.

    A and B are each a manifest, a staged folder, or a URL or folder to list. No object is opened. Objects are compared
    by digest if both have one, otherwise by version if both have one, otherwise by size. The output names the
    criterion. A staged copy records its source, so a decompressed copy can be compared with its compressed source.

    Exit code 0: A and B are equal. 1: they differ.
    """
    from penstock import stage

    found = stage.diff(a, b, timeout_s=timeout, retry_timeout_s=retry_timeout, select=select, exclude=exclude)
    click.echo(json.dumps(found) if as_json else _readable(found))
    return 0 if found["is_same"] else 1


def _readable(found: dict[str, Any]) -> str:
    lines = [
        f"{side}  {found[side]['url']}: {found[side]['objects']:,} objects ({found[side]['read_as']})" for side in "ab"
    ]
    for sign, kind in (("-", "removed"), ("+", "added"), ("~", "changed")):
        entries = found[kind]
        shown = [f"{e['name']}  ({e['reason']})" if kind == "changed" else e for e in entries[:_SHOWN]]
        lines += [click.style(f"{sign} {text}", fg={"-": "red", "+": "green", "~": "yellow"}[sign]) for text in shown]
        if len(entries) > _SHOWN:
            lines.append(f"{sign} ... and {len(entries) - _SHOWN:,} more {kind} (--json lists all)")
    evidence = [
        f"{found[f'same_by_{by}']:,} by {by}" for by in ("digest", "version", "size", "name") if found[f"same_by_{by}"]
    ]
    lines.append(
        f"{len(found['added']):,} added, {len(found['removed']):,} removed, {len(found['changed']):,} changed,"
        f" {found['same']:,} the same" + (f" ({', '.join(evidence)})" if evidence else "")
    )
    return "\n".join(lines)
