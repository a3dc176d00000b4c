# SPDX-License-Identifier: Apache-2.0
"""Flags of every benchmark that generates load: duration, arrivals and content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load_of", "loads"]

# click's name of each flag -> field of the benchmark's settings.
_FIELDS = {
    "duration": "time_limit_s",
    "arrivals": "arrivals",
    "rate": "rate_per_s",
    "salt": "salt",
    "compressible": "compressible",
    "seed": "seed",
}


def loads(workers: str, duration: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --duration, --arrivals, --rate, --verify, --compressible and --seed.

    Args:
        workers: Word for this benchmark's workers, for the help of --rate.
        duration: Help of --duration.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--seed", type=int, default=0, show_default=True, help="Seed of choices, orders, arrivals and content."),
            click.option("--compressible", type=click.IntRange(0, 100), default=0, show_default=True, metavar="PERCENT", help="Compressible share of the content."),
            click.option("--verify", "salt", type=int, metavar="SALT", help="Write content derived from SALT, and compare what is read with it."),
            click.option("--rate", type=float, metavar="N", help=f"Rate of an open loop: requests per second of all {workers} together."),
            click.option("--arrivals", type=click.Choice(["closed", "constant", "poisson"]), default="closed", show_default=True, help="Arrival of requests. Closed: the next starts when one ends. Else at --rate, and latency counts from the intended start."),
            click.option("--duration", type=SECONDS, metavar="TIME", help=duration),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


def load_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the benchmark settings that the flags of `loads` set."""
    return {field: given[name] for name, field in _FIELDS.items()}
