# SPDX-License-Identifier: Apache-2.0
"""Formats the facts of `penstock peek` for the terminal."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from penstock.cli.wrapping import wrap_line

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["readable"]

_MAX_WIDTH = 110
_TIMES = ("timestamp[", "date[", "time[", "duration[")
_MAX_NAME = 30
"""Maximum width of the column of names. The line of a longer name is shifted to the right."""


def readable(found: dict[str, Any]) -> str:
    """Format the facts in lines that fit the terminal."""
    from penstock.cli.epoch_cost import money_text
    from penstock.units import format_bytes

    width = min(shutil.get_terminal_size((100, 24)).columns, _MAX_WIDTH)
    sizes, many = found["object_bytes"], found["objects"] > 1
    url = found["url"] if many else found["url"] + (found["first_object"] or "")
    lines = [f"{url}: {_count(found['objects'], 'object')} of {found['format']}, {format_bytes(found['bytes'])}"]
    if many:
        span = f"{format_bytes(sizes['min'])} to {format_bytes(sizes['max'])}, median {format_bytes(sizes['median'])}"
        lines.append(f"  sizes    {span}")
    if found["ignored"]:
        ignored = f"{_count(found['ignored'], 'object')} of other formats (to read others: a pattern, or --format)"
        lines += wrap_line(f"  ignored  {ignored}", width, 11)
    stated = "not known yet: counted by" if found["records"] is None else f"{found['records']:,}, stated by"
    lines += wrap_line(f"  records  {stated} {found['counts']}", width, 11)
    if found["first_object"] is None:
        lines += wrap_line("  arrays   run penstock array info URL for their axes and chunks", width, 11)
    lines += _fields(found, width)
    compared = found["columns_compared"]
    if compared is not None:
        lines += _differing(compared, found["objects"], width)
    if found["records_error"] is not None:
        lines += wrap_line(f"  records cannot be shown: {found['records_error']}", width, 4)
    for number, record in enumerate(found["first_records"]):
        lines.append(f"  record {number}")
        lines += [_cut(line, width) for line in _table(record.items())]
    if found["epoch_cost"] is None:
        lines += wrap_line(f"  cost     {found['epoch_cost_note']}", width, 11)
    else:
        lines.append("  cost of an epoch")
        for line in money_text(found["epoch_cost"]).splitlines():
            lines += wrap_line(f"    {line}", width, 8)
        if found["epoch_cost_note"]:
            lines += wrap_line(f"    {found['epoch_cost_note']}", width, 4)
    return "\n".join([*lines, "", *found["python"]])


def _fields(found: dict[str, Any], width: int) -> list[str]:
    compared = found["columns_compared"]
    objects = 1 if compared is None else compared["objects"]
    if objects > 1 and not compared["differing"]:
        looked = _looked(compared)
        scope = f"all {objects} objects" if objects == looked else f"{objects} of {looked} objects"
        heading = f"  fields (the same in {scope} compared)"
    elif found["objects"] > 1 and found["first_object"] is not None:
        others = "; the others are too large to compare" if objects == 1 and compared and compared["too_large"] else ""
        heading = f"  fields (of {found['first_object']}{others})"
    else:
        heading = "  fields"
    fields = [
        (each["name"], each["field"] + ("" if each["holds"] == each["field"] else f"  ({each['holds']})"))
        for each in found["fields"]
    ]
    left_out = [(each["name"], f"left out: {each['reason']}") for each in found["left_out"]]
    return [heading, *(part for line in _table([*fields, *left_out]) for part in wrap_line(line, width, 8))]


def _differing(compared: dict[str, Any], objects: int, width: int) -> list[str]:
    """Return a line for each column that differs, and for each object that has no values or cannot be read."""
    rows = [
        (
            each["name"],
            ", ".join(f"{kind} in {count}" for kind, count in each["objects"].items())
            + (f", nulls in {each['nulls']}" if each["nulls"] else "")
            + f" (first other: {each['first_other']})",
        )
        for each in compared["differing"]
    ]
    rows += [(key, "only nulls in it") for key in compared["only_nulls"]]
    rows += [(each["object"], f"cannot be read: {each['reason']}") for each in compared["unreadable"]]
    if not rows:
        return []
    lines = [f"  differences between objects ({_looked(compared)} of {objects:,} compared)"]
    for line in _table(rows):
        lines += wrap_line(line, width, 8)
    if compared["differing"]:
        hint = (
            "To read every object, set fields(): of the wider type, and with default= if some objects lack the column or "
            "have nulls in it."
        )
        lines += wrap_line(f"    {hint}", width, 4)
    if any(sum(kind.startswith(_TIMES) for kind in each["objects"]) > 1 for each in compared["differing"]):
        lines += wrap_line(
            "    Numbers of times are not converted between units, so write these objects again with one unit.",
            width,
            4,
        )
    return lines


def _looked(compared: dict[str, Any]) -> int:
    """Number of objects that were opened to compare them."""
    return int(compared["objects"]) + len(compared["only_nulls"]) + len(compared["unreadable"])


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    # Quote empty names, which would be invisible, and names with control characters, which a terminal would interpret.
    rows = [(name if name and name.isprintable() else repr(name), text) for name, text in rows]
    name_width = min(max((len(name) for name, _ in rows), default=0), _MAX_NAME)
    return [f"    {name:<{name_width}}  {text}" for name, text in rows]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
