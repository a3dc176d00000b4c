# SPDX-License-Identifier: Apache-2.0
"""Results of a study: the values of each part, its claims and tables. Reports are made from these results alone.

`results.json` in the output folder has one entry for each part that ran. Fields are only ever added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.atomic_file import atomic_file
from penstock.bench.results import Provenance  # noqa: TC001 - msgspec reads the annotation
from penstock.errors import ConfigError, NotFound
from penstock.study.spec import ExpectedFigure  # noqa: TC001

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "SCHEMA_VERSION",
    "Block",
    "Chart",
    "Claim",
    "Line",
    "PartRecord",
    "PartResult",
    "StudyResult",
    "Table",
    "Text",
    "Value",
    "read_result",
    "write_result",
]

SCHEMA_VERSION = 1
RESULTS = "results.json"


class Value(msgspec.Struct, frozen=True):
    """One value of one column, in the unit of its figure.

    Attributes:
        note: The limit or the rate that determines the value, such as "the storage account's bandwidth".
        low, high: 95 % interval, or the range of repeats; None if there was one measurement.
        scale: F, the factor by which the tier's rates were multiplied; set only for measured values.
        is_comparable: Whether the relative difference from the published value is meaningful. If not (for example, for
            a smaller problem), the report omits the difference.
    """

    value: float
    note: str = ""
    low: float | None = None
    high: float | None = None
    scale: float | None = None
    is_comparable: bool = True


class Claim(msgspec.Struct, frozen=True):
    """A statement that the study checks.

    Attributes:
        here: Finding of this run, with figures.
        holds: None if the claim was not measured, or if the measurement does not decide it.
        must: Whether the exit code is 1 if the claim does not hold, for example if bytes differ.
    """

    claim: str
    here: str
    holds: bool | None
    must: bool = False


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A heading (optional), then a paragraph, then list items. `**bold**` and `code` in backquotes are kept."""

    text: str = ""
    title: str = ""
    items: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, tag="table"):
    """A table of texts. The first `left` columns are left-aligned, and all other columns right-aligned."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""


class Line(msgspec.Struct, frozen=True):
    """One line of a chart: points (x, y), in the order in which they are connected."""

    name: str
    points: tuple[tuple[float, float], ...]


class Chart(msgspec.Struct, frozen=True, tag="chart"):
    """A line chart. `caption` describes it in words, also for readers who do not see it."""

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    caption: str
    log_x: bool = False
    log_y: bool = False


Block = Text | Table | Chart


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a part. `inverted`, `predicted` and `measured` map ids of figures to values.

    Attributes:
        inverted: Computed from the publication's own rates. These values only check the formulas, and do not count as
            predictions.
        predicted: Computed from limits alone: network card, account, disks, step time, latency per file. The report
            scores these values.
        measured: Measured on this machine or cluster.
        not_measured: Reasons for what is missing, each a phrase such as "the disk of 64 MB/s: needs root".
        data: Rows of the part, for the study's own use and for readers of `results.json`.
    """

    inverted: dict[str, Value] = {}
    predicted: dict[str, Value] = {}
    measured: dict[str, Value] = {}
    claims: tuple[Claim, ...] = ()
    blocks: tuple[Block, ...] = ()
    not_measured: tuple[str, ...] = ()
    data: Any = None


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A part that ran: its result, and how it was run. `skipped` is the reason if the part could not run."""

    name: str
    size: str
    created: str
    seconds: float = 0.0
    command: str = ""
    load_average: float | None = None
    provenance: Provenance | None = None
    skipped: str = ""
    result: PartResult = PartResult()


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `results.json`. It also contains the study's own texts, so that old results can be reported later."""

    kind: Literal["study"] = "study"
    schema_version: int = SCHEMA_VERSION
    study: str
    letter: str
    title: str
    question: str
    publication: str
    size: str
    spec_hash: str
    answer: str = ""
    complete: bool = False
    parts: tuple[PartRecord, ...] = ()
    figures: tuple[ExpectedFigure, ...] = ()
    contradictions: tuple[str, ...] = ()
    not_comparable: tuple[str, ...] = ()

    def part(self, name: str) -> PartResult | None:
        """Return the result of a part; None if it did not run."""
        return next((each.result for each in self.parts if each.name == name and not each.skipped), None)

    def column(self, name: Literal["inverted", "predicted", "measured"]) -> dict[str, Value]:
        """Return the values of a column of all parts, by id of their figure. A value of a later part replaces a value
        of an earlier part.
        """
        found: dict[str, Value] = {}
        for each in self.parts:
            found |= getattr(each.result, name)
        return found


def write_result(result: StudyResult, folder: Path) -> None:
    """Write `results.json` atomically."""
    with atomic_file(folder / RESULTS, durable=False) as out:
        out.write(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def read_result(folder: Path) -> StudyResult:
    """Read `results.json` of an output folder.

    Raises:
        NotFound: The folder does not contain the results of a study.
        ConfigError: The file is damaged, or a newer version of Penstock wrote it.
    """
    file = folder / RESULTS
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise NotFound(
            f"{folder} contains no results of a study ({RESULTS}: {error.strerror})",
            where=str(folder),
            hint="run `penstock study run NAME --output DIR` first",
        ) from error
    try:
        head = msgspec.json.decode(raw)
        version = head.get("schema_version") if isinstance(head, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ConfigError(
                f"{file} has schema_version {version}, but this build reads up to {SCHEMA_VERSION}",
                where=str(file),
                hint="install the version of Penstock that wrote it",
            )
        return msgspec.convert(head, StudyResult)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} is not a result of a study: {error}", where=str(file)) from error
