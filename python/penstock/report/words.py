# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them. One rule per kind, for terminal and page alike; GB is 10^9, GiB is 2^30."""

from __future__ import annotations

import math

__all__ = ["count", "hours", "rate", "seconds", "share", "size", "usd"]


def size(amount: float) -> str:
    """Bytes in decimal units: 412 B, 3.4 MB, 5.50 TB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.3g} {unit}"


def seconds(amount: float) -> str:
    """A duration: 12 ms, 1.42 s, 35 s, 13 min, 2.0 h."""
    if amount < 1e-3:
        return f"{amount * 1e6:.0f} µs" if amount > 0 else "0"
    if amount < 0.9995:
        return f"{amount * 1e3:.0f} ms"
    if amount < 9.995:
        return f"{amount:.2f} s"
    if amount < 120:
        return f"{amount:.0f} s"
    if amount < 7200:
        return f"{amount / 60:.0f} min"
    return f"{amount / 3600:.1f} h"


def hours(amount: float) -> str:
    """Hours with one decimal under a hundred."""
    return f"{amount:.1f} h" if amount < 99.95 else f"{amount:,.0f} h"


def usd(amount: float) -> str:
    """Dollars: $0.12, $46, $12,031."""
    return f"${amount:,.2f}" if amount < 9.995 else f"${amount:,.0f}"


def rate(amount: float) -> str:
    """Samples a second, three figures."""
    return f"{amount:,.0f}" if amount >= 99.95 else f"{amount:.3g}"


def share(amount: float) -> str:
    """A share as per cent; a small one that is not 0 does not print as 0."""
    if 0 < amount < 0.005:
        return "< 1 %"
    return f"{amount * 100:.0f} %"


def count(amount: float) -> str:
    """A whole number with thousands separated."""
    return "∞" if math.isinf(amount) else f"{amount:,.0f}"
