# SPDX-License-Identifier: Apache-2.0
"""`penstock study list`: list the studies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from penstock.cli.study.folder import studies_option

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["command"]


@click.command("list")
@studies_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")
def command(studies: Path | None, as_json: bool) -> None:
    """List the studies: the question of each, its parts, and what they need here.

    \b
    penstock study list
    """  # noqa: D301 - click's \b keeps the line breaks
    from penstock.study.run import lacks
    from penstock.study.spec import list_studies, studies_folder

    found = list_studies(studies_folder(studies))
    if as_json:
        rows = [
            {
                "name": study.name, "letter": study.about.letter, "title": study.about.title,
                "question": study.about.question, "publication": study.about.publication, "sizes": list(study.sizes),
                "parts": [{"name": part.name, "what": part.what, "duration": part.duration, "lacks": lacks(part, "small")} for part in study.parts],
                "folder": str(study.folder),
            }
            for study in found
        ]  # fmt: skip
        click.echo(json.dumps({"schema_version": 1, "studies": rows}))
        return
    for study in found:
        click.echo(f"{study.about.letter}  {click.style(study.name, bold=True)}: {study.about.title}")
        click.echo(f"   {study.about.question}")
        click.echo(f"   {study.about.publication}; sizes {', '.join(study.sizes)}")
        for part in study.parts:
            missing = lacks(part, "small")
            click.echo(f"   - {part.name}: {part.what}" + (f" (missing here: {', '.join(missing)})" if missing else ""))
