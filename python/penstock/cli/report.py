# SPDX-License-Identifier: Apache-2.0
"""`penstock report`: make a page with a verdict from a folder of results, of Penstock or another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from penstock.bench.results import RunRecord
    from penstock.bench.rows import Results, Row

__all__ = ["command"]


@click.command("report")
@click.argument("paths", metavar="DIR...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the page.  [default: report.html in DIR, or beside DIR if it is a file; in this folder for several]",
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
    paths: tuple[Path, ...],
    output: Path | None,
    pictures: Path | None,
    picture_format: str,
    csv_file: Path | None,
    as_json: bool,
) -> None:
    """Create a page of results that can be opened offline. The verdict is computed again from the raw rows.

    DIR is a folder that `penstock bench`, `train`, `demo` or `study` wrote, or a folder of elbencho, fio, IOR or mdtest
    results. Several folders are compared on one page: all others are compared with the first.

    \b
    Examples:
      penstock report runs/one --output one.html
      penstock report runs/one runs/two runs/three --output compared.html
    """  # noqa: D301 - click reads the \b, and not its spelling
    from penstock.errors import ConfigError

    if len(paths) > 1:
        page = output or (None if as_json else Path("report.html"))
        _of_rows(_compared(paths), [], page, pictures, picture_format, csv_file, as_json=as_json)
        return
    (path,) = paths
    if path.suffix == ".toml":
        raise ConfigError(f"{path} is not a folder of results", hint=f"run `penstock plan {path} --output plan.html`")
    if (path / "results.json").is_file():
        _of_study(path, output, pictures, csv_file, as_json=as_json)
        return

    if (path / "comparison.json").is_file():
        if pictures or csv_file or as_json:
            raise ConfigError(
                f"{path}: a comparison of paths can be written only as an HTML page; its data is in comparison.json"
            )
        _of_comparison(path, output or path / "report.html")
        return
    if (path / "scaling.json").is_file():
        _of_scaling(path, output or path / "report.html", pictures, picture_format, csv_file, as_json=as_json)
        return
    if (path / "net.json").is_file():
        if pictures or csv_file or as_json:
            raise ConfigError(
                f"{path}: a network benchmark can be written only as an HTML page; its data is in net.json"
            )
        _of_net(path, output or path / "report.html")
        return
    from penstock.bench.importers.read_any import read_any
    from penstock.report.train_section import read_training_runs

    results = read_any(path)
    if not results.rows:
        from penstock.errors import NotFound

        raise NotFound(f"{path} contains no rows", where=str(path))
    page = output or (None if as_json else path / "report.html" if path.is_dir() else path.with_name("report.html"))
    _of_rows(results, read_training_runs(path), page, pictures, picture_format, csv_file, as_json=as_json)


def _compared(paths: tuple[Path, ...]) -> Results:
    """Return the rows of several folders. The label of each row starts with the name of its folder."""
    import msgspec

    from penstock.bench.importers.read_any import read_any
    from penstock.bench.rows import Results
    from penstock.errors import ConfigError, NotFound

    names = _short_names(paths)
    if len(set(names)) < len(names):
        raise ConfigError("the same folder is given twice", hint="name each folder once")
    rows: list[Row] = []
    for name, path in zip(names, paths, strict=True):
        found = read_any(path).rows
        if not found:
            raise NotFound(f"{path} contains no rows", where=str(path))
        rows += [msgspec.structs.replace(row, label=f"{name}: {row.label}" if row.label else name) for row in found]
    return Results(rows=tuple(rows))


def _short_names(paths: tuple[Path, ...]) -> list[str]:
    """Return the shortest suffix of each path that makes all suffixes different."""
    parts = [path.absolute().parts for path in paths]
    longest = max(map(len, parts))
    for count in range(1, longest + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names


def _of_rows(
    results: Results,
    training: list[RunRecord],
    page: Path | None,
    pictures: Path | None,
    picture_format: str,
    csv_file: Path | None,
    *,
    as_json: bool,
) -> None:
    import msgspec

    from penstock.report.sweep import summarise
    from penstock.report.train_section import train_charts

    report = summarise(results)
    if as_json:
        click.echo(msgspec.json.encode(report))
    if page is not None:
        from penstock.report.document import write_whole
        from penstock.report.sweep_page import sweep_page

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


def _of_study(folder: Path, page: Path | None, pictures: Path | None, csv_file: Path | None, *, as_json: bool) -> None:
    """Write the page of a study, from the results that `penstock study run` wrote."""
    from penstock.errors import ConfigError
    from penstock.report.document import write_whole
    from penstock.study.page import study_page
    from penstock.study.result import read_result

    if pictures or csv_file or as_json:
        raise ConfigError(f"{folder}: a study can be written only as an HTML page; its data is in results.json")
    page = page or folder / "report.html"
    write_whole(study_page(read_result(folder)), page)
    click.echo(str(page))


def _print(file: Path, *, as_json: bool) -> None:
    """Print the name of the written file on stdout for scripts; on stderr if stdout has JSON."""
    click.echo(str(file), err=as_json)


def _of_comparison(folder: Path, page: Path) -> None:
    from penstock.report.comparison import read
    from penstock.report.comparison_page import write_page

    write_page(read(folder / "comparison.json"), page)
    click.echo(str(page))


def _of_net(folder: Path, page: Path) -> None:
    from penstock.bench.net.result import FILE, read_result
    from penstock.report.document import write_whole
    from penstock.report.net_page import net_page

    write_whole(net_page(read_result(folder / FILE)), page)
    click.echo(str(page))


def _of_scaling(
    folder: Path, page: Path, pictures: Path | None, picture_format: str, csv_file: Path | None, *, as_json: bool
) -> None:
    """Write the page of a sweep of `bench app`. With --json, the printed document is the sweep's file."""
    from penstock.bench.app.document import load
    from penstock.errors import ConfigError
    from penstock.report.document import write_whole
    from penstock.report.scaling_page import scaling_charts, scaling_page

    if csv_file or as_json:
        raise ConfigError(f"{folder}: a scaling sweep can be written only as an HTML page; its data is in scaling.json")
    found = load(folder)
    write_whole(scaling_page(found), page)
    click.echo(str(page))
    if pictures is not None:
        from penstock.report.image_export import export_images

        for file in export_images(scaling_charts(found.summary), pictures, picture_format):
            click.echo(str(file))
