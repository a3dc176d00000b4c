# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/cli.md from the commands' own help; `--check` exits 1 if the page is stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.app import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/cli.md"
_HEAD = """<!-- Written by tools/generate_cli_reference.py (`make generate`). Do not edit. -->

# The command line

A flag `--max-in-flight` of `penstock stage` is also the key `max-in-flight` in `[stage]` of a [settings file](environment.md#settings-files)
and the variable `PENSTOCK_STAGE_MAX_IN_FLIGHT`. Flag > environment > file > default. Data goes to stdout, messages to stderr.
The meaning of exit codes is in [exit codes](exit-codes.md).
"""


def page() -> str:
    """The whole page, rendered at a fixed width so that it does not depend on the terminal."""
    parts = [_HEAD]
    parts += [
        f"{'#' * (2 + depth)} `{name}`\n\n```text\n{text}\n```\n"
        for name, depth, text in _helps(penstock, "penstock", None)
    ]
    return "\n".join(parts)


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, int, str]]:
    context = click.Context(
        command,
        info_name=name.rpartition(" ")[2],
        parent=parent,
        terminal_width=100,
        max_content_width=100,
        help_option_names=["-h", "--help"],
    )
    yield name, name.count(" "), command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from _helps(found, f"{name} {below}", context)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print("docs/reference/cli.md is stale: run `make generate`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
