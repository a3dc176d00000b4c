# SPDX-License-Identifier: Apache-2.0
"""Additional parameter types for click, and settings files that set the defaults of flags.

A verb needs no code for its settings: the flag `--max-in-flight` of `stage` is also the key `max-in-flight` in
`[stage]` and the variable PENSTOCK_STAGE_MAX_IN_FLIGHT. click itself implements the precedence flag > environment >
file > default if it gets a default map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.config import needs_consent
from penstock.errors import ConfigError
from penstock.units import parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.config import Config

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # in the oldest supported click, ParamType is generic only for type checkers

__all__ = ["BYTES", "RATE", "SECONDS", "Several", "default_map", "is_harmless", "patterns", "settable", "with_units"]


class _Quantity(_ParamType):
    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            self.fail(f"{error}" + (f"; {error.hint}" if error.hint else ""), param, ctx)


class Several(_ParamType):
    """Comma-separated values of one type, such as `1,8,32` or `256KiB,1MiB`. Converts to a tuple. An empty list is an
    error.
    """

    def __init__(self, one: click.ParamType[Any] | type, name: str) -> None:
        self.name = name
        self.one = click.types.convert_type(one)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        texts = [str(text).strip() for text in (value if isinstance(value, list) else str(value).split(","))]
        if not all(texts):
            self.fail(f"`{value}` is not a list such as 1,8,32", param, ctx)
        return tuple(self.one.convert(text, param, ctx) for text in texts)


BYTES = _Quantity("bytes", parse_bytes)
RATE = _Quantity("rate", parse_rate)
SECONDS = _Quantity("duration", parse_seconds)


def with_units(command: click.Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verb's flag values under the names of the Python parameters. The parameter names end in their unit:
    `--timeout` sets `timeout_s`, and `--memory` sets `memory_bytes`.
    """
    unit = {id(SECONDS): "_s", id(BYTES): "_bytes"}
    kinds = {option.name: id(option.type) for option in command.params}
    return {name + unit.get(kinds[name], ""): value for name, value in values.items()}


def patterns(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --select and --exclude, for verbs that read the objects of a dataset."""
    select = click.option(
        "--select",
        multiple=True,
        metavar="PATTERN",
        help="Select only keys that match; repeatable. A pattern with `/` matches the whole key, else the last part; ** crosses folders.",
    )
    exclude = click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Exclude keys that match; repeatable; applied after --select.",
    )
    return select(exclude(command))


def settable(command: click.Command) -> dict[str, click.Option]:
    """Return the flags of a verb that a file or the environment may set, by key.

    Repeatable flags are excluded, because they apply to one run only.
    """
    options = [
        p
        for p in command.params
        if isinstance(p, click.Option) and p.expose_value and not p.is_eager and not p.multiple
    ]
    return {
        long[0].removeprefix("--"): o for o in options if (long := [name for name in o.opts if name.startswith("--")])
    }


def is_harmless(option: click.Option) -> bool:
    """Whether a settings file that the user does not trust is allowed to set the option. True for a quantity or a fixed
    choice.

    False for all other options: a text or a path could be a program, an endpoint or a file to overwrite, and a flag
    could grant a permission.
    """
    kind = option.type.one if isinstance(option.type, Several) else option.type
    kinds = (_Quantity, click.types.IntParamType, click.types.FloatParamType, click.Choice)
    return isinstance(kind, kinds) and not option.is_flag


def default_map(
    config: Config, command: click.Command, verb: tuple[str, ...], *, asks_consent: bool = True
) -> dict[str, Any]:
    """Build click's default map for a verb: its own settings, and the settings of its subcommands under their names.

    Args:
        asks_consent: Raise an error for settings that a file may set only with the user's consent.
    Raises:
        ConfigError: A file sets an unknown option, an option that requires consent, or a value that is invalid for the
            flag.
    """
    from penstock.cli.renamed import new_key

    options = settable(command)
    found: dict[str, Any] = {}
    for key, (value, path) in config.table(verb).items():
        option = options.get(new_key(verb, key))
        where = f"{path}: [{'.'.join(verb)}] {key}"
        if option is None:
            known = ", ".join(sorted(options)) or "none"
            raise ConfigError(
                f"{where} is not a setting of `penstock {' '.join(verb)}`", hint=f"use one of its settings: {known}"
            )
        if asks_consent and not config.trusts(path) and not is_harmless(option):
            raise needs_consent(path, f"[{'.'.join(verb)}] {key}")
        try:
            option.type_cast_value(click.Context(command), value)
        except click.BadParameter as error:
            raise ConfigError(f"{where} = {value!r}: {error.message}") from error
        found[str(option.name)] = value
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if not config.mentions((*verb, name)):  # do not import a verb without settings in any file
                continue
            below = command.get_command(context, name)
            if below is not None:
                found[name] = default_map(config, below, (*verb, name), asks_consent=asks_consent)
    return found
