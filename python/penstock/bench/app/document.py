# SPDX-License-Identifier: Apache-2.0
"""The JSON document of a scaling sweep, `scaling.json`, with its writer and reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.app.cells import Cell  # noqa: TC001 - msgspec reads the annotation
from penstock.bench.app.summary import Summary  # noqa: TC001 - as above
from penstock.bench.results import Provenance, provenance, refuse_newer, spec_hash, whole_file
from penstock.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.bench.app.spec import Spec

__all__ = ["FILE", "Document", "document", "load", "save"]

FILE = "scaling.json"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A finished or interrupted sweep.

    Attributes:
        spec: The specification, with the keys of its TOML file.
        complete: Whether all runs were made.
        notes: Facts about the benchmark itself, such as the note of its preset.
    """

    schema_version: int = 2
    kind: str = "app"
    label: str = ""
    spec: dict[str, Any]
    spec_hash: str
    complete: bool
    machine: Provenance
    summary: Summary
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


def document(
    spec: Spec,
    cells: Sequence[Cell],
    summary: Summary,
    *,
    complete: bool = True,
    label: str = "",
    notes: Sequence[str] = (),
) -> Document:
    """Build the document of a sweep that this machine ran."""
    plain = msgspec.to_builtins(spec)
    # Results are shared, and the values of environment variables can be secrets.
    for variant in plain["variant"]:
        variant["env"] = dict.fromkeys(variant["env"], "…")
    return Document(
        label=label,
        spec=plain,
        spec_hash=spec_hash(plain),
        complete=complete,
        machine=provenance(),
        summary=summary,
        cells=tuple(cells),
        notes=tuple(notes),
    )


def save(made: Document, folder: Path) -> Path:
    """Write `scaling.json` atomically; return its path.

    Raises:
        Denied, NoSpace, SystemFault: The folder cannot be written.
    """
    file = folder / FILE
    with whole_file(file) as out:
        out.write(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return file


def load(folder: Path) -> Document:
    """Read `scaling.json`.

    Raises:
        Corrupt: The file is not a scaling document, or has a newer schema.
    """
    file = folder / FILE
    try:
        raw = file.read_bytes()
        refuse_newer(raw, str(file))
        return msgspec.json.decode(raw, type=Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{file} is not a valid scaling result: {error}", where=str(file)) from None
