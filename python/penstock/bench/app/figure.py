# SPDX-License-Identifier: Apache-2.0
"""Figure of merit of an application: a number that its output contains, found by a named regular expression."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = ["Figure", "checked_pattern", "parse_figure", "read_figure", "read_worlds"]

Pick = Literal["only", "first", "last", "mean", "sum"]
Kind = Literal["total-rate", "step-rate", "seconds"]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number to read from the output of a run.

    Attributes:
        name: Name and unit, such as `ns/day`.
        pattern: Regular expression. Its first group, or the whole match, is the number. `^` matches at each line.
        pick: How to treat several matches: `only` rejects them; any other value chooses one or combines all.
        kind: `total-rate` counts the work of all ranks per second (images/s), `step-rate` counts steps per second
            (timesteps/s, ns/day), and `seconds` is a duration. The difference between the kinds matters for weak
            scaling, in which a step contains more work at more ranks.
    """

    name: str
    pattern: str
    pick: Pick = "only"
    kind: Kind = "total-rate"

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError(f"figure: `{self.pattern}` has no name", hint="write NAME=REGEX")
        checked_pattern(self.pattern, f"figure {self.name}")

    @property
    def is_rate(self) -> bool:
        """Whether a larger value is better."""
        return self.kind != "seconds"


def checked_pattern(pattern: str, what: str) -> re.Pattern[str]:
    """Compile an expression in which `^` and `$` match at each line.

    Args:
        what: Purpose of the expression, for the error text.
    Raises:
        ConfigError: The expression is not valid.
    """
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"{what}: {pattern!r} is not a regular expression: {error}") from None


def parse_figure(text: str, pick: Pick = "only", kind: Kind = "total-rate") -> Figure:
    r"""Parse `NAME=REGEX`, such as `ns/day=Performance:\s+([0-9.]+)`.

    Raises:
        ConfigError: The name or the expression is missing, or the expression is not valid.
    """
    name, equals, pattern = text.partition("=")
    if not equals or not name.strip() or not pattern:
        raise ConfigError(
            f"figure: `{text}` is not NAME=REGEX", hint=r"write, for example, 'ns/day=Performance:\s+([0-9.]+)'"
        )
    return Figure(name.strip(), pattern, pick, kind)


def _matches(pattern: str, text: str) -> list[str]:
    found = re.finditer(pattern, text, re.MULTILINE)
    return [(each[1] if each.re.groups else each[0]) or "" for each in found]


def read_figure(figure: Figure, outputs: list[str]) -> float:
    """Read the figure from the ranks' outputs.

    Args:
        outputs: Output of each rank, in rank order.
    Raises:
        ConfigError: The expression matches nothing, or more than once with `pick = "only"`, or a match is not a finite
            number above 0.
    """
    by_rank = [_matches(figure.pattern, text) for text in outputs]
    found = [text for texts in by_rank for text in texts]
    what = f"figure {figure.name}"
    if not found:
        raise ConfigError(
            f"{what}: {figure.pattern!r} matches nothing in {sum(len(text) for text in outputs):,} characters of output",
            hint="run the command once by hand, and compare its output with the expression",
        )
    if figure.pick == "only" and len(found) > 1:
        ranks = sum(1 for texts in by_rank if texts)
        # If the ranks do not form one MPI job, each of them prints the result of a one-rank job.
        spread = f", on {ranks} ranks" if ranks > 1 else ""
        raise ConfigError(
            f"{what}: {figure.pattern!r} matches {len(found)} times{spread}: {', '.join(found[:4])}",
            hint="pass --pick last, first, mean or sum to allow several"
            + ("; or check that the ranks form one MPI job (--world)" if ranks > 1 else ""),
        )
    values = [_number(text, what) for text in found]
    return {"first": values[0], "last": values[-1], "sum": math.fsum(values), "only": values[0]}.get(
        figure.pick, math.fsum(values) / len(values)
    )


def _number(text: str, what: str) -> float:
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ConfigError(
            f"{what}: the expression matched {text[:60]!r}, which is not a number",
            hint="put the number, and only the number, into a group (...)",
        ) from None
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{what}: the value is {text}, but a figure must be a finite number above 0")
    return value


def read_worlds(pattern: str, outputs: list[str]) -> list[int]:
    """World sizes that the ranks print; empty if the expression matches nothing.

    Raises:
        ConfigError: A match is not a whole number.
    """
    found = [text for output in outputs for text in _matches(pattern, output)]
    for text in found:
        if not text.isdecimal():
            raise ConfigError(f"world: the expression matched {text[:60]!r}, which is not a whole number")
    return [int(text) for text in found]
