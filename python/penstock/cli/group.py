# SPDX-License-Identifier: Apache-2.0
"""A click group that imports a verb only when it is called: `--help` and completion use a table instead of the modules.

Finds the module of a verb, and reports unknown verbs. Each group has its own table of verbs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """Group of the verbs in one package. Each verb is a module that exports `command`.

    Args:
        package: Package of the modules, such as `penstock.cli.bench`; the module of verb `disk-trace` is `disk_trace`.
        verbs: Verb -> description, in the order of the help.
        unlisted: Verbs that only Penstock itself starts. Help and completion do not show them.
    """

    def __init__(
        self, *args: Any, package: str, verbs: Mapping[str, str], unlisted: Sequence[str] = (), **extra: Any
    ) -> None:
        super().__init__(*args, **extra)
        self.package = package
        self.verbs = verbs
        self.unlisted = unlisted

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.verbs and cmd_name not in self.unlisted:
            return None
        command: click.Command = importlib.import_module(f"{self.package}.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        is_known = word in self.verbs or word in self.unlisted
        if not is_known and not word.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            above = ctx.command_path.partition(" ")[2]
            near = get_close_matches(word, self.verbs)
            raise click.UsageError(
                f"unknown command `{f'{above} {word}'.strip()}`." + (f" Did you mean `{near[0]}`?" if near else ""), ctx
            )
        name, command, rest = super().resolve_command(ctx, args)
        if rest and not ctx.resilient_parsing:
            from penstock.cli.renamed import renamed_arguments

            rest = renamed_arguments((*ctx.command_path.split()[1:], name or ""), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        if self.verbs:
            with formatter.section("Verbs"):
                formatter.write_dl(list(self.verbs.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Complete verbs from the table, so that pressing Tab does not import any verb."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(v, help=what) for v, what in self.verbs.items() if v.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
