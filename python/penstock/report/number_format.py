# SPDX-License-Identifier: Apache-2.0
"""Formats hours, dollars, percentages, rates and counts as text; `penstock.units` formats sizes and seconds."""

from __future__ import annotations

import math

__all__ = ["MISSED", "count", "hours", "rate", "share", "usd"]

MISSED = "The rehearsal on this machine differed from the model by more than 20 %, so it does not confirm the model."


def hours(amount: float) -> str:
    """Format hours, with one decimal below 100: 11.9 h, 114 h."""
    return f"{amount:.1f} h" if amount < 99.95 else f"{amount:,.0f} h"


def usd(amount: float) -> str:
    """Format US dollars, with cents below 10: $0.12, $46, $12,031."""
    return f"${amount:,.2f}" if amount < 9.995 else f"${amount:,.0f}"


def rate(amount: float) -> str:
    """Format samples per second with at least three significant figures."""
    return f"{amount:,.0f}" if amount >= 99.95 else f"{amount:.3g}"


def share(amount: float) -> str:
    """Format a share as a percentage. A positive share below 0.5 % is printed as `< 1 %`, not as 0."""
    if 0 < amount < 0.005:
        return "< 1 %"
    return f"{amount * 100:.0f} %"


def count(amount: float) -> str:
    """Format a whole number with thousands separators."""
    return "∞" if math.isinf(amount) else f"{amount:,.0f}"
