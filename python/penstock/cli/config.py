# SPDX-License-Identifier: Apache-2.0
"""`penstock config`: show the effective settings and their origin, trust a folder's settings file, and keep prices."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from penstock.cli.config_prices import prices
from penstock.cli.parameters import default_map, is_harmless, settable
from penstock.config import allow, revoke
from penstock.env import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.config import Config

__all__ = ["command"]

_ORIGINS = {
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


@click.group("config")
def command() -> None:
    """Show and trust settings, and keep prices. Precedence: flag > environment > file > default."""


command.add_command(prices)


@command.command("show")
@click.option("--origin", is_flag=True, help="Show where each setting comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.pass_context
def show(ctx: click.Context, origin: bool, as_json: bool) -> None:
    """List every setting of every verb, with the value that a run without flags would use now."""
    config: Config = ctx.obj["config"]
    rows = list(_settings(ctx.find_root(), config))
    if as_json:
        document = {
            "schema_version": 1,
            "files": [layer.path for layer in config.layers],
            "not_allowed": [layer.path for layer in config.layers if not layer.is_trusted],
            "settings": rows,
        }
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    for layer in config.layers:
        note = "" if layer.is_trusted else " (not allowed: verbs refuse all but its quantities and choices)"
        click.echo(f"read {layer.path}{note}", err=True)
    verb = None
    for row in rows:
        if row["verb"] != verb:
            verb = row["verb"]
            click.echo(f"[{verb}]")
        place = f": {row['place']}" if row["place"] else ""
        place += "" if row["is_allowed"] else " (not allowed)"
        comment = f"  # {row['origin']}{place}" if origin else ""
        # Print a setting without a value as a comment, so that the output is a valid settings file.
        click.echo((f"# {row['key']} =" if row["value"] is None else f"{row['key']} = {_toml(row['value'])}") + comment)
    sys.stdout.flush()


@command.command("allow")
@click.argument("file", type=click.Path(path_type=Path), default="penstock.toml")
@click.option("--revoke", "revokes", is_flag=True, help="Withdraw consent instead.")
def allow_file(file: Path, revokes: bool) -> None:
    """Consent to a folder's own penstock.toml.

    Without consent, the file can set only quantities and choices. Consent applies only to the file's current content.
    """
    if revokes:
        click.echo(f"{file}: {revoke(read(), file)} consents withdrawn", err=True)
        return
    allow(read(), file)
    click.echo(f"{file}: allowed until it changes", err=True)


def _settings(root: click.Context, config: Config) -> Iterator[dict[str, Any]]:
    group = root.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(root):
        below = group.get_command(root, name)
        if below is not None and name != "config":
            yield from _of(below, (name,), root, default_map(config, below, (name,), asks_consent=False), config)


def _of(
    command: click.Command, verb: tuple[str, ...], parent: click.Context, defaults: dict[str, Any], config: Config
) -> Iterator[dict[str, Any]]:
    # With resilient parsing, missing arguments are not an error. The command does not run here.
    ctx = command.make_context(verb[-1], [], parent=parent, resilient_parsing=True, default_map=defaults)
    table = config.table(verb)
    for key, option in settable(command).items():
        source = ctx.get_parameter_source(str(option.name))
        place, is_allowed = "", True
        if source is ParameterSource.ENVIRONMENT:
            place = str(option.envvar or f"{ctx.auto_envvar_prefix}_{str(option.name).upper()}")
        elif source is ParameterSource.DEFAULT_MAP:
            place = table[key][1]
            is_allowed = config.trusts(place) or is_harmless(option)
        value = _plain(ctx.params.get(str(option.name)))
        origin = _ORIGINS.get(source, "default") if source else "default"
        yield {
            "verb": ".".join(verb),
            "key": key,
            "value": value,
            "origin": origin,
            "place": place,
            "is_allowed": is_allowed,
        }
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None:
                yield from _of(below, (*verb, name), ctx, defaults.get(name, {}), config)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else str(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False)
