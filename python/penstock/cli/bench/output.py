# SPDX-License-Identifier: Apache-2.0
"""Output of a benchmark's rows, shared by all verbs that measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.results import Provenance
    from penstock.bench.rows import Row
    from penstock.cli.bench.table import Table

__all__ = ["deliver", "outputs"]


def outputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--output`, `--csv`, `--label` and `--json`."""
    for option in (
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print one JSON document on stdout: the rows, and the limit of each point.",
        ),
        click.option("--label", default="", help="Name for the rows."),
        click.option(
            "--csv",
            "csv_file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="File to append elbencho's CSV to.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
            help="Folder for rows.jsonl, spec.toml and machine.json.",
        ),
    ):
        command = option(command)
    return command


def deliver(
    rows: list[Row], spec: dict[str, Any], table: Table, given: dict[str, Any], *, machine: Provenance | None = None
) -> None:
    """Write rows to the folder, the CSV and the screen, as the flags of `outputs` request. `machine` describes the
    machine that measured, if that was not this machine.
    """
    import msgspec

    from penstock.bench.results import provenance
    from penstock.bench.rows import write_results
    from penstock.bench.verdict import classify

    rows = [msgspec.structs.replace(row, label=given["label"]) for row in rows]
    verdict, machine = classify(rows), machine or provenance()
    if given["output"] is not None:
        write_results(given["output"], rows, spec=spec, provenance=machine)
    if given["csv_file"] is not None:
        _append(given["csv_file"], rows)
    if given["as_json"]:
        click.echo(msgspec.json.encode({"schema_version": 2, "rows": rows, "cells": verdict.cells, "machine": machine}))
        return
    table.verdict(verdict)


def _append(file: Path, rows: list[Row]) -> None:
    """Append rows to a CSV file. As with elbencho, only a new file gets the header."""
    from penstock.bench.importers.elbencho import render
    from penstock.bench.results import as_fault

    text = render(rows)
    try:
        is_new = not file.exists() or file.stat().st_size == 0
        with file.open("a", encoding="utf-8") as out:
            out.write(text if is_new else text.partition("\n")[2])
    except OSError as error:
        raise as_fault(error, str(file)) from None
