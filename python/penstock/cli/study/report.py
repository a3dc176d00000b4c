# SPDX-License-Identifier: Apache-2.0
"""`penstock study report`: write the report of a study from its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.wrapping import wrap_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.study.result import StudyResult
    from penstock.study.table import Row

__all__ = ["command", "show", "write_reports"]


@click.command("report")
@click.argument("path", metavar="DIR|NAME", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for report.md and report.html.  [default: the folder of the results]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON document on stdout.")
def command(path: Path, output: Path | None, as_json: bool) -> None:
    """Write report.md and report.html from the results of `penstock study run`. Nothing is measured.

    DIR is the folder of the results. NAME is the name of a study whose results are in runs/studies/NAME.

    \b
    penstock study report runs/studies/cosmoflow-staged
    """  # noqa: D301 - click's \b keeps the line breaks
    import shutil

    from penstock.study.result import RESULTS, read_result

    named = Path("runs/studies") / path
    folder = named if not (path / RESULTS).is_file() and (named / RESULTS).is_file() else path
    result = read_result(folder)
    place = output or folder
    place.mkdir(parents=True, exist_ok=True)
    files = write_reports(result, place)
    show(result, files, as_json=as_json, width=shutil.get_terminal_size((100, 24)).columns)


def write_reports(result: StudyResult, folder: Path) -> list[Path]:
    """Write both reports into a folder. Without the packages for charts, write only Markdown, and print a message."""
    from penstock.errors import MissingPackage
    from penstock.report.document import write_whole
    from penstock.study.markdown import markdown
    from penstock.study.page import study_page

    files = [folder / "report.md"]
    write_whole(markdown(result), files[0])
    try:
        write_whole(study_page(result), folder / "report.html")
        files.append(folder / "report.html")
    except MissingPackage as error:
        click.echo(f"report.html is left out: {error}" + (f" ({error.hint})" if error.hint else ""), err=True)
    return files


def show(result: StudyResult, files: Sequence[Path], *, as_json: bool, width: int) -> None:
    """Print the answer, the figures and the names of the reports. With `as_json`, print the results as JSON on
    stdout.
    """
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({**msgspec.to_builtins(result), "reports": [str(file) for file in files]}))
        return
    from penstock.study.markdown import score
    from penstock.study.table import all_claims, groups, rows

    click.echo(click.style(result.answer, bold=True))
    found = rows(result)
    for title, members in groups(found).items():
        click.echo("")
        click.echo(click.style(title, bold=True))
        for line in _grid(members, width):
            click.echo(line)
    claims = all_claims(result)
    missed = [claim for claim in claims if claim.holds is False]
    tried = [claim for claim in claims if claim.holds is not None]
    click.echo("")
    if text := score(found):
        click.echo(text)
    click.echo(f"{len(tried) - len(missed)} of {len(tried)} claims hold")
    for claim in missed:
        click.echo(f"  does not hold: {claim.claim}: {claim.here}")
    for part in result.parts:
        for text in part.result.not_measured:
            click.echo(f"  not measured: {text}")
    for file in files:
        click.echo(str(file))


def _grid(members: Sequence[Row], width: int) -> Iterator[str]:
    from penstock.study.table import COLUMNS

    lines: list[tuple[str, ...]] = [("figure", *COLUMNS)]
    for row in members:
        cells = [getattr(row, column) for column in COLUMNS]
        lines.append((row.label, *("–" if cell is None else cell.text for cell in cells)))
    widths = [max(len(line[at]) for line in lines) for at in range(5)]
    widths[0] = max(12, min(widths[0], width - sum(widths[1:]) - 8))
    for line in lines:
        label, *more = wrap_line(line[0], widths[0], 2)
        rest = "  ".join(cell.rjust(size) for cell, size in zip(line[1:], widths[1:], strict=True))
        yield f"{label.ljust(widths[0])}  {rest}".rstrip()
        yield from more
