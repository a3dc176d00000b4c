# SPDX-License-Identifier: Apache-2.0
"""`penstock report`: make a page with a verdict from a folder of results, of Penstock or another tool."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["command"]


@click.command("report")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the page.  [default: report.html in DIR, or beside DIR if it is a file]",
)
@click.option(
    "--pictures", type=click.Path(path_type=Path, file_okay=False), help="Also write each chart to this folder."
)
@click.option(
    "--picture-format",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="File format of --pictures.",
)
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the rows as elbencho's CSV.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the report as one JSON document on stdout; write no page without --output.",
)
def command(
    path: Path, output: Path | None, pictures: Path | None, picture_format: str, csv_file: Path | None, as_json: bool
) -> None:
    """Create a page of results that can be opened offline. The verdict is computed again from the raw rows.

    DIR is a folder that `penstock bench`, `train` or `demo` wrote, or a folder of elbencho, fio, IOR or mdtest results.
    """
    from penstock.errors import ConfigError

    if (path / "comparison.json").is_file():
        if pictures or csv_file or as_json:
            raise ConfigError(
                f"{path}: a comparison of paths supports only an HTML page; its data is in comparison.json"
            )
        _of_comparison(path, output or path / "report.html")
        return
    if (path / "scaling.json").is_file():
        _of_scaling(path, output or path / "report.html", pictures, picture_format, csv_file, as_json=as_json)
        return
    import msgspec

    from penstock.bench.importers.read_any import read_any
    from penstock.report.sweep import summarise
    from penstock.report.train_section import read_training_runs, train_charts

    results = read_any(path)
    if not results.rows:
        from penstock.errors import NotFound

        raise NotFound(f"{path} contains no rows", where=str(path))
    report = summarise(results)
    training = read_training_runs(path)
    if as_json:
        click.echo(msgspec.json.encode(report))
    if output is not None or not as_json:
        from penstock.report.document import write_whole
        from penstock.report.sweep_page import sweep_page

        page = output or (path / "report.html" if path.is_dir() else path.with_name("report.html"))
        write_whole(sweep_page(report, results.rows, training), page)
        click.echo(f"{report.headline}. {report.lead}", err=True)
        _print(page, as_json=as_json)
    if pictures is not None:
        from penstock.report.image_export import export_images
        from penstock.report.sweep_charts import sweep_charts

        charts = {**sweep_charts(report.groups, results.rows), **train_charts(training)}
        for file in export_images(charts, pictures, picture_format):
            _print(file, as_json=as_json)
    if csv_file is not None:
        from penstock.bench.importers.elbencho import render
        from penstock.report.document import write_whole

        write_whole(render(results.rows), csv_file)
        _print(csv_file, as_json=as_json)


def _print(file: Path, *, as_json: bool) -> None:
    """Print the name of the written file on stdout for scripts; on stderr if stdout has JSON."""
    click.echo(str(file), err=as_json)


def _of_comparison(folder: Path, page: Path) -> None:
    from penstock.report.comparison import read
    from penstock.report.comparison_page import write_page

    write_page(read(folder / "comparison.json"), page)
    click.echo(str(page))


def _of_scaling(
    folder: Path, page: Path, pictures: Path | None, picture_format: str, csv_file: Path | None, *, as_json: bool
) -> None:
    """Page of a sweep of `bench app`. Its JSON document is the file itself."""
    from penstock.bench.app.document import load
    from penstock.errors import ConfigError
    from penstock.report.document import write_whole
    from penstock.report.scaling_page import scaling_charts, scaling_page

    if csv_file or as_json:
        raise ConfigError(f"{folder}: a scaling sweep supports only an HTML page; its data is in scaling.json")
    found = load(folder)
    write_whole(scaling_page(found), page)
    click.echo(str(page))
    if pictures is not None:
        from penstock.report.image_export import export_images

        for file in export_images(scaling_charts(found.summary), pictures, picture_format):
            click.echo(str(file))
