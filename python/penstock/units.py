# SPDX-License-Identifier: Apache-2.0
"""Parses and formats sizes, rates and durations. GB is 10⁹ and GiB is 2³⁰; a bare `G` is rejected as ambiguous."""

from __future__ import annotations

import re
from fractions import Fraction

from penstock.errors import ConfigError

__all__ = [
    "format_bytes",
    "format_rate",
    "format_seconds",
    "parse_bytes",
    "parse_rate",
    "parse_seconds",
    "plural",
    "spell_bytes",
]

_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_BYTES = {**_DECIMAL, **_BINARY, "KB": 10**3}
# Network links are specified in bits.
_BITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_NUMBER = r"(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ]*)\s*")
_DURATION = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ]+)\s*")


def parse_bytes(text: str) -> int:
    """Parse a size into whole bytes: `64MiB`, `1.5 GB`, `4096`.

    Raises:
        ConfigError: The text has no number, an unknown or ambiguous unit, or a fraction of a byte.
    """
    number, unit = _split(text, "a size", "64MiB or 1.5GB")
    size = number * _bytes_per(unit, text)
    if size.denominator != 1:
        raise ConfigError(f"`{text}` is not a whole number of bytes")
    return int(size)


def parse_rate(text: str) -> float:
    """Parse a rate into bytes per second: `250MB/s`, `1.5 GiB/s`, `100Gbit/s`. A bare number is bytes per second.

    Raises:
        ConfigError: The text has no number, or an unknown or ambiguous unit.
    """
    number, unit = _split(text.strip().removesuffix("/s"), "a rate", "250MB/s or 10Gbit/s")
    if unit in _BITS:
        return float(number * _BITS[unit] / 8)
    return float(number * _bytes_per(unit, text))


def parse_seconds(text: str) -> float:
    """Parse a duration into seconds: `250ms`, `1.5 s`, `2min`, `1h 30min`. A bare number is seconds.

    Raises:
        ConfigError: The text has no number, or an unknown unit.
    """
    number = _QUANTITY.fullmatch(text)
    if number and not number[2]:
        return float(_fraction(number[1]))
    total, at = Fraction(0), 0
    while at < len(text):
        part = _DURATION.match(text, at)
        if part is None or part[2] not in _SECONDS:
            raise ConfigError(f"`{text}` is not a valid duration", hint="write 250ms, 1.5s, 2min or 1h 30min")
        total += _fraction(part[1]) * _SECONDS[part[2]]
        at = part.end()
    if at == 0:
        raise ConfigError("a duration must not be empty", hint="write 250ms, 1.5s, 2min or 1h 30min")
    return float(total)


def spell_bytes(size_bytes: int) -> str:
    """Format the exact size in its largest whole unit, which `parse_bytes` accepts: `64MiB`, `3GB`, `4097B`."""
    fits = [
        (size, unit) for unit, size in {**_DECIMAL, **_BINARY}.items() if size_bytes % size == 0 and size_bytes >= size
    ]
    size, unit = max(fits, default=(1, "B"))
    return f"{size_bytes // size}{unit}"


def format_bytes(size_bytes: float, *, binary: bool = False) -> str:
    """Format a size with three digits for display: `1.50 GB`, or `1.40 GiB` if binary."""
    units = {"B": 1, **_BINARY} if binary else _DECIMAL
    base = 1024 if binary else 1000
    names = list(units)
    value, step = float(size_bytes), 0
    # Switch to the next unit from 0.5 below the base on, because 999.6 kB would print as 1000 kB.
    while abs(value) >= base - 0.5 and step < len(names) - 1:
        value /= base
        step += 1
    return f"{_three_digits(value, whole=step == 0 and float(size_bytes).is_integer())} {names[step]}"


def format_rate(rate_bytes_per_s: float) -> str:
    """Format a rate for display: `250 MB/s`."""
    return f"{format_bytes(rate_bytes_per_s)}/s"


def format_seconds(seconds: float) -> str:
    """Format a duration for display: `340 µs`, `12.5 ms`, `1.50 s`, `2 min 05 s`, `3 h 12 min`."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds == 0:
        return "0 s"
    for limit_s, unit, scale in ((999.5e-6, "µs", 1e6), (0.9995, "ms", 1e3), (59.95, "s", 1.0)):
        if seconds < limit_s:
            return f"{_three_digits(seconds * scale)} {unit}"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _three_digits(value: float, *, whole: bool = False) -> str:
    if whole:
        return f"{value:.0f}"
    return f"{value:.{max(0, 3 - len(str(int(abs(value)))))}f}"


def _split(text: str, kind: str, example: str) -> tuple[Fraction, str]:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ConfigError(f"`{text}` is not {kind}", hint=f"write {example}")
    return _fraction(found[1]), found[2]


def _fraction(number: str) -> Fraction:
    # A Fraction keeps `0.1GB` exact; a float would be off by one byte at some sizes. Fraction does not accept `1.`.
    return Fraction(re.sub(r"\.(?=e|E|$)", "", number))


def _bytes_per(unit: str, text: str) -> int:
    if unit in _BYTES:
        return _BYTES[unit]
    if not unit:
        return 1
    prefix = unit[0].upper()
    if prefix in "KMGTP" and unit.upper().removesuffix("B").removesuffix("I") == prefix:
        decimal, binary = ("kB" if prefix == "K" else f"{prefix}B"), f"{prefix}iB"
        raise ConfigError(
            f"`{text}`: the unit `{unit}` is ambiguous ({_BYTES[decimal]:,} or {_BYTES[binary]:,} bytes)",
            hint=f"write {decimal} for powers of ten, {binary} for powers of two",
        )
    raise ConfigError(f"`{text}`: unknown unit `{unit}`", hint="use B, kB, MB, GB, TB, PB or KiB, MiB, GiB, TiB, PiB")
